"""``starling history``: the runs of data directories and their checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch

from node.checkpoints.best import EVALUATION
from node.checkpoints.checkpoints import Snapshot, write
from node.checkpoints.choice import named_checkpoint
from node.checkpoints.resuming import resume_from
from node.evaluation.held_out import HeldOutReward
from node.home import Home
from tests.factories import round_done


def recorded(home: Path, rewards: list[float], *, began: float = 0.0) -> Path:
    """A run of one task, with a round every ten seconds."""
    home.mkdir(parents=True)
    rounds = [
        round_done(
            number,
            time_seconds=began + 10 * number,
            reward_by_task={"add": reward},
            completions_by_task={"add": 256},
        )
        for number, reward in enumerate(rewards, start=1)
    ]
    Home(home).metrics.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in rounds))
    return home


def save(home: Path, number: int, held_out: float | None) -> None:
    measured = None if held_out is None else HeldOutReward(number, 8, {"add": held_out}, held_out)
    state = {EVALUATION: msgspec.to_builtins(measured)}
    write(home / "checkpoints", Snapshot(number, bytes(16), {"a": torch.zeros(1)}, state, {}), keep=9)


def test_a_run_is_listed_with_its_time_its_rewards_and_the_checkpoints_that_are_there(starling, tmp_path: Path) -> None:
    home = recorded(tmp_path / "home", [0.1] * 20 + [0.9] * 40)
    for number, held_out in ((10, 0.2), (20, 0.7), (30, None)):
        save(home, number, held_out)
    resume_from(home / "checkpoints", named_checkpoint(home / "checkpoints", "20"))
    code, text, _ = starling("history", "--json")
    (run,) = json.loads(text)
    assert (code, run["home"], run["rounds"], run["alone"]) == (0, str(home), 60, True)
    assert (run["began_seconds"], run["ended_seconds"]) == (10.0, 600.0)
    (task,) = run["tasks"]
    assert task["first"] == pytest.approx(0.1) and task["now"] > 0.85 and task["change"] == task["now"] - task["first"]
    there = [(each["round"], each["held_out"], each["best"], each["later"]) for each in run["checkpoints"]]
    assert there == [(10, 0.2, False, False), (20, 0.7, True, False), (30, None, False, True)]
    assert all(Path(each["path"]).is_dir() for each in run["checkpoints"])
    shown = starling("history")[1]
    assert "9 min 50 s" in shown and "round 20, held-out reward 0.70, the best" in shown
    assert "starling report A B" in shown


def test_a_change_that_may_be_chance_says_so(starling, tmp_path: Path) -> None:
    recorded(tmp_path / "home", [0.50, 0.51, 0.50, 0.51])
    (task,) = json.loads(starling("history", "--json")[1])[0]["tasks"]
    assert task["change"] is None
    assert "within chance" in starling("history")[1]


def test_given_directories_stand_beside_the_default_one_each_once_the_earliest_first(starling, tmp_path: Path) -> None:
    late = recorded(tmp_path / "late", [0.1], began=1000.0)
    assert json.loads(starling("history", str(late), "--json")[1])[0]["home"] == str(late)
    early = recorded(tmp_path / "home", [0.1])
    listed = json.loads(starling("history", str(late), str(early), "--json")[1])
    assert [run["home"] for run in listed] == [str(early), str(late)]


def test_a_directory_without_a_run_is_refused(starling, tmp_path: Path) -> None:
    assert starling("history")[0] == 78
    assert starling("history", str(tmp_path / "none"))[0] == 78
    empty = tmp_path / "empty"
    empty.mkdir()
    assert starling("history", str(empty))[0] == 78
    recorded(tmp_path / "home", [0.1])
    assert starling("history", str(empty))[0] == 78
