"""``starling doctor`` for real: before a first start, beside a running node, and where something is wrong."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes

LISTEN = ("--set", "swarm.listen=/ip4/127.0.0.1/tcp/0")


def findings(ended: Any) -> dict[str, dict[str, Any]]:
    return {finding["check"]: finding for finding in json.loads(ended.stdout)["findings"]}


def test_before_the_first_start_nothing_is_an_error_nothing_is_made_and_neither_torch_nor_libp2p_imported(
    processes: Any,
) -> None:
    home = processes.root / "home"
    program = (
        "import sys\n"
        "from node.cli.main import main\n"
        "heavy = {'torch', 'transformers', 'libp2p', 'trio'}\n"
        "try: main()\n"
        "finally: print('HEAVY', sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    ended = processes.start(sys.executable, "-c", program, "doctor", "--home", str(home), "--json", *LISTEN).ended()
    found = findings(ended)
    assert ended.returncode == 0, ended.stdout
    assert ended.stderr.splitlines()[-1] == "HEAVY []"
    assert json.loads(ended.stdout)["healthy"]
    assert found["packages"]["severity"] == found["torch"]["severity"] == found["clock"]["severity"] == "ok"
    assert all((finding["remedy"] is None) == (finding["severity"] == "ok") for finding in found.values())
    assert not home.exists()
    assert processes.none_alive()


def test_a_taken_port_a_silent_peer_and_a_readable_key_end_it_with_1_and_their_remedies(processes: Any) -> None:
    home: Path = processes.root / "home"
    home.mkdir(mode=0o700)
    (home / "identity.key").touch(mode=0o644)
    (home / "identity.key").chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        peer = f"/ip4/127.0.0.1/tcp/1/p2p/{'x' * 52}"
        flags = ("--set", f"swarm.listen={address}", "--set", f"swarm.peers={peer}")
        ended = processes.run("doctor", "--home", str(home), *flags)
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    for check, remedy in (("port", "swarm.listen"), ("peers", "firewall"), ("key", f"chmod 600 {home}/identity.key")):
        at = next(n for n, line in enumerate(lines) if line.split()[:2] == ["error", check])
        assert remedy in lines[at + 1]


def test_a_configuration_that_cannot_be_is_a_finding_and_the_rest_is_examined(processes: Any) -> None:
    ended = processes.run("doctor", "--home", str(processes.root / "home"), "--json", "--set", "swarm.lisen=x")
    found = findings(ended)
    assert ended.returncode == 1
    assert found["configuration"]["severity"] == "error" and "swarm.listen" in found["configuration"]["said"]
    assert found["torch"]["severity"] == "ok"


def test_beside_running_nodes_it_asks_them_and_compares_their_clocks(processes: Any) -> None:
    often = ("--set", "swarm.heartbeat_seconds=0.5")
    first = processes.up(*often, home=processes.root / "a", torch=False)
    address = first.wait_for_event("node")["addresses"][0]
    second = processes.up("--peer", address, *often, home=processes.root / "b", torch=False)
    second.wait_for_event("node")
    processes.peers_once(second.home, lambda peer: peer["connected"] and peer["heartbeat"] is not None)
    ended = processes.run("doctor", "--home", str(second.home), "--json", "--set", f"swarm.peers={address}")
    found = findings(ended)
    assert ended.returncode == 0, ended.stdout
    assert "1 peer" in found["clock"]["said"] and found["clock"]["severity"] == "ok"
    assert "the node listens on" in found["port"]["said"]
    assert found["peers"]["said"] == "1 configured, all answer"
    assert found["node"]["said"].startswith(("training", "starting"))
    outside = processes.run(
        "doctor", "--home", str(processes.root / "c"), "--json", *LISTEN, "--set", f"swarm.peers={address}"
    )
    assert findings(outside)["peers"]["said"] == "1 configured, all answer"  # a stranger's greeting is answered
    assert second.stop() == 0 and first.stop() == 0
    assert processes.none_alive()
