"""The scoring worker: a process that recomputes rewards, so that a failing reward function affects nothing else.

Frames on stdin and stdout are a big-endian u32 length and MessagePack. ``Setup`` comes first and is answered by
``WorkerReady`` when every task is loaded, or by ``WorkerRefused`` with the reason why one is not. Then each
``ScoringJob`` is answered by one ``ScoringVerdict`` for each completion, in order and as soon as it is known, so that
the parent sees which one hangs. The end of stdin ends the worker.

A timer with the default action of SIGALRM kills the worker if one completion takes far longer than the limit, even if
the parent is gone and the reward function hangs inside C. What reward functions print goes to stderr. The worker never
imports torch.
"""

from __future__ import annotations

import math
import os
import signal
import struct
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from node.configuration import TasksSection
from node.environments.conversation import ConversationTask, Played, actions_of, observation_fault
from node.tasks.jsonl import JsonlTask
from node.tasks.own_file import place_of
from node.tasks.registry import load_tasks
from node.tasks.task import Prompt, Task
from protocol.errors import ConfigurationError, ProtocolError
from protocol.limits import REWARD_MAGNITUDE
from protocol.messages import PromptRef

DETAIL_CHARACTERS: Final = 200
_LENGTH: Final = struct.Struct(">I")


class FaultReason(StrEnum):
    """Why a completion has no reward of its own."""

    RAISED = "raised"
    TIMEOUT = "timeout"
    NOT_FINITE = "not_finite"
    WRONG_TYPE = "wrong_type"
    OUT_OF_RANGE = "out_of_range"
    DIED = "died"  # the worker process ended while it scored this completion
    PROMPT = "prompt"  # this node's tasks have no prompt with this reference
    OBSERVATION = "observation"  # an environment answered with what is no text, or too long


class Setup(msgspec.Struct, tag="setup"):
    section_json: str
    completion_seconds: float


class ScoringJob(msgspec.Struct, tag="job"):
    ref: PromptRef
    completions: list[bytes]  # UTF-8


class WorkerReady(msgspec.Struct, tag="ready"):
    pass


class WorkerRefused(msgspec.Struct, tag="refused"):
    """The tasks cannot be used, and the worker ends. ``reason`` is for people."""

    reason: str


class ScoringVerdict(msgspec.Struct, tag="verdict"):
    reward: float
    fault: FaultReason | None = None
    detail: str = ""
    played: Played | None = None  # of a conversation


def frame(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def body_length(prefix: bytes) -> int:
    length: int = _LENGTH.unpack(prefix)[0]
    return length


PREFIX_BYTES: Final = _LENGTH.size


def judged(reward: object) -> ScoringVerdict:
    """Returns the verdict on a reward function's result: a finite number within bounds, or a named fault."""
    scalar = getattr(reward, "item", lambda: reward)()  # numpy's and torch's scalars
    if not isinstance(scalar, (int, float)):
        return ScoringVerdict(0.0, FaultReason.WRONG_TYPE, f"reward of type {type(reward).__name__}, wanted a number")
    if isinstance(scalar, float) and not math.isfinite(scalar):
        return ScoringVerdict(0.0, FaultReason.NOT_FINITE, f"reward {scalar}")
    if abs(scalar) > REWARD_MAGNITUDE:
        return ScoringVerdict(
            0.0, FaultReason.OUT_OF_RANGE, f"reward beyond the limit of {REWARD_MAGNITUDE:g} either way"
        )
    return ScoringVerdict(float(scalar))


def score_one(task: Task, prompt: Prompt, completion: str) -> ScoringVerdict:
    """Returns one completion's verdict. Anything that the reward function raises is a fault of this completion only."""
    try:
        if isinstance(task, ConversationTask):
            return _replayed(task, prompt, completion)
        rewards: Sequence[object] = task.rewards(prompt, [completion])
        if len(rewards) != 1:
            return ScoringVerdict(0.0, FaultReason.WRONG_TYPE, f"{len(rewards)} rewards for one completion")
        return judged(rewards[0])
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - a plug-in may raise anything
        place = place_of(error)
        where = "" if place is None else f"{Path(place).name}: "
        return ScoringVerdict(0.0, FaultReason.RAISED, f"{where}{type(error).__name__}: {error}"[:DETAIL_CHARACTERS])


def _replayed(task: ConversationTask, prompt: Prompt, completion: str) -> ScoringVerdict:
    actions = actions_of(completion)
    replayed = task.replay(prompt.ref, actions)
    verdict = ScoringVerdict(0.0)
    for observation, reward in zip(replayed.observations, replayed.rewards, strict=True):
        fault = observation_fault(task.environment, observation)
        if fault is not None:
            return ScoringVerdict(0.0, FaultReason.OBSERVATION, fault)
        verdict = judged(reward)
        if verdict.fault is None and not 0 <= verdict.reward <= 1:
            return ScoringVerdict(
                0.0, FaultReason.OUT_OF_RANGE, f"reward {verdict.reward:g} of a conversation, wanted 0 to 1"
            )
        if verdict.fault is not None:
            return verdict
    return msgspec.structs.replace(verdict, played=task.played(prompt.ref, actions, replayed))


def _receive(source: BinaryIO, type_: type[msgspec.Struct]) -> msgspec.Struct | None:
    prefix = source.read(PREFIX_BYTES)
    if len(prefix) < PREFIX_BYTES:
        return None
    body = source.read(body_length(prefix))
    return msgspec.msgpack.decode(body, type=type_)


def _arm(seconds: float) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # each time: a reward function may have set its own
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _answer(job: ScoringJob, tasks: dict[str, Task], guard_seconds: float, sink: BinaryIO) -> None:
    prompt: Prompt | None = None
    for raw in job.completions:
        _arm(guard_seconds)
        try:
            task = tasks.get(job.ref.task)
            if task is None:
                verdict = ScoringVerdict(0.0, FaultReason.PROMPT, f"no task {job.ref.task!r} here")
            else:
                prompt = prompt or task.prompt(job.ref)
                verdict = score_one(task, prompt, raw.decode("utf-8", "replace"))
        except ProtocolError as error:
            verdict = ScoringVerdict(0.0, FaultReason.PROMPT, str(error)[:DETAIL_CHARACTERS])
        _arm(0.0)
        sink.write(frame(verdict))
        sink.flush()


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answers one parent until ``source`` ends."""
    setup = _receive(source, Setup)
    if not isinstance(setup, Setup):
        return
    try:
        tasks = load_tasks(TasksSection.model_validate_json(setup.section_json))
        for task in tasks.values():
            task.prompt(task.ref(0))  # loads what the task needs before the first completion's time starts
            if isinstance(task, JsonlTask):
                task.load_reward()
    except ConfigurationError as error:
        sink.write(frame(WorkerRefused(str(error))))
        sink.flush()
        return
    sink.write(frame(WorkerReady()))
    sink.flush()
    while isinstance(job := _receive(source, ScoringJob), ScoringJob):
        _answer(job, tasks, 2 * setup.completion_seconds + 1.0, sink)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent ends the worker by closing its stdin
        signal.signal(number, signal.SIG_IGN)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as sink:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        serve(sys.stdin.buffer, sink)


if __name__ == "__main__":
    main()
