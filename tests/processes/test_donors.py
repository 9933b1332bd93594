"""``starling donor invite`` and ``starling lend`` as a user runs them: real nodes on loopback."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.processes.conftest import STARLING, Event, NodeProcess, Processes, Program

pytestmark = pytest.mark.processes

ENGINE = "lent_engine_process"


def lent(processes: Processes, name: str, *arguments: str) -> Program:
    command = (*STARLING, "lend", "--home", str(processes.root / name), "--listen", "/ip4/127.0.0.1/tcp/0", "--json")
    return processes.start(*command, *arguments)


def generated(node: NodeProcess, name: str, after: int = 0) -> Event:
    """The first round in which donor ``name`` generated something that was used."""

    def is_wanted(event: Event) -> bool:
        return event["event"] == "donors" and any(
            each["name"] == name and each["state"] == "generated" and each["tokens"] > 0 for each in event["donors"]
        )

    return node.wait_for(is_wanted, after)


def events_of(donor: Program) -> list[Event]:
    return [json.loads(line) for line in donor.lines]


def wait_until_told_to_wait(donor: Program) -> None:
    donor.wait_until(lambda: any("not_ready" in event.get("because", "") for event in events_of(donor)))


def engines_of(processes: Processes) -> list[int]:
    return [number for number, command in processes.alive().items() if ENGINE in command]


def test_a_donor_generates_for_its_owner_survives_its_engine_and_is_put_out(processes: Any) -> None:
    node = processes.up("--model", "builtin:wren")
    node.wait_for_round(1)
    invited = processes.run("donor", "invite", "--home", str(node.home), "--for", "attic")
    assert invited.stdout.startswith("starling-lend://1"), invited.stderr
    donor = lent(processes, "attic", "--to", invited.stdout.strip())
    generated(node, "attic")
    assert any(event["event"] == "lending" and event["model"] == "builtin:wren" for event in events_of(donor))
    shown = processes.run("status", "--home", str(node.home)).stdout
    assert "donor     attic: " in shown
    own = processes.run("status", "--home", str(processes.root / "attic")).stdout
    assert own.startswith("donor     12D3Koo") and "lends     builtin:wren" in own
    listed = json.loads(processes.run("donor", "list", "--home", str(node.home), "--json").stdout)
    assert [(each["name"], each["state"]) for each in listed] == [("attic", "donor")]

    # Its engine is killed in the middle: the round is whole, and another engine lends on.
    (engine,) = engines_of(processes)
    os.kill(engine, signal.SIGKILL)
    node.wait_until(lambda: engines_of(processes) not in ([], [engine]))
    assert len(engines_of(processes)) == 1
    for _ in range(2):  # the first may tell of answers from before
        generated(node, "attic", len(node.events))
    assert not node.of_kind("fault")

    # A machine with another model is told so, and ends.
    other = processes.run("donor", "invite", "--home", str(node.home), "--for", "other")
    unlike = lent(processes, "other", "--to", other.stdout.strip(), "--model", "builtin:finch")
    assert unlike.end() == 78 and "the owner's has" in "".join(unlike.error_lines)

    # A second machine with the same invitation is a stranger; the donor that is put out ends by itself.
    thief = lent(processes, "thief", "--to", invited.stdout.strip())
    assert thief.end() == 77 and "no open invitation" in "".join(thief.error_lines)
    assert processes.run("donor", "remove", "attic", "--home", str(node.home)).returncode == 0
    assert donor.end() == 77
    assert not engines_of(processes)
    node.wait_for(lambda e: e["event"] == "donors" and not e["donors"], len(node.events) - 50)
    assert node.stop() == 0


def test_in_a_private_cluster_one_string_makes_a_member_and_a_donor_that_comes_back(processes: Any) -> None:
    home = processes.root / "home"
    assert processes.run("swarm", "create", "--private", "--name", "lab", "--home", str(home)).returncode == 0
    node = processes.up(torch=False)  # whose learner asks for no donors: they are told to wait
    node.wait_for_event("node")
    invited = processes.run("donor", "invite", "--home", str(home), "--for", "attic")
    for arguments in (("--to", invited.stdout.strip()), ()):  # the directory knows its owner then
        donor = lent(processes, "attic", *arguments)
        wait_until_told_to_wait(donor)
        assert donor.interrupt() == 0
    assert node.stop() == 0
