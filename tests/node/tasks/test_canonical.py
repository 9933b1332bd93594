"""Right answers in forms that a lenient scorer takes: which of them are worth copying."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.tasks.canonical import has_form_of, is_canonical, is_own_text, is_plain, is_reasoned
from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.jsonl import JsonlTask
from node.tasks.reasoning_sets import REASONING_TASKS
from tests.node.learner.letter_node import LetterTask

FRACTIONS = next(task for task in DEFAULT_TASKS if task.name == "fraction_simplification")


@pytest.mark.parametrize("task", DEFAULT_TASKS, ids=lambda task: task.name)
def test_a_compact_tasks_own_answer_is_canonical(task: object) -> None:
    for seed in range(20):
        prompt = task.prompt(task.ref(seed))  # type: ignore[attr-defined]
        assert is_canonical(task, prompt, str(prompt.answer))  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [" {}", "{} ", "${}$", "0{}", "+{}", "{}\n", "   {}", "\t{}"])
def test_right_fraction_in_another_form_is_rewarded_and_not_worth_copying(form: str) -> None:
    prompt = FRACTIONS.prompt(FRACTIONS.ref(5))
    text = form.format(prompt.answer)
    assert FRACTIONS.rewards(prompt, [text]) == [1.0]
    assert not is_canonical(FRACTIONS, prompt, text)


@pytest.mark.parametrize("task", REASONING_TASKS, ids=lambda task: task.name)
def test_a_worded_tasks_own_answer_after_some_reasoning_is_canonical(task: object) -> None:
    prompt = task.prompt(task.ref(3))  # type: ignore[attr-defined]
    for around in ("", "\n"):
        text = f"First this.\n\n  Then that.\n<answer>{around}{str(prompt.answer).strip()}{around}</answer>"
        assert is_canonical(task, prompt, text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "so <answer>  42</answer>",
        "so <answer>42</answer>  ",
        "so <answer>42</answer> and more",
        "so" + " " * 40 + "<answer>42</answer>",
        "so" + "0" * 100 + "<answer>42</answer>",
        "<answer>1</answer> no, <answer>42</answer>",
        "<answer>$42</answer>",
        "<answer>00042</answer>",
        "<answer>42 apples and pears</answer>",
        "42",
    ],
)
def test_padded_or_decorated_tagged_answer_is_not_worth_copying(text: str) -> None:
    assert not is_reasoned(text, "42", several=False)


def test_number_may_have_its_usual_separators_and_another_right_answer_may_be_a_little_longer() -> None:
    assert has_form_of("1080", "1,080", several=False)
    assert has_form_of("1080", "1080.00", several=False)
    assert not has_form_of("1080", "01080", several=False)
    assert has_form_of("2 × 3", "3 × 2", several=True)
    assert not has_form_of("2 × 3", "3 × 2 " * 40, several=True)


def test_text_of_a_task_that_knows_no_form_is_refused_for_padding_alone() -> None:
    task = LetterTask("first")
    prompt = task.prompt(task.ref(0))
    assert is_canonical(task, prompt, "ab")
    assert not is_canonical(task, prompt, "a" + " " * 30 + "b")
    assert is_plain("a table\n    with indentation") and not is_plain(" a") and not is_plain("a" * 70)


def test_answers_of_a_data_set_end_plainly(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text(json.dumps({"question": "2 + 40?", "answer": "two and forty #### 42"}) + "\n")
    task = JsonlTask.load(path, reward="auto", max_new_tokens=64)
    prompt = task.prompt(task.ref(0))
    assert task.is_canonical(prompt, "It is 2 + 40.\n#### 42")
    assert task.is_canonical(prompt, "The answer is 42 apples.")
    assert not task.is_canonical(prompt, "The answer is 42" + " " * 60 + ".")
    assert not task.is_canonical(prompt, "\n\n#### 42")
    exact = JsonlTask.load(path, reward="exact", max_new_tokens=64)
    assert exact.is_canonical(prompt, "42") and not exact.is_canonical(prompt, " 42")
    # of a stranger the bare answer is copied only where every right answer is bare
    assert is_own_text(exact, prompt, "42") and not is_own_text(task, prompt, "42")


def test_only_the_answer_that_the_task_itself_would_write_is_its_own_text() -> None:
    prompt = FRACTIONS.prompt(FRACTIONS.ref(3))
    assert is_own_text(FRACTIONS, prompt, str(prompt.answer))
    assert not is_own_text(FRACTIONS, prompt, f"{prompt.answer} ")
    letter = LetterTask("first")
    assert is_own_text(letter, letter.prompt(letter.ref(0)), "a")
    assert not is_own_text(letter, letter.prompt(letter.ref(0)), "ab")  # right as well, and a stranger's words
