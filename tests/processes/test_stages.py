"""A model over two machines as a user runs it: ``starling up --stages 1`` and ``starling lend``, on loopback."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.processes.conftest import with_stand_ins
from tests.processes.test_donors import events_of, lent

pytestmark = pytest.mark.processes


def test_a_node_waits_for_a_machine_with_its_model_learns_with_it_and_goes_on_after_it_was_killed(
    processes: Any,
) -> None:
    node = processes.up("--model", "builtin:wren", "--stages", "1")
    node.wait_for(lambda event: event["event"] == "stages" and event["waits"])

    # A machine with another model is told so, and ends.
    invited = processes.run("donor", "invite", "--home", str(node.home), "--for", "cellar")
    unlike = lent(processes, "cellar", "--to", invited.stdout.strip(), "--model", "builtin:finch")
    assert unlike.end() == 78 and "the owner's has" in "".join(unlike.error_lines)
    status = processes.status(node)
    assert status["stages"]["connected"] == 0 and status["stages"]["waits"] and not node.of_kind("round")

    invited = processes.run("donor", "invite", "--home", str(node.home), "--for", "attic")
    assert invited.returncode == 0, invited.stderr
    stage = lent(processes, "attic", "--to", invited.stdout.strip())
    node.wait_for_round(1)
    (held,) = [event for event in events_of(stage) if event["event"] == "holding"]
    own = node.of_kind("stages")[-1]
    assert (held["first"], held["last"], held["layers"]) == (own["own_layers"], 3, 3) and held["bytes"] > 0
    shown = processes.run("status", "--home", str(node.home)).stdout
    assert "layers    this machine: layer" in shown and "layers    attic: layer" in shown

    # The process that holds the layers is killed in the middle: they come back, and no round is lost or counted twice.
    (process,) = [number for number, command in processes.alive().items() if "lent_stage_process" in command]
    seen, learnt = len(node.events), node.of_kind("round")[-1]["round"]
    os.kill(process, signal.SIGKILL)
    node.wait_for(lambda event: event["event"] == "stages" and event["waits"], seen)
    node.wait_for_round(learnt + 3, seen)
    rounds = [event["round"] for event in node.of_kind("round")]
    assert rounds == list(range(1, rounds[-1] + 1))
    assert len([event for event in events_of(stage) if event["event"] == "holding"]) == 2

    # The same directory without machines goes on from the same weights: what was learnt is the whole adapter.
    assert stage.interrupt() == 0
    assert node.stop() == 0
    assert not [command for command in processes.alive().values() if "lent_stage_process" in command]
    alone = processes.up("--set", "policy.stages=0", "--rounds", "1", home=node.home)
    assert alone.end() == 0, alone.last_words()
    assert [event["round"] for event in alone.of_kind("round")] == [node.of_kind("round")[-1]["round"] + 1]


def test_a_node_whose_machine_stays_away_goes_on_with_the_other_one_and_takes_in_the_next(processes: Any) -> None:
    node = processes.up("--model", "builtin:wren", "--stages", "2", starling=with_stand_ins("hasty"))
    node.wait_for(lambda event: event["event"] == "stages" and event["waits"])
    machines = {}
    for name in ("attic", "cellar"):
        invited = processes.run("donor", "invite", "--home", str(node.home), "--for", name)
        machines[name] = lent(processes, name, "--to", invited.stdout.strip())
    node.wait_for_round(2)
    learners = learner_processes(processes)

    # One is killed and stays away: the other one gets its layers too, and no round is lost.
    seen = len(node.events)
    os.killpg(machines["attic"].process.pid, signal.SIGKILL)
    alone = node.wait_for(lambda event: event["event"] == "stages" and len(event["stages"]) == 1, seen)
    assert [each["name"] for each in alone["stages"]] == ["cellar"]
    assert [each["name"] for each in alone["away"]] == ["attic"]
    node.wait_for_note("without attic")
    node.wait_for_round(node.of_kind("round")[-1]["round"] + 2, seen)
    assert "layers    attic: away since " in processes.run("status", "--home", str(node.home)).stdout

    # It comes back: the next plan has it.
    seen = len(node.events)
    lent(processes, "attic")
    both = node.wait_for(lambda event: event["event"] == "stages" and len(event["stages"]) == 2, seen)
    assert {each["name"] for each in both["stages"]} == {"attic", "cellar"} and both["away"] == []
    node.wait_for_round(node.of_kind("round")[-1]["round"] + 2, seen)
    rounds = [event["round"] for event in node.of_kind("round")]
    assert rounds == list(range(1, rounds[-1] + 1))
    assert learner_processes(processes) == learners and not node.of_kind("fault")
    assert node.stop() == 0


def learner_processes(processes: Any) -> list[int]:
    return [number for number, command in processes.alive().items() if "hasty_learner" in command]
