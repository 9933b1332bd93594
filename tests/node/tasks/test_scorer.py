"""The scorer: a reward function that raises, hangs, dies or returns an invalid value affects one completion only."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import msgspec
import pytest

import node
from node.configuration import TasksSection
from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.registry import load_tasks
from node.tasks.scorer import Scorer, Scores
from node.tasks.task import Prompt
from node.tasks.worker import (
    FaultReason,
    ScoringJob,
    ScoringVerdict,
    Setup,
    WorkerReady,
    frame,
    judged,
    score_one,
    serve,
)
from protocol.errors import ConfigurationError
from protocol.messages import PromptRef
from tests.hang_guard import HANG_SECONDS

ROOT = Path(node.__file__).parents[1]

REWARD_PLUGIN = r"""
import os, re, signal, time

def obey(prompts, completions, **columns):
    return [act(text) for text in completions]

def act(text):
    if text == "raise":
        raise ValueError("as asked")
    if text == "exit":
        raise SystemExit(3)
    if text == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if text == "sleep":
        time.sleep(3600)
    if text == "hang in C":
        open(os.environ["HANGING_MARK"], "w").close()
        re.match(r"(a*)*b", "a" * 64)
    if text == "nan":
        return float("nan")
    if text == "text":
        return "1.0"
    if text == "none":
        return None
    if text == "huge":
        return 1e9
    if text == "print":
        print("x" * 100_000)
    return 0.5
"""


class FixedRewards:
    """A task with the given rewards."""

    name = "fixed"
    version = 1
    config_hash = bytes(16)
    max_new_tokens = 8

    def __init__(self, *rewards: object) -> None:
        self._rewards = rewards

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, self.version, self.config_hash, seed)

    def prompt(self, ref: PromptRef) -> Prompt:
        return Prompt(ref, "", None, {})

    def rewards(self, prompt: Prompt, completions: object) -> list[float]:
        return list(self._rewards)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reward", "fault"),
    [
        (0.25, None),
        (1, None),
        (True, None),
        (float("nan"), FaultReason.NOT_FINITE),
        (float("-inf"), FaultReason.NOT_FINITE),
        (1e6, FaultReason.OUT_OF_RANGE),
        (10**400, FaultReason.OUT_OF_RANGE),
        ("1.0", FaultReason.WRONG_TYPE),
        (None, FaultReason.WRONG_TYPE),
        ([1.0], FaultReason.WRONG_TYPE),
    ],
    ids=str,
)
def test_only_a_finite_number_within_bounds_is_a_reward(reward: object, fault: FaultReason | None) -> None:
    verdict = judged(reward)
    assert verdict.fault is fault
    assert verdict.reward == (float(reward) if fault is None else 0.0)  # type: ignore[arg-type]


def test_a_task_that_returns_another_number_of_rewards_gives_none() -> None:
    task = FixedRewards(1.0, 1.0)
    assert score_one(task, task.prompt(task.ref(0)), "x").fault is FaultReason.WRONG_TYPE


def served(*messages: msgspec.Struct) -> list[ScoringVerdict]:
    """Returns a worker's answers to these messages, after ``WorkerReady``, run in this process."""
    sink = io.BytesIO()
    serve(io.BytesIO(b"".join(frame(message) for message in messages)), sink)
    raw, answers = sink.getvalue(), []
    while raw:
        size = int.from_bytes(raw[:4], "big")
        answers.append(raw[4 : 4 + size])
        raw = raw[4 + size :]
    msgspec.msgpack.decode(answers[0], type=WorkerReady)
    return [msgspec.msgpack.decode(answer, type=ScoringVerdict) for answer in answers[1:]]


def test_a_reference_that_does_not_fit_faults_its_completions_and_the_next_job_is_served() -> None:
    task = DEFAULT_TASKS[0]
    good = task.ref(3)
    answer = str(task.prompt(good).answer).encode()
    verdicts = served(
        Setup(TasksSection().model_dump_json(), 60.0),
        ScoringJob(PromptRef("no such task", 1, bytes(16), 0), [b"x", b"y"]),
        ScoringJob(PromptRef(task.name, task.version, bytes(16), 0), [b"x"]),
        ScoringJob(good, [answer, b"\xff\xfe"]),
    )
    assert [verdict.fault for verdict in verdicts] == [FaultReason.PROMPT] * 3 + [None] * 2
    assert [verdict.reward for verdict in verdicts[3:]] == [1.0, 0.0]


# Real worker processes


def faults_of(scores: Scores) -> list[str | None]:
    return [None if fault is None else fault.reason.value for fault in scores.faults]


@pytest.fixture
def obeying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TasksSection:
    """A data set whose reward plug-in does what the completion says."""
    site = tmp_path / "site"
    metadata = site / "obeying_plugin_under_test-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "obeying_plugin_under_test.py").write_text(REWARD_PLUGIN)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: obeying-plugin-under-test\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[starling.rewards]\nobey = obeying_plugin_under_test:obey\n")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": "do"}))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(ROOT)]))
    monkeypatch.syspath_prepend(site)
    return TasksSection(names=("basic_arithmetic",), jsonl=(rows,), jsonl_reward="obey", scoring_seconds=2.0)


@pytest.fixture
def scorer(obeying: TasksSection) -> Iterator[Scorer]:
    with Scorer(obeying) as scorer:
        yield scorer


@pytest.mark.processes
def test_each_kind_of_failure_costs_its_completion_alone(obeying: TasksSection, scorer: Scorer) -> None:
    ref = load_tasks(obeying)["rows"].ref(0)
    completions = ["fine", "raise", "nan", "text", "none", "huge", "exit", "print", "die", "fine", "sleep", "fine"]
    [scores] = scorer.score([(ref, completions)])
    assert faults_of(scores) == [
        None,
        "raised",
        "not_finite",
        "wrong_type",
        "wrong_type",
        "out_of_range",
        "raised",
        None,
        "died",
        None,
        "timeout",
        None,
    ]
    assert scores.rewards == (0.5, 0, 0, 0, 0, 0, 0, 0.5, 0, 0.5, 0, 0.5)
    assert scorer.fault_counts[FaultReason.WRONG_TYPE] == 2
    assert scorer.fault_counts.total() == 8


@pytest.mark.processes
def test_groups_are_scored_side_by_side_and_returned_in_order(obeying: TasksSection) -> None:
    task = load_tasks(obeying)["basic_arithmetic"]
    refs = [task.ref(seed) for seed in range(20)]
    answers = [str(task.prompt(ref).answer) for ref in refs]
    with Scorer(obeying.model_copy(update={"scoring_workers": 2})) as scorer:
        scores = scorer.score([(ref, [answer, "x" * 300_000]) for ref, answer in zip(refs, answers, strict=True)])
        assert [score.rewards for score in scores] == [(1.0, 0.0)] * 20
        assert scorer.score([]) == []
        assert scorer.score([(refs[0], [])]) == [Scores((), ())]
    assert not scorer.fault_counts


@pytest.mark.processes
def _noted(ended: list[str], text: str, _: Future[Scores]) -> None:
    ended.append(text)


def test_one_that_hangs_keeps_no_other_waiting_where_there_are_two_workers(obeying: TasksSection) -> None:
    ref, ended = load_tasks(obeying)["rows"].ref(0), list[str]()
    with Scorer(obeying.model_copy(update={"scoring_workers": 2})) as scorer:
        scorer.score([(ref, ["fine"])] * 8)  # both workers have started
        texts = ("fine", "sleep", "none", "fine")  # two for each worker
        futures = scorer.submit(ref, texts)
        for text, future in zip(texts, futures, strict=True):
            future.add_done_callback(partial(_noted, ended, text))
        assert [faults_of(future.result()) for future in futures] == [[None], ["timeout"], ["wrong_type"], [None]]
        assert ended[-1] == "sleep"
        assert scorer.fault_counts.total() == 2


@pytest.mark.processes
def test_a_worker_killed_between_jobs_is_replaced_at_the_next(obeying: TasksSection, scorer: Scorer) -> None:
    ref = load_tasks(obeying)["rows"].ref(0)
    assert scorer.score([(ref, ["fine"])]) == [Scores((0.5,), (None,))]
    [pid] = scorer.worker_pids()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    [scores] = scorer.score([(ref, ["fine", "fine"])])
    assert scores.rewards == (0.5, 0.5)
    assert faults_of(scores) == [None, None]
    assert scorer.worker_pids() != [pid]


@pytest.mark.processes
def test_a_worker_that_cannot_load_its_tasks_is_a_configuration_error(tmp_path: Path) -> None:
    section = TasksSection(jsonl=(tmp_path / "absent.jsonl",))
    with Scorer(section) as scorer, pytest.raises(ConfigurationError, match=r"absent\.jsonl cannot be read"):
        scorer.score([(DEFAULT_TASKS[0].ref(0), ["x"])])


@pytest.mark.processes
def test_closing_ends_every_worker(obeying: TasksSection) -> None:
    with Scorer(obeying.model_copy(update={"scoring_workers": 2})) as scorer:
        pids = scorer.worker_pids()
        assert len(pids) == 2
        assert all(is_alive(pid) for pid in pids)
    assert not any(is_alive(pid) for pid in pids)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


PARENT = """
import sys
from node.configuration import TasksSection
from node.tasks.registry import load_tasks
from node.tasks.scorer import Scorer

section = TasksSection.model_validate_json(sys.argv[1])
ref = load_tasks(section)["rows"].ref(0)
with Scorer(section) as scorer:
    scorer.score([(ref, ["fine"])])
    print(scorer.worker_pids()[0], flush=True)
    scorer.score([(ref, [sys.argv[2]])])
    sys.stdin.read()
"""


@pytest.mark.processes
@pytest.mark.parametrize("completion", ["fine", "hang in C"])
def test_parent_killed_and_the_worker_ends_by_itself(
    obeying: TasksSection, completion: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "hanging"
    monkeypatch.setenv("HANGING_MARK", str(mark))
    section = obeying.model_copy(update={"scoring_seconds": 1.0})
    command = [sys.executable, "-c", PARENT, section.model_dump_json(), completion]
    deadline = time.monotonic() + HANG_SECONDS
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        while completion == "hang in C" and not mark.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        parent.kill()
        parent.wait()
    while is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(worker)
