"""Which engine generates, as ``starling doctor``, ``status`` and notes say it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from node.api.answers import engine_line, escaped_event
from node.configuration import Config, EngineSection
from node.doctor.data_directory import RunningFacts, judge_engine
from node.doctor.findings import Severity
from node.engines.backend_choice import EngineFacts
from node.events import EngineChanged, decode_event, encode_event
from node.supervision.watching.learner_news import LearnerNews
from tests.factories import round_done
from tests.node.api.test_api_links import status
from tests.node.doctor.judged import with_remedy

RUNS = EngineChanged(
    time_seconds=0.0, backend="process", configured="process", running=True, because="the process was started"
)
LOST = replace(RUNS, running=False, because="the engine is gone", losses=1, retry_seconds=0.5)
BACK = replace(RUNS, because="the process was started again", losses=1)
GIVEN_UP = replace(RUNS, backend="torch", because="lost 3 times in a row", losses=3)
STOPPED = RunningFacts(False, None, None)
FACTS = EngineFacts(vllm=None, on_card=False, four_bit=False)


def running(event: EngineChanged) -> RunningFacts:
    return RunningFacts(True, replace(status(), engine=event), None)


def test_before_a_start_it_says_which_one_is_configured() -> None:
    with_remedy(judge_engine(Config(), STOPPED, FACTS), Severity.OK, 'engine.backend = "auto"', "learner's process")
    config = Config(engine=EngineSection(backend="process"))
    with_remedy(judge_engine(config, STOPPED, FACTS), Severity.OK, 'engine.backend = "process"', "of its own")


def test_vllm_that_is_not_installed_is_told_with_its_command() -> None:
    config = Config(engine=EngineSection(backend="vllm"))
    found = judge_engine(config, STOPPED, FACTS)
    with_remedy(found, Severity.WARNING, "embedded engine", "starling engine install vllm")


def test_beside_a_node_it_says_which_one_generates_and_warns_of_another_than_the_configured_one() -> None:
    with_remedy(judge_engine(Config(), running(RUNS), FACTS), Severity.OK, "process was started")
    with_remedy(judge_engine(Config(), running(LOST), FACTS), Severity.WARNING, "started again in 0.5 s", "learner.log")
    with_remedy(
        judge_engine(Config(), running(GIVEN_UP), FACTS), Severity.WARNING, "learner's process generates instead"
    )


@pytest.mark.parametrize(("kl", "severity"), [(1e-5, Severity.OK), (0.5, Severity.WARNING)])
def test_it_says_how_far_the_last_rounds_samples_are_from_the_learner(kl: float, severity: Severity) -> None:
    done = round_done(engine_gap=0.01, engine_kl=kl, engine_bound=4e-4)
    facts = RunningFacts(True, replace(status(), engine=RUNS, round=done), None)
    with_remedy(judge_engine(Config(), facts, FACTS), severity, "KL")


def test_losses_are_told_to_the_owner_and_a_start_is_not() -> None:
    news = LearnerNews(lambda: 0.0)
    told = [news.saw(event) for event in (RUNS, LOST, BACK, GIVEN_UP)]
    assert [len(notes) for notes in told] == [0, 1, 1, 1]
    assert "No round is lost" in told[1][0] and "lost 1 time" in told[2][0]
    assert news.newest(EngineChanged) == GIVEN_UP


def test_the_event_travels_as_a_line_and_its_reason_is_escaped() -> None:
    assert decode_event(encode_event(LOST)) == LOST
    shown = escaped_event(replace(LOST, because="a\x1b[2Jb"))
    assert isinstance(shown, EngineChanged) and "\x1b" not in shown.because and "\x1b" not in engine_line(shown)
