"""How evaluations are shown: on the screen, in the status, for Prometheus, as a curve, in the report."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from node.api.answers import waiting_for
from node.api.history import History
from node.api.metrics import metrics_text
from node.api.record import recorded_run
from node.api.types import ChildStatus, NodeState, NodeStatus, PeersAnswer
from node.cli import wording
from node.cli.progress import PlainObserver
from node.events import Evaluated, Event, PhaseBegan, Usage, encode_event
from node.report.facts import run_facts
from node.report.html import report_page
from node.report.lines import report_lines
from node.version import VERSION
from tests.factories import round_done


def evaluated(number: int, reward: float, *, best: tuple[int, float] | None = None) -> Evaluated:
    return Evaluated(
        time_seconds=float(number),
        round=number,
        policy_version=number,
        prompts=16,
        reward=reward,
        reward_by_task={"add": reward - 0.1, "spell": reward + 0.1},
        validation=reward,
        best_round=best[0] if best else number,
        best_reward=best[1] if best else reward,
        seconds=1.5,
    )


def status(measured: Evaluated | None) -> NodeStatus:
    child = ChildStatus(12, 0, None)
    return NodeStatus(
        VERSION, 1, "/h", "wren-x", "12D3KooWy", "builtin:wren", NodeState.TRAINING, 61.0, child, child, None,
        None, None, None, None, None, (), evaluated=measured,
    )  # fmt: skip


def test_status_says_the_last_result_by_task_and_the_best_one() -> None:
    (line,) = [line for line in wording.status_lines(status(evaluated(100, 0.4, best=(50, 0.5)))) if "held-out" in line]
    assert "after round 100: 0.400 on held-out prompts, greedy [add 0.30, spell 0.50]" in line
    assert line.endswith("on the validation set the best is round 50, here 0.500")
    assert "the best so far on the validation set" in wording.evaluated_line(evaluated(50, 0.5))
    assert not [line for line in wording.status_lines(status(None)) if "held-out" in line]


def test_output_of_a_node_has_a_line_of_it() -> None:
    out = io.StringIO()
    PlainObserver(out).on_event(b"", evaluated(50, 0.5))
    assert "evaluated after round 50: 0.500" in out.getvalue()


def test_metrics_have_the_result_by_task() -> None:
    families = text_string_to_metric_families(
        metrics_text(status(evaluated(100, 0.4, best=(50, 0.5))), PeersAnswer(()))
    )
    found = {(sample.name, sample.labels.get("task")): sample.value for family in families for sample in family.samples}
    assert found["starling_evaluation_reward", None] == pytest.approx(0.4)
    assert found["starling_evaluation_best_reward", None] == pytest.approx(0.5)
    assert found["starling_evaluation_task_reward", "spell"] == pytest.approx(0.5)
    assert found["starling_evaluation_round", None] == 100


def test_node_that_evaluates_says_so() -> None:
    began = PhaseBegan(time_seconds=1.0, round=8, phase="evaluate")
    assert waiting_for(NodeState.TRAINING, None, round_done(7), began) == "round 8: answering held-out prompts"


def test_evaluations_are_a_timeline_of_their_own_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    events: list[Event] = [round_done(1), evaluated(2, 0.3), round_done(3), evaluated(4, 0.4)]
    path.write_bytes(b"".join(encode_event(event) + b"\n" for event in events))
    now = History()
    now.add_evaluation(evaluated(6, 0.5))
    answer = now.appended_to(recorded_run(path, before_seconds=6.0)[0]).answer()
    found = {(series.name, series.task): series.values for series in answer.evaluations.series}
    assert answer.evaluations.time_seconds == (2.0, 4.0, 6.0)
    assert found["reward", None] == (0.3, 0.4, 0.5)
    assert found["reward", "add"] == pytest.approx((0.2, 0.3, 0.4))
    assert found["round", None] == (2.0, 4.0, 6.0)
    assert answer.rounds.time_seconds == (1.0, 3.0)
    assert History().answer().evaluations.time_seconds == ()


def test_report_has_the_curve_the_last_result_and_the_best_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    events: list[Event] = [round_done(1), evaluated(2, 0.5), evaluated(4, 0.4, best=(2, 0.5))]
    usage = Usage(
        time_seconds=5.0, supervisor_bytes=1, learner_bytes=1, swarm_bytes=1, sent_bytes_total=1, received_bytes_total=1
    )
    lines = [*map(encode_event, events), msgspec.json.encode(usage)]
    path.write_bytes(b"\n".join(lines))
    facts = run_facts(path)
    assert (facts.evaluated, facts.evaluated_total) == (events[2], 2)
    (line,) = [line for line in report_lines(facts) if line.startswith("held-out")]
    assert "0.400" in line and "best is round 2, here 0.500" in line and "2 times in total" in line
    page = report_page(facts, name="h")
    assert 'data-curve="heldOut"' in page and "after round 4: 0.400 on held-out prompts" in page
    (drawn,) = re.findall(r'id="facts">(.*?)</script>', page)
    evaluations = json.loads(drawn)["history"]["evaluations"]
    assert {line["task"]: line["values"] for line in evaluations["series"] if line["task"]}["add"] == pytest.approx(
        [0.4, 0.3]
    )
    assert run_facts(path, until_round=3).evaluated == events[1]
    assert (facts.ended_seconds, run_facts(path, until_round=3).ended_seconds) == (5.0, 2.0)
    assert msgspec.json.decode(msgspec.json.encode(facts.evaluated), type=Evaluated) == events[2]
