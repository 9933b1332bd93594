"""Plug-ins: the examples of docs/plugins.md load and score, and the public surface is the documented one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import starling.plugins
from node.cli.tasks_text import list_lines
from node.configuration import TasksSection
from node.tasks.catalogue import summaries
from node.tasks.matching import reward_function
from node.tasks.plugins import task_names
from node.tasks.registry import load_tasks
from node.tasks.scorer import Scorer
from node.tasks.worker import score_one
from protocol.errors import ConfigurationError, MalformedError
from starling.plugins import PromptRef, Task

ROOT = Path(starling.plugins.__file__).parents[1]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")


TASKS_PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")


def blocks(language: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def install(site: Path, module: str, source: str, entry_points: dict[str, dict[str, str]]) -> None:
    """A module and its metadata in ``site``, as an installer leaves them."""
    metadata = site / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / f"{module}.py").write_text(source)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    sections = [[f"[{group}]", *(f"{n} = {v}" for n, v in names.items())] for group, names in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(line for section in sections for line in section) + "\n")


@pytest.fixture
def page_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TasksSection:
    """The page's package, installed, its data set, and the configuration that uses both."""
    site = tmp_path / "site"
    [project] = blocks("toml")
    [row] = blocks("json")
    install(site, "my_starling_plugins", "\n".join(blocks("python")), tomllib.loads(project)["project"]["entry-points"])
    (tmp_path / "sums.jsonl").write_text(row)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
    return TasksSection(names=("letters",), jsonl=(tmp_path / "sums.jsonl",), jsonl_reward="closeness")


def test_the_pages_reward_and_task_load_and_judge(page_section: TasksSection) -> None:
    tasks = load_tasks(page_section)
    assert set(tasks) == {"letters", "sums"}
    sums = tasks["sums"].prompt(tasks["sums"].ref(0))
    assert tasks["sums"].rewards(sums, ["56", "57", "no number"]) == [1.0, 0.5, 0.0]
    letters = tasks["letters"]
    prompt = letters.prompt(letters.ref(1_000_003))
    assert prompt == letters.prompt(letters.ref(3))
    assert prompt.answer is not None
    assert letters.rewards(prompt, [prompt.answer, "?"]) == [1.0, 0.0]
    with pytest.raises(MalformedError):
        letters.prompt(PromptRef("letters", 2, letters.config_hash, 3))


@pytest.mark.processes
def test_the_pages_reward_and_task_are_scored_by_workers(page_section: TasksSection) -> None:
    tasks = load_tasks(page_section)
    ref = tasks["letters"].ref(3)
    with Scorer(page_section) as scorer:
        letters, sums = scorer.score(
            [(ref, [str(tasks["letters"].prompt(ref).answer), "?"]), (tasks["sums"].ref(0), ["56", "57"])]
        )
    assert letters.rewards == (1.0, 0.0)
    assert sums.rewards == (1.0, 0.5)


def test_the_public_surface_is_documented_whole_and_needs_no_torch(page_section: TasksSection) -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)) == set(starling.plugins.__all__)
    assert all(hasattr(starling.plugins, name) for name in starling.plugins.__all__)
    task: Task = load_tasks(page_section)["letters"]
    assert {name for name in dir(Task) if not name.startswith("_")} <= set(dir(task))
    code = "import sys, starling.plugins; assert not {'torch', 'transformers', 'reasoning_gym'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("package", ["protocol", "swarm", "node", "starling"])
def test_every_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


# Plug-ins that cannot be used

SOURCE = """
from dataclasses import replace
from node.tasks.default_swarm import DEFAULT_TASKS

def make_echo():
    return replace(DEFAULT_TASKS[0], name="echo")

def make_wrong():
    return replace(DEFAULT_TASKS[0], name="something else")

def make_broken():
    raise OSError("no such thing")

constant = 3
"""
ENTRY_POINTS: dict[str, Any] = {
    "starling.rewards": {name: f"plugin_under_test:{name}" for name in ("constant", "absent")},
    "starling.tasks": {name: f"plugin_under_test:make_{name}" for name in ("echo", "wrong", "broken")},
}


@pytest.fixture
def installed_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", "plugin_under_test", SOURCE, ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path / "site")


@pytest.mark.usefixtures("installed_plugin")
def test_an_installed_task_is_found_by_its_name() -> None:
    assert set(load_tasks(TasksSection(names=("echo", "basic_arithmetic")))) == {"echo", "basic_arithmetic"}


@pytest.mark.usefixtures("installed_plugin")
def test_listing_the_tasks_names_plugins_and_imports_those_alone_that_are_configured() -> None:
    listed = summaries(TasksSection(names=("echo",)))
    assert [(each.name, each.scoring) for each in listed if each.configured] == [("echo", "reasoning-gym, audited")]
    assert not {"broken", "wrong"} & {each.name for each in listed}
    assert "broken" in list(list_lines(listed, task_names()))[-1]


@pytest.mark.usefixtures("installed_plugin")
@pytest.mark.parametrize(
    ("name", "message"), [("wrong", "something else"), ("broken", "no such thing"), ("ecko", "'echo'")]
)
def test_an_unusable_task_plugin_is_a_configuration_error(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_tasks(TasksSection(names=(name,)))


@pytest.mark.usefixtures("installed_plugin")
@pytest.mark.parametrize(
    ("name", "message"), [("constant", "int"), ("absent", "AttributeError"), ("constent", "'constant'")]
)
def test_an_unusable_reward_plugin_is_a_configuration_error(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        reward_function(name)


def test_the_reward_file_of_the_page_about_tasks_judges_as_it_says(tmp_path: Path) -> None:
    reward, _ = blocks("python", TASKS_PAGE)
    (tmp_path / "reward.py").write_text(reward)
    (tmp_path / "sums.jsonl").write_text('{"prompt": "7*8=", "answer": 56}')
    section = TasksSection(jsonl=(tmp_path / "sums.jsonl",), jsonl_reward=f"{tmp_path / 'reward.py'}:close")
    [task] = load_tasks(section).values()
    prompt = task.prompt(task.ref(0))
    assert task.rewards(prompt, ["56", " 55\n", "5" * 400_000, "-1", "\u00b2", ""]) == [1.0, 0.5, 0.0, 0.0, 0.0, 0.0]


def test_the_plug_in_of_fifteen_lines_is_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, source = blocks("python", TASKS_PAGE)
    *_, project = blocks("toml", TASKS_PAGE)
    assert len([line for line in source.splitlines() if line.strip()]) <= 15
    install(tmp_path, "my_tasks", source, tomllib.loads(project)["project"]["entry-points"])
    monkeypatch.syspath_prepend(tmp_path)
    [task] = load_tasks(TasksSection(names=("reverse",))).values()
    prompt = task.prompt(task.ref(7))
    assert prompt.text.startswith("reverse ")
    assert task.rewards(prompt, [str(prompt.answer), prompt.text]) == [1.0, 0.0]
    assert score_one(task, prompt, str(prompt.answer)).fault is None
