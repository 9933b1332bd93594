"""``starling try``: who answers which question, how answers are judged and shown, and that it only reads."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from node.cli.verbs import try_model
from node.configuration import TasksSection
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.environments.conversation import ConversationTask
from node.policy.policy import Policy
from node.tasks.answers import RIGHT
from node.tasks.catalogue import JudgedAnswer, find_task
from node.tasks.split import Part, part_of
from node.trying.questions import task_questions, typed_questions
from node.trying.tried import Answer, MeanRewards, Question, Tried, tried_lines
from swarm.exit_codes import ExitCode
from tests.node.export.trained_run import TrainedRun, trained_run

Starling = Callable[..., tuple[int, str, str]]
QUESTION = "%&'()"  # of the tiny model's alphabet
TASK = "spell_backward"


def tried_by(starling: Starling, *arguments: str) -> list[Tried]:
    code, shown, error = starling("try", *arguments, "--json")
    assert code == 0, error
    return [msgspec.json.decode(line, type=Tried) for line in shown.splitlines()]


def answer_of(policy: Policy) -> str:
    request = GenerationRequest(policy.tokens.prompt_ids(QUESTION), 1, 24)
    ((sample,),) = TorchEngine(policy, rows=1, seed=0).generate([request], Sampling(0.0))
    return policy.tokens.text_of(sample.token_ids.tolist()).decode()


def files_of(run: TrainedRun) -> dict[Path, tuple[int, int]]:
    found = {path: path.stat() for path in run.home.path.rglob("*")}
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in found.items()}


@pytest.mark.parametrize("adapter_rank", [0, 4])
def test_base_model_and_newest_checkpoint_answer_and_the_data_directory_stays_as_it_is(
    starling: Starling, tmp_path: Path, adapter_rank: int
) -> None:
    run = trained_run(tmp_path / "run", adapter_rank=adapter_rank)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # further than a step goes, so that greedy answers differ
        for parameter in run.policy.trainable().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    run.checkpoint(9)
    before = files_of(run)
    untrained = answer_of(Policy.load(run.config.policy))
    assert untrained != answer_of(run.policy)
    (tried,) = tried_by(starling, QUESTION, "--tokens", "24", "--home", str(run.home.path))
    assert [(each.model, each.round, each.text) for each in tried.answers] == [
        ("base", 0, untrained),
        ("round 9", 9, answer_of(run.policy)),
    ]
    assert tried.answers[0].checkpoint is None and str(tried.answers[1].checkpoint).endswith("round-000009")
    assert tried.question == QUESTION and all(each.tokens <= 24 and each.judged is None for each in tried.answers)
    assert files_of(run) == before


def test_options_choose_who_answers(starling: Starling, tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run")
    asked = (QUESTION, "--home", str(run.home.path), "--tokens", "2")

    def names(*options: str) -> list[str]:
        return [answer.model for tried in tried_by(starling, *asked, *options) for answer in tried.answers]

    assert names("--base") == ["base"]
    assert names("--no-base") == ["round 8"]
    assert names("--no-base", "--checkpoint", "last") == ["round 8"]
    assert names("--checkpoint", "best") == ["base", "round 7"]
    assert names("--checkpoint", str(run.home.checkpoints / "round-000007")) == ["base", "round 7"]
    code, _, error = starling("try", *asked, "--checkpoint", "9")
    assert code == ExitCode.BAD_CONFIGURATION and "rounds 7, 8" in error


def test_without_a_checkpoint_the_base_model_answers_and_the_verb_that_trains_one_is_named(
    starling: Starling, tmp_path: Path
) -> None:
    code, shown, error = starling("try", "--task", TASK, "--questions", "6", "--json")
    assert code == 0 and "starling up" in error and not (tmp_path / "home").exists()
    tried = [msgspec.json.decode(line, type=Tried) for line in shown.splitlines()]
    task = find_task(TasksSection(), TASK)
    for each in tried:
        assert each.seed is not None
        prompt = task.prompt(task.ref(each.seed))
        assert part_of(prompt) is Part.TEST
        assert (each.task, each.question, each.right_answer) == (TASK, prompt.text, prompt.answer)
        (answer,) = each.answers
        assert answer.model == "base" and answer.judged is not None
        assert [answer.judged.reward] == task.rewards(prompt, [answer.text])
    rewards = [each.answers[0].judged.reward for each in tried if each.answers[0].judged]
    assert len({each.question for each in tried}) == 6 and sum(rewards) >= 3  # what the built-in model was taught
    assert starling("try", "--checkpoint", "last", "x")[0] == ExitCode.BAD_CONFIGURATION


def test_conversation_is_had_to_its_end_and_judged(starling: Starling) -> None:
    (tried,) = tried_by(starling, "--task", "guess_number:tiny", "--questions", "1")
    task = find_task(TasksSection(), "guess_number:tiny")
    assert isinstance(task, ConversationTask)
    (answer,) = tried.answers
    assert answer.text.startswith("> ") and answer.text.count("\n> ") < task.environment.max_turns
    assert answer.judged is not None and answer.judged.fault is None
    assert answer.judged.extracted == answer.text and 0 <= answer.judged.reward <= 1


def test_each_line_of_standard_input_is_a_question(starling: Starling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"reverse sun=\n\n \nreverse \xff=\r\n"), "utf-8"))
    tried = tried_by(starling, "--tokens", "1")
    assert [each.question for each in tried] == ["reverse sun=", "reverse \ufffd="]
    assert all(answer.tokens == 1 and not answer.ended for each in tried for answer in each.answers)


def test_question_that_fills_the_context_ends_with_the_code_of_a_bad_configuration(starling: Starling) -> None:
    assert starling("try", "a" * 400)[0] == ExitCode.BAD_CONFIGURATION


@pytest.mark.parametrize(
    "arguments", [("x", "--task", TASK), ("--questions", "3"), ("x", "--base", "--checkpoint", "best")]
)
def test_options_that_contradict_each_other_are_a_usage_error(starling: Starling, arguments: tuple[str, ...]) -> None:
    assert starling("try", *arguments)[0] == ExitCode.USAGE


def test_temperature_samples(starling: Starling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("reverse sun=\n" * 12))
    tried = tried_by(starling, "--temperature", "5", "--tokens", "12")
    assert len({each.answers[0].text for each in tried}) > 1


def typed(*lines: str, first: str | None = None) -> tuple[list[Question], list[str]]:
    """What is asked and what is said where a person types ``lines`` and then Ctrl-D."""
    said: list[str] = []
    left = iter(lines)

    def read() -> str | None:
        return next(left, None)

    asked = typed_questions(read, said.append, lambda name: find_task(TasksSection(), name), None, first)
    return list(asked), said


def test_a_person_asks_own_questions_and_goes_through_those_of_tasks() -> None:
    asked, said = typed("one", f"/task {TASK}", "", "two", "/task rotate_matrix", f"/task {TASK}", "")
    first = task_questions(find_task(TasksSection(), TASK), None)
    texts = [next(first).text for _ in range(4)]
    rotated = next(task_questions(find_task(TasksSection(), "rotate_matrix"), None)).text
    assert [each.text for each in asked] == ["one", texts[0], texts[1], "two", rotated, texts[2], texts[3]]
    assert [each.max_new_tokens for each in asked[:2]] == [128, 8] and not said
    assert [each.text for each in typed("", first=TASK)[0]] == texts[:2]


def test_what_cannot_be_asked_is_said_and_the_next_line_is_read() -> None:
    asked, said = typed("", "/help", "/task", "/nothing", "/task rotate_matrx", "one", "/quit", "two")
    assert [each.text for each in asked] == ["one"]
    assert len(said) == 5 and "rotate_matrix" in said[-1]


def test_small_data_set_ends_after_each_of_its_questions(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"question": f"{n} + 1?", "answer": str(n + 1)}) + "\n" for n in range(64)))
    section = TasksSection(jsonl=(path,))
    held_out = [each.text for each in task_questions(find_task(section, "sums"), None)]
    assert 0 < len(held_out) == len(set(held_out)) < 16
    said: list[str] = []
    lines = iter(["/task sums", *[""] * len(held_out)])
    asked = typed_questions(lambda: next(lines, None), said.append, lambda name: find_task(section, name), None)
    assert [each.text for each in asked] == held_out and len(said) == 1


def answer(reward: float, model: str = "base", text: str = "4", *, ended: bool = True) -> Answer:
    judged = JudgedAnswer(reward, text, "the whole text", None)
    return Answer(model, 0, None, text, 3, ended, judged, reward >= RIGHT)


def test_answers_are_escaped_and_their_lines_stand_beside_their_model() -> None:
    answers = (answer(0.25, text="\x1b[31mred\nnext"), answer(1.0, "round 12", "", ended=False))
    shown = "\n".join(tried_lines(Tried("2 + 2\n=", "sums", 1, "4", answers), with_question=True)).split("\n")
    assert shown[:3] == ["> 2 + 2", "  =", "expected  4"]
    assert shown[3:5] == ["base      \\x1b[31mred", "          next"]
    assert "wrong" in shown[5] and "0.25" in shown[5]
    assert shown[6].startswith("round 12  (nothing)") and "3 tokens" in shown[6] and "right" in shown[7]


def test_means_are_by_task_and_model() -> None:
    means = MeanRewards()
    for reward in (0.0, 0.5):
        means.add(Tried("?", "sums", 1, None, (answer(reward), answer(1.0, "round 12"))))
    means.add(Tried("?", None, None, None, (msgspec.structs.replace(answer(0.0), judged=None),)))
    (line,) = means.lines()
    assert "2 questions of sums" in line and "base 0.25, round 12 1.00" in line


@pytest.mark.parametrize("is_typed", [True, False])
def test_ctrl_c_drops_one_answer_of_a_person_who_types_and_ends_everything_elsewhere(
    capsys: pytest.CaptureFixture[str], is_typed: bool
) -> None:
    def answering(question: Question, **_: Any) -> Tried:
        if question.text == "slow":
            raise KeyboardInterrupt
        return Tried(question.text, "sums", 1, None, (answer(1.0),))

    def questions() -> Iterator[Question]:
        for text in ("quick", "slow", "quick"):
            yield Question(text, 4)

    if is_typed:
        try_model._answer_all(questions(), answering, as_json=False, is_typed=True)
    else:
        with pytest.raises(KeyboardInterrupt):
            try_model._answer_all(questions(), answering, as_json=False, is_typed=False)
    assert f"{1 + is_typed} question" in capsys.readouterr().out
