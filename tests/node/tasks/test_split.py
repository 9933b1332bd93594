"""The split by text: fixed for good, the same for every task, and one question in eight is never trained on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.jsonl import JsonlTask
from node.tasks.reasoning import ReasoningTask
from node.tasks.reasoning_sets import SAPO_TASKS
from node.tasks.split import Part, held_out_prompts, normalised, part_of, training_prompt
from node.tasks.task import Prompt, Task, config_hash_of
from protocol.errors import ConfigurationError
from protocol.messages import PromptRef

REF = PromptRef("t", 1, bytes(16), 0)
QUESTIONS = 20_000  # of each default task, at least; a default task with fewer than 5,000 would be recall


def asking(text: str, question: str | None = None) -> Prompt:
    return Prompt(REF, text, None, {}, question)


def rows(folder: Path, questions: list[str], *, instruction: str = "") -> Task:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": text, "answer": "1"}) + "\n" for text in questions))
    return JsonlTask.load(path, reward="exact", max_new_tokens=4, instruction=instruction)


def test_split_of_these_texts_is_as_it_was() -> None:
    """A change here lets every node train on what it was measured on: it needs another name of the rule (``SPLIT``)."""
    by_part: dict[Part, list[int]] = {}
    for number in range(64):
        by_part.setdefault(part_of(asking(f"question {number}")), []).append(number)
    assert by_part[Part.VALIDATION] == [14, 21, 31, 33, 51]
    assert by_part[Part.TEST] == [16, 26, 52]


@given(st.text(max_size=40), st.sampled_from([" ", "\t", "\n ", "\u00a0"]))
def test_case_and_white_space_do_not_move_a_question(text: str, space: str) -> None:
    spaced = space + text.replace(" ", space + space) + space
    assert normalised(spaced) == normalised(text)
    assert part_of(asking(spaced)) is part_of(asking(text))
    lowered = text.lower()
    if lowered.upper().lower() == lowered:  # some letters have no way back
        assert part_of(asking(lowered.upper())) is part_of(asking(lowered))


def test_one_question_in_sixteen_is_in_each_held_out_part() -> None:
    parts = Counter(part_of(asking(str(number))) for number in range(16_000))
    for part in (Part.VALIDATION, Part.TEST):
        assert parts[part] == pytest.approx(1000, abs=150)  # five deviations


def test_what_every_prompt_of_a_task_ends_with_does_not_move_a_question() -> None:
    question = asking("what is 1 + 1?")
    assert part_of(asking("what is 1 + 1?\nThink step by step.", "what is 1 + 1?")) is part_of(question)


@pytest.mark.parametrize("task", [*DEFAULT_TASKS, *SAPO_TASKS[:2]], ids=lambda task: task.name)
def test_prompts_that_teach_and_held_out_ones_share_no_text(task: Task) -> None:
    teaching = {normalised(training_prompt(task, 37 * seed).question_text) for seed in range(500)}
    held_out = {
        part: {normalised(each.question_text) for each in held_out_prompts({task.name: task}, part, 64)[task.name]}
        for part in (Part.VALIDATION, Part.TEST)
    }
    assert [len(texts) for texts in held_out.values()] == [64, 64]  # each question once
    assert not teaching & (held_out[Part.VALIDATION] | held_out[Part.TEST])
    assert not held_out[Part.VALIDATION] & held_out[Part.TEST]


def test_equal_rows_of_a_data_set_are_on_the_same_side_however_they_are_written(tmp_path: Path) -> None:
    questions = [f"What is {n}?" for n in range(200)]
    task = rows(tmp_path, [*questions, *(f"  what is  {n}? " for n in range(200))])
    parts = [part_of(task.prompt(task.ref(row))) for row in range(400)]
    assert parts[:200] == parts[200:]
    test = held_out_prompts({"rows": task}, Part.TEST, 400)["rows"]
    assert len(test) == parts[:200].count(Part.TEST) > 0  # each question once


def test_data_set_with_held_out_rows_alone_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    held_out = next(text for text in map(str, range(1000)) if part_of(asking(text)) is not Part.TRAINING)
    with pytest.raises(ConfigurationError, match="Add rows"):
        training_prompt(rows(tmp_path, [held_out]), 5)


def test_draw_of_a_data_set_passes_over_held_out_rows(tmp_path: Path) -> None:
    task = rows(tmp_path, list(map(str, range(100))))
    drawn = [training_prompt(task, seed) for seed in range(100)]
    assert all(part_of(prompt) is Part.TRAINING for prompt in drawn)
    assert {prompt.ref.seed for prompt in drawn} == {n for n in range(100) if part_of(asking(str(n))) is Part.TRAINING}


def test_data_set_without_held_out_rows_is_left_out(tmp_path: Path) -> None:
    teaches = next(text for text in map(str, range(1000)) if part_of(asking(text)) is Part.TRAINING)
    assert held_out_prompts({"rows": rows(tmp_path, [teaches])}, Part.TEST, 8) == {}


def test_rule_is_part_of_every_configuration_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = config_hash_of({"a": 1})
    monkeypatch.setattr("node.tasks.task.SPLIT", "starling/split/2")
    assert config_hash_of({"a": 1}) != before


@pytest.mark.parametrize("task", DEFAULT_TASKS, ids=lambda task: task.name)
def test_default_task_has_at_least_twenty_thousand_questions(task: ReasoningTask) -> None:
    found: set[str] = set()
    for seed in range(10 * QUESTIONS):
        found.add(normalised(task.prompt(task.ref(seed)).question_text))
        if len(found) >= QUESTIONS:
            return
    raise AssertionError(f"{task.name} has {len(found)} questions: training would cover most of them")
