"""A reward from the owner's own file: it runs where scores are computed alone, and errors say file and line."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from node.configuration import TasksSection
from node.configuration.published import shaping_configuration
from node.tasks.catalogue import judge
from node.tasks.jsonl import JsonlTask
from node.tasks.own_file import FILE_BYTES
from node.tasks.registry import load_tasks
from node.tasks.reward_file import RewardFile
from node.tasks.scorer import Scorer
from node.tasks.worker import FaultReason, Setup, WorkerRefused, frame, serve
from protocol.errors import ConfigurationError
from tests.hang_guard import HANG_SECONDS

CLOSE = """\
import os
with open(os.environ["REWARD_RAN"], "a") as ran: ran.write(f"{os.getpid()} ")

def close(prompts, completions, answer, **columns):
    return [1 / (1 + abs(int(text) - right)) for text, right in zip(completions, answer)]

def hang(prompts, completions, **columns):
    while True:
        pass
"""


@pytest.fixture
def section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TasksSection:
    """Two sums that ``close`` scores."""
    monkeypatch.setenv("REWARD_RAN", str(tmp_path / "ran"))
    rows = [{"prompt": "1+1=", "answer": 2}, {"prompt": "20+22=", "answer": 42}]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "reward.py").write_text(CLOSE)
    return TasksSection(jsonl=(tmp_path / "sums.jsonl",), jsonl_reward=f"{tmp_path / 'reward.py'}:close")


def loaded(section: TasksSection) -> JsonlTask:
    [task] = load_tasks(section).values()
    assert isinstance(task, JsonlTask)
    return task


@pytest.mark.processes
def test_the_file_runs_in_the_scoring_worker_alone_and_an_error_names_its_line(
    section: TasksSection, tmp_path: Path
) -> None:
    task = loaded(section)
    with Scorer(section.model_copy(update={"scoring_seconds": HANG_SECONDS})) as scorer:
        [scores] = scorer.score([(task.ref(1), ["42", "41", "many"])])
        [worker] = scorer.worker_pids()
    assert scores.rewards == (1.0, 0.5, 0.0)
    fault = scores.faults[2]
    assert fault is not None
    assert fault.reason is FaultReason.RAISED
    assert fault.detail.startswith("reward.py, line 5: ValueError: invalid literal")
    assert (tmp_path / "ran").read_text().split() == [str(worker)] != [str(os.getpid())]


@pytest.mark.processes
def test_a_function_that_hangs_costs_its_completion_and_no_more(section: TasksSection) -> None:
    hanging = section.model_copy(
        update={"jsonl_reward": section.jsonl_reward.replace(":close", ":hang"), "scoring_seconds": 0.2}
    )
    with Scorer(hanging) as scorer:
        [scores] = scorer.score([(loaded(hanging).ref(0), ["2"])])
    assert [fault.reason for fault in scores.faults if fault] == [FaultReason.TIMEOUT]


def test_loading_the_tasks_runs_nothing_of_the_file(section: TasksSection, tmp_path: Path) -> None:
    assert loaded(section).reward_name == "reward.py:close"
    assert not (tmp_path / "ran").exists()
    assert judge(loaded(section), 1, "43").reward == 0.5
    assert (tmp_path / "ran").exists()


def test_nodes_agree_if_the_file_says_the_same_wherever_it_lies(section: TasksSection, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    elsewhere = tmp_path / "there" / "renamed.py"
    elsewhere.write_text(CLOSE)

    def hash_with(reward: str) -> bytes:
        return loaded(section.model_copy(update={"jsonl_reward": reward})).config_hash

    here = loaded(section).config_hash
    assert hash_with(f"{elsewhere}:close") == here
    assert hash_with(f"{elsewhere}:hang") != here
    elsewhere.write_text(CLOSE + "\n")
    assert hash_with(f"{elsewhere}:close") != here


@pytest.mark.parametrize(
    ("source", "function", "message"),
    [
        ("def f(:\n", "f", r"reward\.py, line 1: invalid syntax"),
        ("\n\nreturn 3\n", "f", r"reward\.py, line 3: 'return' outside function"),
        ("\x00", "f", "not Python|null bytes"),
        ("def close(): pass\n", "clsoe", "no function 'clsoe': the nearest name there is 'close'"),
        ("", "f", "defines nothing"),
        ("async def f(): pass\n", "f", "line 1: f is async"),
        ("def f(): pass\n", "", 'names no function: write "FILE.py:FUNCTION"'),
        ("#" * (FILE_BYTES + 1), "f", "the limit is"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_before_it_runs(
    tmp_path: Path, source: str, function: str, message: str
) -> None:
    path = tmp_path / "reward.py"
    path.write_text(source)
    with pytest.raises(ConfigurationError, match=message):
        RewardFile.read(f"{path}:{function}")


def test_a_missing_file_and_a_file_without_a_function_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no file .*absent\.py"):
        RewardFile.read(f"{tmp_path / 'absent.py'}:f")
    with pytest.raises(ConfigurationError, match=r"no file"):
        RewardFile.read("http://127.0.0.1/reward.py:f")
    with pytest.raises(ConfigurationError, match="names no function"):
        RewardFile.read("reward.py")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f(): pass\n\n1 / 0\n", r"reward\.py, line 3: ZeroDivisionError"),
        ("import no_such_module_at_all as f\n", r"reward\.py, line 1: ModuleNotFoundError"),
        ("raise SystemExit(3)\ndef f(): pass\n", r"reward\.py, line 1: SystemExit"),
        ("f = 3\n", "f of .* is a int, not a function"),
    ],
)
def test_a_file_that_fails_while_it_runs_is_told_by_the_worker_before_the_first_score(
    section: TasksSection, tmp_path: Path, source: str, message: str
) -> None:
    (tmp_path / "reward.py").write_text(source)
    failing = section.model_copy(update={"jsonl_reward": f"{tmp_path / 'reward.py'}:f"})
    sink = io.BytesIO()
    serve(io.BytesIO(frame(Setup(failing.model_dump_json(), 1.0))), sink)
    with pytest.raises(ConfigurationError, match=message) as told:
        loaded(failing).load_reward()
    assert sink.getvalue() == frame(WorkerRefused(str(told.value)))


def test_folders_of_this_machine_are_not_published(section: TasksSection) -> None:
    published = shaping_configuration({"tasks": section.model_dump(mode="json")})["tasks"]
    assert (published["jsonl"], published["jsonl_reward"]) == (["sums.jsonl"], "reward.py:close")
