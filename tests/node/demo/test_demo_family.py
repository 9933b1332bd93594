"""The conclusions and the tables of the demonstration of a family."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from node.checkpoints.checkpoints import Snapshot, write
from node.cli.main import app
from node.cli.verbs.demo import BUILTIN_FAMILY
from node.demo.family import FamilyReport, Moment, NodeResult, make_family_report, moments_of
from node.demo.family_run import mean_distance
from node.demo.family_show import family_conclusions, moments_table, nodes_table, tasks_table
from node.demo.member import DemoError, Point, Tally
from node.demo.plan import Effort
from node.demo.run import DemoSettings
from node.evaluation.evaluation_result import Evaluation
from node.events import Averaged
from node.home import Home
from protocol.errors import ConfigurationError

EFFORT = Effort(10, 1000, 80, 5, 7, 1_500, 2_500_000)


def evaluation(**rewards: float) -> Evaluation:
    return Evaluation("m", 0, None, 10, 4, 0, rewards, rewards)


def node(label: str, alone: float, together: float) -> NodeResult:
    return NodeResult(label, evaluation(a=alone, b=0.5), evaluation(a=together, b=0.5), EFFORT, EFFORT, 3, 3_000_000)


def report(*nodes: NodeResult) -> FamilyReport:
    moments = (Moment(0.0, 30.0, 0.25, 0.0123, 3), Moment(30.0, 60.0, None, None, 0))
    return make_family_report(
        evaluation(a=0.1, b=0.5), nodes, moments, model="builtin:wren", distances=(0.08, 0.02),
        minutes=1.0, seed=0, machine="here", version="0",
    )  # fmt: skip


def averaged(time_seconds: float, distance: float | None) -> Averaged:
    return Averaged(
        time_seconds=time_seconds, round=1, partner="p", because="", seconds=1.0, distance=distance, outer_steps=1
    )


def shown(renderable: object) -> str:
    console = Console(file=io.StringIO(), width=150, color_system=None)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_family_that_is_better_together_and_lost_a_task_is_told_both() -> None:
    nodes = [
        NodeResult(f"wren {i}", evaluation(a=0.1, b=0.5), evaluation(a=0.9, b=0.1), EFFORT, EFFORT, 3, 3_000_000)
        for i in (1, 2)
    ]
    verdict, _ = family_conclusions(report(*nodes))
    assert ": better together: " in verdict
    assert verdict.endswith("Together: It has lost success on b from 0.50 to 0.10.")


def test_the_mean_over_nodes_and_tasks_decides() -> None:
    better = report(node("wren 1", 0.2, 0.3), node("wren 2", 0.4, 0.35))
    assert (better.mean_before, better.mean_alone, better.mean_together) == pytest.approx((0.3, 0.4, 0.4125))
    first, second = family_conclusions(better)
    assert better.better_together and "NOT" not in first and "0.412" in first and "0.400" in first
    worse = report(node("wren 1", 0.3, 0.3))
    first, second = family_conclusions(worse)
    assert not worse.better_together and "NOT" in first
    assert "2.00%" in second and "8.00%" in second


def test_tables_show_tasks_agreement_over_time_and_nodes() -> None:
    both = report(node("wren 1", 0.2, 0.3), node("wren 2", 0.4, 0.5))
    assert all(figure in shown(tasks_table(both)) for figure in ("0.100", "0.300", "0.400"))
    assert all(figure in shown(moments_table(both)) for figure in ("0 to 30", "0.250", "1.23%", "30 to 60", "-"))
    assert all(figure in shown(nodes_table(both)) for figure in ("wren 1", "wren 2", "3.0 MB"))


def test_moments_cover_the_time_from_the_first_round_to_the_last_and_lose_nothing() -> None:
    one = Tally(rewards=[Point(100.0, 0.0), Point(104.0, 1.0), Point(110.0, 0.5)], averagings=[averaged(109.0, 0.2)])
    two = Tally(rewards=[Point(101.0, 0.5)], averagings=[averaged(110.0, 0.4), averaged(110.0, None)])
    first, second = moments_of([one, two], 2)
    assert (first.from_seconds, first.until_seconds, second.until_seconds) == (0.0, 5.0, 10.0)
    assert (first.reward, first.distance, first.outer_steps) == (0.5, None, 0)
    assert (second.reward, second.outer_steps) == (0.5, 3)
    assert second.distance == pytest.approx(0.3)
    assert moments_of([Tally()]) == ()


def test_nodes_of_one_model_are_numbered_and_others_named_after_their_models() -> None:
    assert DemoSettings(("a", "b"), 1.0, 1, 0).labels() == ("a", "b")
    assert DemoSettings(("a", "a"), 1.0, 1, 0).labels() == ("a 1", "a 2")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_replicas_are_as_far_apart_as_their_weights_and_one_without_a_checkpoint_is_an_error(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    homes = [tmp_path / name for name in "abc"]
    for home, value in zip(homes, (3.0, 3.0, 6.0), strict=True):
        tensors = {"weights.w": torch.full((4,), value, dtype=dtype), "optimizer.w": torch.zeros(9)}
        write(Home(home).checkpoints, Snapshot(1, bytes(16), tensors, {}, {}), keep=1)
    # Of six ordered pairs two are equal, two lie 3 from a 3, two 3 from a 6.
    assert mean_distance(homes) == pytest.approx((0 + 0 + 1 + 1 + 0.5 + 0.5) / 6)
    with pytest.raises(DemoError, match=str(tmp_path / "d")):
        mean_distance([*homes, tmp_path / "d"])


@pytest.mark.parametrize(
    "arguments",
    [("--family", "--models", "builtin:wren,builtin:robin"), ("--models", BUILTIN_FAMILY)],
)
def test_a_family_of_different_models_and_equal_models_without_a_family_are_refused(arguments: Any) -> None:
    refused = CliRunner().invoke(app, ["demo", *arguments])
    assert isinstance(refused.exception, ConfigurationError) and "--family" in str(refused.exception)
