"""``starling up --dry-run`` samples as a round does, says what would teach, refuses as a start does, writes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from node.configuration import TasksSection
from node.home import Home
from node.tasks.catalogue import find_task
from node.trying.dry_run_result import DryRun, dry_run_lines
from swarm.exit_codes import ExitCode
from tests.node.export.trained_run import trained_run

Starling = Callable[..., tuple[int, str, str]]
TASK = "spell_backward"


def dry_run_of(starling: Starling, *arguments: str) -> DryRun:
    code, shown, error = starling("up", "--dry-run", "--json", *arguments)
    assert code == 0, error
    return msgspec.json.decode(shown, type=DryRun)


def test_a_built_in_model_answers_some_questions_differently_and_no_directory_is_made(
    starling: Starling, tmp_path: Path
) -> None:
    found = dry_run_of(starling, "--set", f"tasks.names={TASK}", "--set", "learner.completions=6")
    (sampled,) = found.tasks
    task = find_task(TasksSection(), TASK)
    assert found.checkpoint is None and sampled.task == TASK
    assert all(len(group.answers) == 6 for group in sampled.groups)
    for group in sampled.groups:
        assert {answer.reward for answer in group.answers if answer.text == group.right_answer} <= {1.0}
        assert all(len(answer.text) <= 4 * task.max_new_tokens for answer in group.answers)
    differing = sum(len({answer.reward for answer in group.answers}) > 1 for group in sampled.groups)
    assert found.teaching == sampled.teaching == differing > 0
    assert found.teaches_nothing is None and found.round_seconds > 0
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("adapter_rank", [0, 4])
def test_a_run_is_sampled_from_its_newest_checkpoint_and_stays_as_it_is(
    starling: Starling, tmp_path: Path, adapter_rank: int
) -> None:
    run = trained_run(tmp_path / "run", adapter_rank=adapter_rank)
    before = {path: path.stat().st_mtime_ns for path in run.home.path.rglob("*")}
    found = dry_run_of(starling, "--home", str(run.home.path), "--set", f"tasks.names={TASK}")
    assert (found.round, found.checkpoint) == (8, str(run.home.checkpoints / "round-000008"))
    assert found.teaching == 0 and TASK in (found.teaches_nothing or "") and found.to_do  # a random model
    assert any(found.to_do in line for line in dry_run_lines(found))
    assert {path: path.stat().st_mtime_ns for path in run.home.path.rglob("*")} == before
    older = dry_run_of(starling, "--home", str(run.home.path), "--set", f"tasks.names={TASK}", "--resume", "7")
    assert older.round == 7 and Home(run.home.path).checkpoints.joinpath("round-000008").is_dir()


def test_a_bad_setting_is_refused_as_by_a_start(starling: Starling) -> None:
    wrong = ("--json", "--model", "builtin:wrn", "--set", "tasks.names=nothing", "--set", "learner.own_group=3")
    refusals = []
    for arguments in (("up", *wrong), ("up", "--dry-run", *wrong)):
        code, shown, _ = starling(*arguments)
        refusal = json.loads(shown)
        del refusal["time_seconds"]
        refusals.append((code, refusal))
    assert refusals[0] == refusals[1] and refusals[0][0] == ExitCode.BAD_CONFIGURATION
    assert len(refusals[0][1]["findings"]) == 3


@pytest.mark.parametrize("option", ["--detach", "--from-peers", "--until-input-ends"])
def test_what_needs_a_start_contradicts_it(starling: Starling, option: str) -> None:
    assert starling("up", "--dry-run", option)[0] == ExitCode.USAGE
