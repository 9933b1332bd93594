"""The process that answers for the web page, in this process: which model answers what, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.configuration import TasksSection
from node.tasks.catalogue import find_task
from node.trying.answering import LoadedModels
from node.trying.messages import Answered, Doing, NotAnswered, Said, TryRequest
from node.trying.questions import task_questions
from node.trying.try_process import answer_all
from tests.node.export.trained_run import TrainedRun, trained_run

TASK = "spell_backward"
OWN = TryRequest("%&'()")  # of the tiny model's alphabet


@pytest.fixture(scope="module", params=[0, 4])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    return trained_run(tmp_path_factory.mktemp("try") / "run", adapter_rank=request.param)


def said_to(run: TrainedRun, *requests: Any) -> list[Said]:
    said: list[Said] = []
    models = LoadedModels(run.home, run.config.policy, 1, lambda what: said.append(Doing(what)))
    lines = (each() if callable(each) else msgspec.json.encode(each) for each in requests)
    answer_all(run.home, run.config, models, lines, said.append)
    return said


def names(said: list[Said]) -> list[list[str]]:
    return [[answer.model for answer in each.tried.answers] for each in said if isinstance(each, Answered)]


def test_each_question_may_ask_another_checkpoint_and_a_newer_one_is_asked_once_it_is_there(run: TrainedRun) -> None:
    newest = max(int(path.name[-6:]) for path in run.home.checkpoints.iterdir())
    best = TryRequest(OWN.text, checkpoint="best")

    def after_another_checkpoint() -> bytes:
        run.checkpoint(newest + 1)
        return msgspec.json.encode(OWN)

    said = said_to(run, OWN, best, OWN, after_another_checkpoint)
    rounds = [newest, 7, newest, newest + 1]
    assert names(said) == [["base", f"round {number}"] for number in rounds]
    loaded = [each.what for each in said if isinstance(each, Doing) and each.what.startswith("loading")]
    assert len(loaded) == 1, "the base model is loaded once"
    answers = [each.tried.answers for each in said if isinstance(each, Answered)]
    assert len({of[0].text for of in answers}) == 1 and answers[0][1].text == answers[2][1].text


def test_questions_of_a_task_follow_each_other_and_are_judged(run: TrainedRun) -> None:
    ask = TryRequest(TASK, of_task=True)
    said = [each.tried for each in said_to(run, ask, OWN, ask) if isinstance(each, Answered)]
    wanted = task_questions(find_task(TasksSection(), TASK), None)
    assert [said[0].question, said[2].question] == [next(wanted).text, next(wanted).text]
    assert all(answer.judged is not None and answer.right in (True, False) for answer in said[0].answers)
    assert said[1].task is None and said[1].answers[0].right is None


def test_what_cannot_be_asked_is_refused_and_the_next_request_is_answered(run: TrainedRun) -> None:
    said = said_to(run, TryRequest("nothing of this name", of_task=True), TryRequest("%" * 4000), OWN)
    kinds = [type(each) for each in said if not isinstance(each, Doing)]
    assert kinds == [NotAnswered, NotAnswered, Answered]


def test_without_a_checkpoint_the_base_model_answers_alone(run: TrainedRun, tmp_path: Path) -> None:
    empty = TrainedRun(type(run.home)(tmp_path), run.model, run.policy, run.config)
    said = said_to(empty, OWN, TryRequest(OWN.text, checkpoint="best"))
    assert names(said) == [["base"]] and isinstance(said[-1], NotAnswered)
