"""Generators with the owner's parameters: what a table may say, what is refused, and which nodes agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import node
from node.configuration import TasksSection
from node.configuration.sources import load_config
from node.tasks.generators import REFUSED
from node.tasks.parameters import BARE, GENERATORS, TABLE, TOKENS, generator_task
from node.tasks.registry import load_tasks
from node.tasks.task import Prompt
from node.tasks.worded import INSTRUCTION
from protocol.errors import ConfigurationError
from protocol.limits import NAME_BYTES

ROOT = Path(node.__file__).parents[1]
TOML = "[tasks.reasoning_gym.chain_sum]\nmin_terms = 2\nmax_terms = 2\nmax_new_tokens = 64\n"


def configured(home: Path, toml: str, **flags: str) -> TasksSection:
    (home / "node.toml").write_text(toml)
    return load_config(home, {}, {f"tasks.reasoning_gym.{key}": text for key, text in flags.items()}).tasks


def test_a_table_in_node_toml_is_a_task_and_then_the_only_one(tmp_path: Path) -> None:
    tasks = load_tasks(configured(tmp_path, TOML))
    assert list(tasks) == ["reasoning_gym:chain_sum"]
    task = tasks["reasoning_gym:chain_sum"]
    prompts = [task.prompt(task.ref(seed)) for seed in range(20)]
    assert task.max_new_tokens == 64
    assert all(len(prompt.text.split("\n")[0].split("+")) <= 2 for prompt in prompts)
    assert task.rewards(prompts[0], [f"<answer>{prompts[0].answer}</answer>", "<answer>?</answer>"]) == [1.0, 0.0]
    both = load_tasks(configured(tmp_path, f'tasks.names = ["default"]\n{TOML}'))
    assert len(both) == 7, "other tasks are trained on where they are asked for"


def test_parameters_may_come_from_flags_and_the_environment(tmp_path: Path) -> None:
    in_file = load_tasks(configured(tmp_path, TOML))
    (tmp_path / "elsewhere").mkdir()
    key = "tasks.reasoning_gym.chain_sum"
    flags = {f"{key}.min_terms": "2", f"{key}.max_terms": "2"}
    environment = {"STARLING_TASKS__REASONING_GYM__CHAIN_SUM__MAX_NEW_TOKENS": "64"}
    section = load_config(tmp_path / "elsewhere", environment, flags).tasks
    assert [t.config_hash for t in load_tasks(section).values()] == [t.config_hash for t in in_file.values()]


def test_nodes_with_the_same_parameters_agree_however_they_wrote_them() -> None:
    short = generator_task("chain_sum", {"min_terms": 2})
    same = [
        generator_task("chain_sum", {"min_terms": 2, "max_terms": 6}),  # the library's default, spelt out
        generator_task("chain_sum", {"max_terms": "6", "min_terms": "2"}),
    ]
    assert {task.config_hash for task in [short, *same]} == {short.config_hash}
    assert same[0].prompt(short.ref(7)).text == short.prompt(short.ref(7)).text
    whole, decimal = (generator_task("rotten_oranges", {"p_oranges": one}) for one in (1, 1.0))
    assert whole.config_hash == decimal.config_hash
    lists = [["plain"], ("plain",), '["plain"]', "plain"]
    hashes = {generator_task("fraction_simplification", {"styles": styles}).config_hash for styles in lists}
    assert len(hashes) == 1


def test_other_parameters_are_another_task() -> None:
    tables: list[dict[str, Any]] = [{}, {"min_terms": 3}, {"max_terms": 7}, {"max_new_tokens": 9}]
    assert len({generator_task("chain_sum", table).config_hash for table in tables}) == len(tables)


def test_a_bare_task_asks_the_question_alone_and_takes_the_whole_completion() -> None:
    worded, bare = generator_task("chain_sum", {}), generator_task("chain_sum", {"bare": "true"})
    prompt = bare.prompt(bare.ref(3))
    right = str(prompt.answer)
    assert worded.prompt(worded.ref(3)).text == prompt.text + INSTRUCTION
    assert worded.config_hash != bare.config_hash
    given = [right, f" {right}\n", f"<answer>{right}</answer>", f"{right} 1", ""]
    assert bare.rewards(prompt, given) == [1.0, 1.0, 1.0, 0.0, 0.0], "one number, whatever stands around it"
    assert [bare.is_canonical(prompt, text) for text in given] == [True, False, False, False, False]


def test_another_process_makes_the_same_questions_under_the_same_hash() -> None:
    """As a scoring worker does from the section that the learner sends it."""
    section = TasksSection(reasoning_gym={"group_anagrams": {"max_anagram_groups": 3}, "survo": {}})
    code = (
        "import sys; from node.configuration import TasksSection; from node.tasks.registry import load_tasks\n"
        "for t in load_tasks(TasksSection.model_validate_json(sys.argv[1])).values():\n"
        "    print(t.config_hash.hex(), ascii(t.prompt(t.ref(5)).text))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "99"}
    arguments = [sys.executable, "-c", code, section.model_dump_json()]
    there = subprocess.run(arguments, check=True, capture_output=True, env=environment, text=True).stdout
    tasks = load_tasks(section).values()
    assert there.splitlines() == [f"{t.config_hash.hex()} {t.prompt(t.ref(5)).text!a}" for t in tasks]


@pytest.mark.parametrize("generator", GENERATORS)
def test_every_generator_of_the_audit_takes_its_own_defaults(generator: str) -> None:
    task = generator_task(generator, {})
    assert len(task.name.encode()) <= NAME_BYTES
    assert not {TOKENS, BARE} & task.generator_config.keys(), "our own keys hide none of the generator's"
    assert task.prompt(task.ref(3)).text
    again = generator_task(generator, json.loads(json.dumps(dict(task.generator_config))))
    assert again.config_hash == task.config_hash


@pytest.mark.parametrize(
    ("generator", "table", "message"),
    [
        ("chain_sun", {}, "nearest is 'chain_sum'"),
        ("countdown", {}, f"not allowed: {REFUSED['countdown']}"),
        ("chain_sum", {"min_term": 2}, r"chain_sum\.min_term: .* nearest is 'min_terms'"),
        ("chain_sum", {"seed": 2}, r"no such parameter"),
        ("chain_sum", {"min_terms": 2.5}, r"min_terms = 2.5: wanted the type of its default, 2"),
        ("chain_sum", {"min_terms": "two"}, r"min_terms = 'two'"),
        ("chain_sum", {"allow_negation": 1}, r"allow_negation = 1"),
        ("chain_sum", {"min_terms": 9, "max_terms": 3}, "reasoning-gym refuses these parameters: .*max_terms"),
        ("chain_sum", {"max_new_tokens": 0}, "at least 1"),
        ("word_sorting", {"transformation": "upper"}, "wanted one of .*'uppercase'"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_with_its_remedy(
    generator: str, table: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        load_tasks(TasksSection(reasoning_gym={generator: table}))
    assert str(refused.value).startswith(f"{TABLE}.{generator}")


def test_a_seed_without_a_question_takes_the_next_so_that_no_peer_can_stop_a_node() -> None:
    task = generator_task("chain_sum", {})
    whole = task.dataset

    class Holes:
        def __getitem__(self, seed: int) -> Any:
            if seed % 3:
                raise ValueError("no puzzle with these parameters")
            return whole[seed]

    vars(task)["dataset"] = Holes()
    asked: Callable[[int], Prompt] = lambda seed: task.prompt(task.ref(seed))  # noqa: E731
    assert asked(4).text == asked(5).text == asked(6).text != asked(3).text
    vars(task)["dataset"] = []
    with pytest.raises(ConfigurationError, match=r"make no question.*choose others"):
        asked(0)
