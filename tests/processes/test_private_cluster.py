"""Who is not let into a private cluster, with real processes and sockets, and what is said then.

What members see, test_private_cluster_document.py shows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from protocol.cluster.documents import Invitation, sign_invitation
from protocol.cluster.invite import decode_invite, encode_invite
from protocol.identity import NodeKey
from tests.hang_guard import HANG_SECONDS

pytestmark = pytest.mark.processes


def found(processes: Any) -> Path:
    home: Path = processes.root / "founder"
    created = processes.run("swarm", "create", "--private", "--name", "lab", "--home", str(home))
    assert created.returncode == 0, created.stderr
    return home


def invite(processes: Any, home: Path, *flags: str) -> str:
    said = processes.run("invite", "--home", str(home), *flags)
    assert said.returncode == 0, said.stderr
    return str(said.stdout.strip())


def swarm_process(processes: Any, home: Path) -> tuple[subprocess.Popen[bytes], list[str]]:
    """The swarm process of a node alone, without a learner, and its addresses."""
    facts = json.loads(processes.run("swarm", "show", "--home", str(home), "--json").stdout)
    settings = {
        "home": str(home), "swarm_name": "lab", "swarm_id": facts["swarm_id"], "private": True,
        "listen": "/ip4/127.0.0.1/tcp/0", "lan_discovery": False,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "swarm.swarm_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=processes.environment,
    )
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(settings).encode() + b"\n")
    process.stdin.flush()
    return process, json.loads(process.stdout.readline())["addresses"]


def test_every_refusal_ends_with_77_its_reason_and_a_remedy_before_any_training(processes: Any) -> None:
    home = found(processes)
    owner = NodeKey.load(home / "cluster" / "owner.key")
    founder, addresses = swarm_process(processes, home)
    sound = decode_invite(invite(processes, home, "--address", addresses[0]))

    def forged(*, psk: bytes = sound.psk, ahead_seconds: int = 0, lasts_seconds: int = 3600, **changes: Any) -> str:
        key, made = NodeKey.generate(), int(time.time()) + ahead_seconds
        fields: dict[str, Any] = {
            "swarm_id": sound.invitation.swarm_id, "key": key.public_bytes, "seats": 1, "needs_owner": False,
            "made_seconds": made, "valid_from_seconds": made, "join_by_seconds": made + lasts_seconds, "name": "",
        }  # fmt: skip
        document = sign_invitation(owner, Invitation(**(fields | changes)))
        return encode_invite(document=document, key=key, owner=owner.public_bytes, psk=psk, addresses=sound.addresses)

    taken_back = forged()
    assert processes.run("revoke", taken_back, "--home", str(home)).returncode == 0
    refusals = {
        "expired": (forged(ahead_seconds=-7200), "expired at", "starling invite"),
        "clock": (forged(ahead_seconds=3600), "one of the two clocks is wrong", "timedatectl"),
        "damaged": (forged()[:-3], "checksum", "copy it again"),
        "wrong_psk": (forged(psk=bytes(32)), "pre-shared key", "new invite"),
        "wrong_swarm": (forged(swarm_id=bytes(16)), "another cluster", "invite"),
        "revoked": (taken_back, "revoked", "new invite"),
    }
    refused = {
        r: processes.up("--join", text, home=processes.root / f"refused-{r}") for r, (text, *_) in refusals.items()
    }
    for reason, (_, wrong, remedy) in refusals.items():
        node = refused[reason]
        assert node.end() == 77, (reason, node.events, node.lines)
        because = node.events[-1]["because"]
        assert because.startswith(f"not let in ({reason})"), because
        assert wrong in because and remedy in because, because
        assert [event["event"] for event in node.events] == ["ended"]
        assert not (node.home / "cluster").exists()

    founder.communicate(timeout=HANG_SECONDS)  # the end of its input
    assert founder.returncode == 0
    key_file = home / "cluster" / "psk"
    key_file.chmod(0o644)
    node = processes.up(home=home)
    assert node.end() == 77 and "chmod 600" in "".join(node.lines)
    key_file.chmod(0o600)
    node = processes.up("--join", forged(), home=processes.root / "nobody")
    assert node.end() == 69 and "no member of the cluster answers" in node.events[-1]["because"]
    assert processes.none_alive()
