"""``starling up`` as a user has it: real processes, real sockets, the built-in model."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.processes


def test_rounds_asked_for_then_exit_0_and_the_next_start_continues_until_its_input_ends(processes: Any) -> None:
    first = processes.up("--rounds", "3")
    assert first.end() == 0
    assert [event["round"] for event in first.of_kind("round")] == [1, 2, 3]
    assert first.events[-1]["event"] == "ended" and first.events[-1]["because"] == "rounds"
    assert (first.home / "checkpoints" / "round-000003" / "state.json").is_file()
    recorded = [json.loads(line) for line in (first.home / "metrics.jsonl").read_text().splitlines()]
    assert [e for e in recorded if e["event"] != "usage"] == [
        e for e in first.events if e["event"] not in {"note", "node", "ended"}
    ]
    assert any(e["event"] == "usage" and e["learner_bytes"] for e in recorded)
    second = processes.up()
    assert second.wait_for_event("ready")["round"] == 3
    second.wait_for_round(5)
    second.process.stdin.close()
    assert second.end() == 0
    assert [event["round"] for event in second.of_kind("round")][:2] == [4, 5]
    newest = second.of_kind("round")[-1]["round"]
    assert second.of_kind("checkpoint")[-1]["round"] == newest, "what was learnt until the end is saved"
    assert processes.none_alive()


def test_a_running_node_is_seen_refuses_a_second_one_and_ends_when_asked(processes: Any) -> None:
    node = processes.up(torch=False)
    node.wait_for_round(2)
    node.wait_for_event("node")
    home = ("--home", str(node.home))

    status = processes.status(node)
    assert status["state"] == "training" and status["round"]["round"] >= 2 and status["pid"] == node.process.pid
    assert status["swarm"]["alone_because"] and status["swarm"]["addresses"]
    said = processes.run("status", *home).stdout
    assert status["peer"] in said and "alone" in said
    assert json.loads(processes.run("peers", *home, "--json").stdout) == {"peers": []}
    assert processes.run("id", *home).stdout.strip() == status["peer"]

    second = processes.up(torch=False)
    assert second.end() == 75
    assert "in use" in second.events[-1]["because"] and str(node.process.pid) in second.events[-1]["because"]

    down = processes.run("down", *home)
    assert down.returncode == 0 and node.end() == 0
    assert node.of_kind("stopped")[-1]["because"] == "asked"
    assert processes.none_alive()


def test_a_start_that_cannot_be_is_refused_before_torch_the_transport_or_a_process(processes: Any) -> None:
    import subprocess
    import sys

    program = (
        "import subprocess, sys\n"
        "subprocess.Popen = None\n"
        "sys.argv = ['starling', 'up', '--model', 'builtin:wrne', '--listen', '0.0.0.0:4001']\n"
        "from node.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: print('CODE', end.code)\n"
        "heavy = {'torch', 'transformers', 'libp2p', 'trio', 'aiohttp', 'numpy', 'rich.live'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    home = processes.root / "home"
    environment = processes.environment | {"STARLING_HOME": str(home)}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-2:] == ["CODE 78", "HEAVY []"]
    assert "did you mean builtin:wren?" in said.stderr and "write /ip4/0.0.0.0/tcp/4001" in said.stderr
    assert not home.exists()


@pytest.mark.parametrize("verb", ["status", "peers", "id", "version", "--help"])
def test_a_reading_verb_imports_neither_torch_nor_the_transport(processes: Any, verb: str) -> None:
    import subprocess
    import sys

    program = (
        f"import sys; sys.argv = ['starling', '{verb}']\n"
        "from node.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'libp2p', 'trio', 'aiohttp', 'numpy'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    environment = processes.environment | {"STARLING_HOME": str(processes.root)}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "HEAVY []"
