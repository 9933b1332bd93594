"""The checkpoint that is best on the validation set is kept however many newer ones there are, and no crash can make
another one the best."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from node.checkpoints import checkpoints
from node.checkpoints.best import EVALUATION, best_checkpoint, best_comparable_with, kept
from node.checkpoints.checkpoints import Snapshot, write
from node.checkpoints.choice import named_checkpoint, newest_whole
from node.evaluation.held_out import HeldOutReward
from protocol.errors import ConfigurationError


def measured(round_number: int, validation: float, *, prompts: int = 16, task: str = "add") -> HeldOutReward:
    """The test set says the opposite of the validation set, and decides nothing."""
    return HeldOutReward(round_number, prompts, {task: 1 - validation, "spell": 1 - validation}, validation)


def save(folder: Path, round_number: int, evaluation: HeldOutReward | None, *, keep: int = 2) -> Path:
    state = {EVALUATION: msgspec.to_builtins(evaluation)}
    return write(folder, Snapshot(round_number, bytes(16), {"a": torch.zeros(1)}, state, {}), keep=keep)[0]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_best_checkpoint_outlives_all_newer_ones_until_a_better_one_comes(tmp_path: Path) -> None:
    for number, reward in ((10, 0.3), (20, 0.7), (30, 0.4), (40, 0.7), (50, 0.5)):
        save(tmp_path, number, measured(number, reward))
    assert names(tmp_path) == ["round-000020", "round-000040", "round-000050"]
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert best.path.name == "round-000020"
    assert best.measured.reward == pytest.approx(0.3)
    save(tmp_path, 60, measured(60, 0.8))
    save(tmp_path, 70, None)
    assert names(tmp_path) == ["round-000060", "round-000070"]


def test_evaluation_of_an_earlier_round_says_nothing_of_a_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 10, measured(10, 0.3))
    for number in (11, 12, 13):
        save(tmp_path, number, measured(10, 0.3))
    assert names(tmp_path) == ["round-000010", "round-000012", "round-000013"]


def test_evaluations_on_other_prompts_are_not_compared_and_each_best_is_kept(tmp_path: Path) -> None:
    save(tmp_path, 10, measured(10, 0.9, prompts=1))
    save(tmp_path, 20, measured(20, 0.2))
    save(tmp_path, 30, measured(30, 0.1))
    save(tmp_path, 40, measured(40, 0.1))
    assert names(tmp_path) == ["round-000010", "round-000020", "round-000030", "round-000040"]
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert best.measured.round == 20
    assert best_comparable_with(tmp_path, measured(50, 0.5, prompts=1)) == measured(10, 0.9, prompts=1)
    assert best_comparable_with(tmp_path, measured(50, 0.5, task="rotate")) is None


def test_crash_before_the_deletion_of_old_ones_leaves_the_best_to_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 10, measured(10, 0.9))

    class PowerCutError(BaseException):
        pass

    def power_cut(*_: object) -> None:
        raise PowerCutError

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "_delete_old", power_cut)
        for number in (20, 30, 40):
            with pytest.raises(PowerCutError):
                save(tmp_path, number, measured(number, 0.1))
    save(tmp_path, 50, None)
    assert names(tmp_path) == ["round-000010", "round-000040", "round-000050"]


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"state": 3}', '{"round": 20, "state": {"evaluation": {"round": 20}}}']
)
def test_checkpoint_whose_state_is_damaged_is_neither_the_best_nor_in_the_way(tmp_path: Path, content: str) -> None:
    save(tmp_path, 10, measured(10, 0.3))
    (save(tmp_path, 20, measured(20, 0.9)) / "state.json").write_text(content)
    best = best_checkpoint(tmp_path)
    assert best is not None
    assert best.measured.round == 10
    assert kept(tmp_path, 1) == {tmp_path / "round-000010", tmp_path / "round-000020"}


def test_checkpoint_is_named_by_round_by_path_or_as_the_best(tmp_path: Path) -> None:
    first, second = save(tmp_path, 10, measured(10, 0.9)), save(tmp_path, 20, measured(20, 0.1))
    assert named_checkpoint(tmp_path, "20") == second
    assert named_checkpoint(tmp_path, str(first)) == first
    assert named_checkpoint(tmp_path, "best") == first


def test_checkpoint_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"evaluation\.every_rounds.*no checkpoint"):
        named_checkpoint(tmp_path, "best")
    save(tmp_path, 10, None)
    with pytest.raises(ConfigurationError, match="rounds 10"):
        named_checkpoint(tmp_path, "11")
    with pytest.raises(ConfigurationError, match="none is the best"):
        named_checkpoint(tmp_path, "best")


def test_newest_checkpoint_that_is_damaged_is_passed_over(tmp_path: Path) -> None:
    assert newest_whole(tmp_path) is None
    save(tmp_path, 10, None)
    (save(tmp_path, 20, None) / "tensors.safetensors").write_bytes(b"")
    found = newest_whole(tmp_path)
    assert found is not None
    assert (found[0].name, found[1]["round"]) == ("round-000010", 10)
