"""Tasks for models that reason: the audit holds for every one, answers are found in tags, and sets name them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]

import node
from node.configuration import TasksSection
from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.generators import AUDITED, COMPARED, REFUSED
from node.tasks.reasoning_sets import PREFIX, REASONING_TASKS, SAPO_TASKS
from node.tasks.registry import default_manifest_tasks, load_tasks
from node.tasks.task import Prompt
from node.tasks.worded import ANSWER_CHARACTERS, INSTRUCTION, Scoring, WordedTask
from protocol.errors import ConfigurationError, MalformedError
from protocol.limits import NAME_BYTES

ROOT = Path(node.__file__).parents[1]
HOSTILE = ("", "\x00" * 100, "9" * 1999, "[" * 1999, "(" * 1999, "é\u202e\U0001f600", "__import__('os').abort()", "1/0")
HOSTILE_NUMBERS = ("nan", "inf", "-Infinity", "1e999999999", "1e-999999999", "0x" + "f" * 1900, "True", "a∧b∧c∧d")
SEEDS = [0, 5, 999_999, *range(100, 130)]

every_task = pytest.mark.parametrize("task", REASONING_TASKS, ids=lambda task: task.generator)


def right_answer(prompt: Prompt) -> str:
    """What the library says is right; a question with many right answers has an example."""
    if prompt.answer is not None:
        return prompt.answer
    example = prompt.entry["metadata"].get("example_answer") or prompt.entry["metadata"]["possible_answer"]
    return example if isinstance(example, str) else json.dumps(example)


def tagged(answer: str) -> str:
    return f"I think so.\n<answer>{answer}</answer>"


@every_task
def test_prompts_are_reproducible_in_any_order_and_right_answers_are_right(task: WordedTask) -> None:
    fresh = replace(task)  # its own data set
    backward = [fresh.prompt(fresh.ref(seed)) for seed in reversed(SEEDS)][::-1]
    prompts = [task.prompt(task.ref(seed)) for seed in SEEDS]
    assert prompts == backward
    assert all(prompt.text.endswith(INSTRUCTION) and len(prompt.text) < 2000 for prompt in prompts)
    answers = [right_answer(prompt) for prompt in prompts]
    assert max(map(len, answers)) < ANSWER_CHARACTERS / 4
    rewards = [task.rewards(prompt, [tagged(answer)])[0] for prompt, answer in zip(prompts, answers, strict=True)]
    if task.scoring is Scoring.PROPOSITION:  # some of its examples repeat a premise
        assert sum(rewards) > 0.75 * len(rewards)
    else:
        assert set(rewards) == {1.0}


@every_task
def test_an_answer_without_tags_or_of_another_question_is_wrong(task: WordedTask) -> None:
    prompts = [task.prompt(task.ref(seed)) for seed in SEEDS]
    first = right_answer(prompts[0])
    other = next(answer for answer in map(right_answer, prompts) if answer.casefold() != first.casefold())
    assert task.rewards(prompts[0], [first, f"<answer>{first}", f"{tagged(first)} {tagged('')}"]) == [0.0] * 3
    if task.scoring is not Scoring.PROPOSITION:  # a formula may follow from other premises too
        assert task.rewards(prompts[0], [tagged(other)]) == [0.0]


@every_task
def test_hostile_answers_are_wrong(task: WordedTask) -> None:
    prompt = next(p for p in (task.prompt(task.ref(seed)) for seed in SEEDS) if right_answer(p))
    answers = [*HOSTILE, *HOSTILE_NUMBERS, right_answer(prompt) + " " * ANSWER_CHARACTERS + "x"]
    assert task.rewards(prompt, [*answers, *map(tagged, answers)]) == [0.0] * 2 * len(answers)


@every_task
def test_no_constant_answer_is_right_more_than_three_times_in_ten(task: WordedTask) -> None:
    answers = [right_answer(task.prompt(task.ref(seed))).casefold() for seed in range(200)]
    [(_, most)] = Counter(answers).most_common(1)
    assert most / len(answers) <= 0.3


def test_names_are_unique_and_fit_the_wire_and_no_configuration_is_another_tasks() -> None:
    tasks = [*DEFAULT_TASKS, *REASONING_TASKS]
    assert len({task.name for task in tasks}) == len({task.config_hash for task in tasks}) == len(tasks)
    assert all(len(task.name.encode()) <= NAME_BYTES for task in tasks)
    assert all(task.name == PREFIX + task.generator for task in REASONING_TASKS)


def test_prompts_and_answers_are_the_same_in_every_process(tmp_path: Path) -> None:
    """Python hashes strings differently in every process, and some generators go through sets of them."""
    code = (
        "import hashlib, sys\nfrom node.tasks.reasoning_sets import REASONING_TASKS\n"
        "found = [t.prompt(t.ref(s)) for t in REASONING_TASKS for s in (0, 7, 123456)]\n"
        "assert not {'reasoning_gym', 'torch', 'matplotlib', 'sympy', 'scipy'} & set(sys.modules)\n"
        "print(hashlib.sha256(repr([(p.text, p.answer) for p in found]).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "4711"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment, cwd=tmp_path)
    here = [task.prompt(task.ref(seed)) for task in REASONING_TASKS for seed in (0, 7, 123456)]
    digest = hashlib.sha256(repr([(prompt.text, prompt.answer) for prompt in here]).encode()).hexdigest()
    assert done.stdout.decode() == digest + "\n", "and generating prints nothing"


def test_every_generator_of_the_audit_is_used_and_none_is_both_accepted_and_refused() -> None:
    used = {task.generator for task in (*DEFAULT_TASKS, *REASONING_TASKS)}
    assert used == AUDITED.keys() | COMPARED.keys()
    assert not (AUDITED.keys() & COMPARED.keys()) | (REFUSED.keys() & used)
    assert REFUSED.keys() | used == DATASETS.keys(), "every generator of the library was read"


def test_the_audit_is_of_the_installed_version() -> None:
    """With another version of the library every ``score_answer`` in ``AUDITED`` has to be read again."""
    from importlib.metadata import version

    assert version("reasoning-gym") == "0.1.25"


@pytest.mark.parametrize("generator", ["countdown", "coin_flip", "rush_hour", "rubiks_cube", "no_such_generator"])
def test_a_generator_outside_the_audit_is_refused(generator: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(REFUSED.get(generator, "has not been read"))):
        WordedTask("x", 1, 8, generator, {}, scoring=Scoring.LIBRARY)


def test_a_score_answer_that_evaluates_never_sees_a_strangers_text() -> None:
    with pytest.raises(ConfigurationError, match="binary_matrix"):
        WordedTask("x", 1, 8, "binary_matrix", {}, scoring=Scoring.LIBRARY)
    assert WordedTask("x", 1, 8, "binary_matrix", {}).scoring is Scoring.TEXT


def test_a_reference_to_another_task_is_malformed() -> None:
    first, second = REASONING_TASKS[:2]
    with pytest.raises(MalformedError):
        first.prompt(second.ref(0))
    gsm = next(task for task in REASONING_TASKS if task.generator == "gsm_symbolic")
    assert gsm.ref(gsm.seeds + 3) == gsm.ref(3)


def test_whatever_shapes_prompts_or_rewards_changes_the_hash() -> None:
    task = REASONING_TASKS[0]
    others = [
        replace(task, generator_config={"max_base": 8}),
        replace(task, generator="chain_sum"),
        replace(task, scoring=Scoring.NUMBER),
        replace(task, max_new_tokens=9),
        replace(task, seeds=9),
    ]
    assert len({other.config_hash for other in [task, *others]}) == len(others) + 1


# What stands in tasks.names


def test_sets_name_their_tasks_and_may_stand_beside_single_tasks() -> None:
    assert list(load_tasks(TasksSection(names=("sapo",)))) == [task.name for task in SAPO_TASKS]
    assert len(SAPO_TASKS) == 9
    assert len(load_tasks(TasksSection(names=("reasoning",)))) == len(REASONING_TASKS) >= 40
    mixed = load_tasks(TasksSection(names=("default", "reasoning:gcd")))
    assert list(mixed) == [*(task.name for task in DEFAULT_TASKS), "reasoning:gcd"]


def test_sets_that_share_a_task_and_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two tasks are called 'reasoning:base_conversion'"):
        load_tasks(TasksSection(names=("sapo", "reasoning")))
    with pytest.raises(ConfigurationError, match="'reasoning:gcd'"):
        load_tasks(TasksSection(names=("reasoning:gdc",)))


def test_the_default_swarm_is_what_it_was() -> None:
    """Its id is made of these: a change here parts every node from those that have not changed yet."""
    hashes = {name: config_hash.hex()[:8] for name, _, config_hash in default_manifest_tasks()}
    assert hashes == {
        "basic_arithmetic": "17219442",
        "fraction_simplification": "e77463d8",
        "number_filtering": "007421c0",
        "number_sorting": "e6c7d773",
        "rotate_matrix": "77f01c58",
        "spell_backward": "870654e8",
    }


def scored(generator: str, seed: int, *answers: str) -> list[float]:
    task = next(task for task in REASONING_TASKS if task.generator == generator)
    return task.rewards(task.prompt(task.ref(seed)), [tagged(answer) for answer in answers])


def test_generators_with_many_right_answers_take_any_of_them_and_no_nearly_right_one() -> None:
    """Of each generator that is scored by the library and parses JSON, letters or moves."""
    graph = next(task for task in REASONING_TASKS if task.generator == "graph_color")
    puzzle = graph.prompt(graph.ref(0)).entry["metadata"]["puzzle"]
    mixed = json.dumps({str(vertex): 1 for vertex in puzzle["vertices"]})
    assert scored("graph_color", 0, mixed, "[1, 1, 1, 1, 1, 1, 1, 1]", "{}", "[" * 1990) == [0.0] * 4
    colours = {int(v): c for v, c in graph.prompt(graph.ref(0)).entry["metadata"]["possible_answer"].items()}
    swapped = json.dumps({str(v): {1: 2, 2: 1}.get(c, c) for v, c in colours.items()})
    assert scored("graph_color", 0, swapped) == [1.0], "another colouring is right too"
    hanoi = next(task for task in REASONING_TASKS if task.generator == "tower_of_hanoi")
    moves = str(hanoi.prompt(hanoi.ref(0)).answer)
    assert scored("tower_of_hanoi", 0, moves, moves.rpartition("\n")[0], moves + "\n" + moves) == [1.0, 0.0, 0.0]
    jugs = next(task for task in REASONING_TASKS if task.generator == "jugs")
    steps = json.loads(str(jugs.prompt(jugs.ref(0)).answer))
    assert scored("jugs", 0, json.dumps(steps), json.dumps(steps[:-1]), json.dumps(["fill A"] * 150)) == [1, 0, 0]
    assert scored("quantum_lock", 0, "A" * 1999, "B" * 1999, "C" * 1999, "D") == [0.0] * 4
