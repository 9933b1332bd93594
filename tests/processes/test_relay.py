"""``starling relay`` as a process: one process, found by status, ended by Ctrl-C and by ``starling down``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.cluster.invite import decode_invite
from tests.processes.conftest import STARLING, Program

pytestmark = pytest.mark.processes


def started(processes: Any, home: Path, *flags: str) -> tuple[Program, dict[str, Any]]:
    listen = ("--listen", "/ip4/127.0.0.1/tcp/0")
    program = processes.start(*STARLING, "relay", "--home", str(home), "--json", *listen, *flags)
    program.wait_until(lambda: bool(program.lines))
    return program, json.loads(program.lines[0])


def joins_by_a_code(processes: Any, home: Path, ready: dict[str, Any]) -> None:
    """Another relay joins by what the first one's owner reads out, who then hears which peer it was."""
    invite = processes.start(*STARLING, "invite", "--home", str(home), "--spoken", "--for", "wren")
    invite.wait_until(lambda: any("@" in line for line in invite.lines))
    code = next(line.strip() for line in invite.lines if "@" in line)
    assert code.partition("@")[2] == "127.0.0.1:{}".format(ready["addresses"][0].split("/")[4])
    wren, joined = started(processes, processes.root / "wren", "--join", code)
    assert invite.end() == 0 and joined["peer"] in "".join(invite.error_lines)
    assert wren.interrupt() == 0


def test_a_relay_is_one_small_process_that_status_finds_and_ctrl_c_ends(processes: Any) -> None:
    home = processes.root / "door"
    assert processes.run("swarm", "create", "--private", "--name", "lab", "--home", str(home)).returncode == 0
    relay, ready = started(processes, home)
    assert ready["event"] == "ready" and ready["addresses"][0].endswith(ready["peer"])
    (command,) = processes.alive().values()
    assert "relay_process" in command, "the command has become the relay"
    libraries = Path(f"/proc/{relay.process.pid}/maps").read_text()
    assert "torch" not in libraries and "numpy" not in libraries
    said = processes.run("status", "--home", str(home))
    assert said.stdout.startswith(f"relay     {ready['peer']}"), said.stderr
    invited = processes.run("invite", "--home", str(home))
    assert decode_invite(invited.stdout).addresses == tuple(ready["addresses"]), invited.stderr
    joins_by_a_code(processes, home, ready)
    again = processes.run("relay", "--home", str(home), "--listen", "/ip4/127.0.0.1/tcp/0")
    assert again.returncode == 75 and "in use" in again.stderr
    other = processes.run("peers", "--home", str(home))
    assert other.returncode == 69 and "a relay runs in" in other.stderr
    assert relay.interrupt() == 0
    assert json.loads(relay.lines[-1]) == {"event": "left", "reason": "stopped by SIGINT"}
    assert not (home / "swarm.sock").exists()
    relay, _ = started(processes, home)
    assert processes.run("down", "--home", str(home)).returncode == 0
    assert relay.end() == 0
