"""The last words of a node that ended in order."""

from __future__ import annotations

from pathlib import Path

from node.api.run_changes import RunChanges
from node.supervision.farewell import farewell
from tests.factories import round_done


def test_it_says_what_came_of_it_where_it_is_and_the_next_commands() -> None:
    changes = RunChanges()
    for number in range(1, 40):
        changes.add(round_done(number, reward_by_task={"add": min(1.0, number / 30)}, completions_by_task={"add": 8}))
    gains = changes.gains()
    first, saved, *commands = farewell(39, gains, "/data/round-000039", Path("/data/my node"))
    assert first.startswith("39 rounds so far. ") and first.endswith(gains.sentence) and "at first it was" in first
    assert saved == "Saved: /data/round-000039"
    assert commands[0] == "Ask it: starling try --home '/data/my node'"
    assert "starling export --home '/data/my node' FOLDER" in commands[1]
    assert all("--home" not in line for line in farewell(39, gains, "/data/round-000039", None))


def test_a_start_without_a_round_has_none_and_one_without_a_checkpoint_names_no_command() -> None:
    gains = RunChanges().gains()
    assert list(farewell(0, gains, None, None)) == []
    assert len(list(farewell(1, gains, None, None))) == 1
