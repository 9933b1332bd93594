"""Tasks: prompts are deterministic and short, references that do not fit are refused, scoring is safe on any text."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest
from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]

from node.configuration import TasksSection
from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.reasoning import SEEDS, ReasoningTask, render
from node.tasks.registry import default_manifest_tasks, load_tasks
from node.tasks.task import Task
from protocol.errors import ConfigurationError, MalformedError
from protocol.messages import PromptRef

HOSTILE = (
    "",
    "\x00" * 1000,
    "9" * 100_000,
    "[" * 10_000,
    "é\u202e\U0001f600",
    "__import__('os').abort()",
    "1/0",
    "nan",
)
SAPO_TASKS = {"basic_arithmetic", "fraction_simplification"}

every_task = pytest.mark.parametrize("task", DEFAULT_TASKS, ids=lambda task: task.name)


def first_answers(task: Task, count: int) -> list[str]:
    return [str(task.prompt(task.ref(seed)).answer) for seed in range(count)]


def test_the_default_swarm_has_six_tasks_two_of_them_sapos() -> None:
    names = {task.name for task in DEFAULT_TASKS}
    assert len(names) == len(DEFAULT_TASKS) >= 6
    assert names >= SAPO_TASKS
    assert set(load_tasks(TasksSection())) == names


@every_task
def test_equal_references_give_equal_prompts_in_any_order(task: ReasoningTask) -> None:
    fresh = replace(task)  # its own data set
    seeds = [5, 0, SEEDS - 1, 123_456_789, 5]
    forward = [task.prompt(task.ref(seed)) for seed in seeds]
    backward = [fresh.prompt(fresh.ref(seed)) for seed in reversed(seeds)][::-1]
    assert forward == backward
    assert forward[0] == forward[-1]


@every_task
def test_the_reference_answer_gets_full_marks_and_a_spoilt_one_none(task: ReasoningTask) -> None:
    for seed in range(200):
        prompt = task.prompt(task.ref(seed))
        assert prompt.answer is not None
        assert task.rewards(prompt, [prompt.answer, prompt.answer + "?", "?"]) == [1.0, 0.0, 0.0]


def test_numbers_that_are_wrong_by_one_are_not_sorted_right() -> None:
    task = next(task for task in DEFAULT_TASKS if task.name == "number_sorting")
    prompt = task.prompt(task.ref(0))
    assert prompt.answer is not None
    numbers = json.loads(prompt.answer)
    nearly = json.dumps([number + 1 for number in numbers], separators=(",", ":"))
    assert task.rewards(prompt, [prompt.answer, nearly]) == [1.0, 0.0]
    assert replace(task, is_exact=False).rewards(prompt, [nearly]) == [1.0]


@every_task
def test_prompts_and_answers_are_short(task: ReasoningTask) -> None:
    prompts = [task.prompt(task.ref(seed)) for seed in range(500)]
    assert max(len(prompt.text) for prompt in prompts) <= 24
    assert all(prompt.text.isascii() and prompt.text.endswith("=") for prompt in prompts)
    # A byte a token and the end-of-sequence token must fit.
    assert max(len(str(prompt.answer)) for prompt in prompts) + 1 <= task.max_new_tokens


@every_task
def test_no_constant_answer_is_right_one_time_in_ten(task: ReasoningTask) -> None:
    [(_, most)] = Counter(first_answers(task, 3000)).most_common(1)
    assert most / 3000 < 0.10


@every_task
def test_every_field_of_the_generator_is_spelt_out(task: ReasoningTask) -> None:
    known = {field.name for field in fields(DATASETS[task.generator][1])} - {"seed", "size"}
    assert set(task.generator_config) == known


@every_task
def test_hostile_completions_score_nothing(task: ReasoningTask) -> None:
    prompt = task.prompt(task.ref(1))
    assert task.rewards(prompt, HOSTILE) == [0.0] * len(HOSTILE)


@every_task
def test_scoring_never_evaluates_a_strangers_text(task: ReasoningTask) -> None:
    source = inspect.getsource(DATASETS[task.generator][0].score_answer)
    calls = [line for line in source.splitlines() if "eval(" in line or "exec(" in line or "parse_expr" in line]
    assert all('eval(entry["answer"])' in line for line in calls)  # the generator's own answer, never the completion


def test_a_generator_whose_scoring_nobody_read_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="binary_matrix"):
        ReasoningTask("x", 1, 8, "binary_matrix", {}, "{matrix}=")


@pytest.mark.parametrize(
    "change",
    [{"task": "other"}, {"version": 99}, {"config_hash": bytes(16)}, {"seed": SEEDS}, {"seed": 2**63 - 1}],
    ids=lambda change: next(iter(change)),
)
def test_a_reference_that_does_not_fit_is_malformed(change: dict[str, object]) -> None:
    task = DEFAULT_TASKS[0]
    good = task.ref(0)
    ref = PromptRef(**({name: getattr(good, name) for name in PromptRef.__struct_fields__} | change))
    with pytest.raises(MalformedError):
        task.prompt(ref)


def test_any_number_makes_a_reference_within_range() -> None:
    task = DEFAULT_TASKS[0]
    assert task.ref(SEEDS + 7) == task.ref(7)


def test_whatever_shapes_prompts_or_rewards_changes_the_hash() -> None:
    task = DEFAULT_TASKS[0]
    others = [
        replace(task, generator_config={**task.generator_config, "max_word_len": 7}),
        replace(task, question_template="{word}="),
        replace(task, answer_template="{word}"),
        replace(task, is_exact=False),
        replace(task, max_new_tokens=9),
        replace(task, generator="rotate_matrix"),
    ]
    assert len({other.config_hash for other in [task, *others]}) == len(others) + 1
    assert all(len(other.config_hash) == 16 for other in others)


def test_the_manifest_needs_neither_the_generators_nor_torch() -> None:
    code = (
        "import sys; from node.tasks.registry import default_manifest_tasks; import node.tasks.worker; "
        "tasks = default_manifest_tasks(); assert len(tasks) >= 6 and list(tasks) == sorted(tasks); "
        "assert not {'torch', 'transformers', 'reasoning_gym'} & set(sys.modules)"
    )
    root = Path(inspect.getfile(DEFAULT_TASKS[0].__class__)).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=120)
    assert [name for name, _, _ in default_manifest_tasks()] == sorted(task.name for task in DEFAULT_TASKS)


def test_prompts_and_rewards_import_a_few_generators_and_leave_the_library_whole_for_others() -> None:
    code = (
        "import sys; from node.tasks.default_swarm import DEFAULT_TASKS\n"
        "for task in DEFAULT_TASKS: task.rewards(prompt := task.prompt(task.ref(3)), [prompt.answer])\n"
        "assert not {'reasoning_gym', 'matplotlib', 'sympy', 'scipy'} & set(sys.modules)\n"
        "import reasoning_gym; assert reasoning_gym.create_dataset('leg_counting', size=1, seed=1)[0]['answer']\n"
        "assert reasoning_gym.factory.DATASETS.keys() >= {'spell_backward', 'game_of_life'}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_an_unknown_task_is_refused_naming_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="'spell_backward'"):
        load_tasks(TasksSection(names=("spell_backwards",)))


def test_a_task_named_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="spell_backward"):
        load_tasks(TasksSection(names=("spell_backward", "spell_backward")))


def test_templates_join_lists_by_the_separators_of_the_format() -> None:
    metadata = {"matrix": [[1, 2], [3, 4]], "numbers": ["7.0", "0.5"], "direction": "descending"}
    assert render("{matrix: /}|{matrix:}|{numbers:,}|{direction:.3}", metadata) == "1 2/3 4|1234|7,0.5|des"
    with pytest.raises(KeyError):
        render("{absent}", metadata)
