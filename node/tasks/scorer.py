"""Recomputes rewards in worker processes. If a reward function raises, hangs, dies or returns an invalid value, that
completion gets reward 0, the fault is counted by reason, and the run continues.

The time limit of a completion is enforced from outside: a worker that is silent for longer is killed, and a new one
continues with the next completion. Only plain MessagePack crosses the pipes. Workers start in the background when the
scorer is made, since they take a moment to load.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from node.configuration import TasksSection
from node.environments.conversation import Played
from node.tasks.worker import (
    PREFIX_BYTES,
    FaultReason,
    ScoringJob,
    ScoringVerdict,
    Setup,
    WorkerReady,
    WorkerRefused,
    body_length,
    frame,
)
from protocol.errors import ConfigurationError
from protocol.messages import PromptRef

STARTUP_SECONDS: Final = 120.0
CLOSE_SECONDS: Final = 2.0
_READ_BYTES: Final = 65_536
_STARTED: Final = WorkerReady | WorkerRefused


@dataclass(frozen=True, slots=True)
class ScoringFault:
    """Why a completion has no reward of its own; ``detail``, at most 200 characters, is for people and not trusted."""

    reason: FaultReason
    detail: str


@dataclass(frozen=True, slots=True)
class Scores:
    """One group's rewards, with a fault for each reward of 0 that did not come from the reward function."""

    rewards: tuple[float, ...]
    faults: tuple[ScoringFault | None, ...]
    played: tuple[Played | None, ...] = ()  # of conversations: what followed their actions, None where there is a fault


class _SilentError(Exception):
    """The worker sent nothing before the deadline."""


class _DiedError(Exception):
    """The worker closed its end of a pipe."""


class _Worker:
    """One worker process: started at once, awaited at its first job, replaced when it has ended."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "node.tasks.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        self._received = bytearray()
        self._ready = False
        with contextlib.suppress(_SilentError, _DiedError):  # _await_ready reports it
            self._send(self._setup, STARTUP_SECONDS)

    @property
    def pid(self) -> int:
        return self._process.pid

    def verdicts(self, ref: PromptRef, completions: Sequence[str]) -> Iterator[ScoringVerdict]:
        """Yields one verdict per completion, as soon as it is known. Raises ConfigurationError if no worker can be
        started."""
        encoded = [text.encode("utf-8", "replace") for text in completions]
        known = 0
        while known < len(encoded):
            if self._process.poll() is not None:
                self._replace()  # it ended between jobs, which is no completion's fault
            self._await_ready()
            limit = self._setup.completion_seconds
            try:
                self._send(ScoringJob(ref, encoded[known:]), limit)
                while known < len(encoded):
                    verdict = self._receive(ScoringVerdict, limit)
                    known += 1
                    yield verdict
            except _SilentError:
                self._replace()
                known += 1
                yield ScoringVerdict(0.0, FaultReason.TIMEOUT, f"no reward within {limit:g} s")
            except _DiedError:
                code = self._replace()
                known += 1
                yield ScoringVerdict(0.0, FaultReason.DIED, f"scoring ended its process (exit status {code})")

    def _await_ready(self) -> None:
        if self._ready:
            return
        try:
            answer: WorkerReady | WorkerRefused = self._receive(_STARTED, STARTUP_SECONDS)
        except (_SilentError, _DiedError) as error:
            self.kill()
            raise ConfigurationError(
                f"the scoring worker did not start (exit status {self._process.returncode}): "
                "its message is in the log; check the [tasks] section and its plug-ins"
            ) from error
        if isinstance(answer, WorkerRefused):
            self.kill()
            raise ConfigurationError(answer.reason)
        self._ready = True

    def _send(self, message: msgspec.Struct, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        rest = memoryview(frame(message))
        while rest:
            remaining = max(0.0, deadline - time.monotonic())
            if not select.select([], [self._stdin], [], remaining)[1]:
                raise _SilentError
            try:
                rest = rest[os.write(self._stdin.fileno(), rest) :]
            except BrokenPipeError:
                raise _DiedError from None

    def _receive(self, type_: Any, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        prefix = self._take(PREFIX_BYTES, deadline)
        return msgspec.msgpack.decode(self._take(body_length(prefix), deadline), type=type_)

    def _take(self, size: int, deadline: float) -> bytes:
        while len(self._received) < size:
            remaining = max(0.0, deadline - time.monotonic())
            if not select.select([self._stdout], [], [], remaining)[0]:
                raise _SilentError
            chunk = os.read(self._stdout.fileno(), _READ_BYTES)
            if not chunk:
                raise _DiedError
            self._received += chunk
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _replace(self) -> int:
        self.kill()
        code = self._process.returncode
        self._start()
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._stdin.close()
        self._stdout.close()

    def close(self) -> None:
        """Ends the worker by closing its stdin, and kills it if it does not end."""
        self._stdin.close()
        try:
            self._process.wait(CLOSE_SECONDS if self._ready else 0.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()


class Scorer:
    """Scores groups of completions in ``section.scoring_workers`` processes. A context manager; ``close`` ends them."""

    def __init__(self, section: TasksSection) -> None:
        self._setup = Setup(section.model_dump_json(), section.scoring_seconds)
        self._workers = [_Worker(self._setup) for _ in range(section.scoring_workers)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(len(self._workers), thread_name_prefix="scorer")
        self.fault_counts: Counter[FaultReason] = Counter()
        self._counting = threading.Lock()

    def score(self, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]:
        """Returns each prompt's scores, in order. Raises ConfigurationError if no worker can be started."""
        return list(self._threads.map(self._score_group, *zip(*items, strict=True))) if items else []

    def submit(self, ref: PromptRef, texts: Sequence[str]) -> list[Future[Scores]]:
        """Begins to score completions of one prompt, in equal parts by all workers, as soon as these are free. Each
        future has its result, or raises as ``score``, as soon as that is known."""
        futures = [Future[Scores]() for _ in texts]
        size = math.ceil(len(texts) / len(self._workers))
        for first in range(0, len(texts), size):
            part = slice(first, first + size)
            self._threads.submit(self._score_each, ref, texts[part], futures[part])
        return futures

    def _score_each(self, ref: PromptRef, texts: Sequence[str], futures: Sequence[Future[Scores]]) -> None:
        worker, waiting = self._idle.get(), deque(futures)
        try:
            for verdict in worker.verdicts(ref, texts):
                waiting.popleft().set_result(self._scores_of([verdict]))
        except Exception as error:  # noqa: BLE001 - whoever waits for the futures raises it
            for future in waiting:
                future.set_exception(error)
        finally:
            self._idle.put(worker)

    def _score_group(self, ref: PromptRef, texts: Sequence[str]) -> Scores:
        worker = self._idle.get()
        try:
            return self._scores_of(list(worker.verdicts(ref, texts)))
        finally:
            self._idle.put(worker)

    def _scores_of(self, verdicts: Sequence[ScoringVerdict]) -> Scores:
        faults = tuple(None if v.fault is None else ScoringFault(v.fault, v.detail) for v in verdicts)
        with self._counting:
            self.fault_counts.update(fault.reason for fault in faults if fault is not None)
        played = tuple(verdict.played for verdict in verdicts)
        rewards = tuple(verdict.reward for verdict in verdicts)
        return Scores(rewards, faults, played if any(each is not None for each in played) else ())

    def worker_pids(self) -> list[int]:
        """Returns the present process ids of the workers; a replacement has another id."""
        return [worker.pid for worker in self._workers]

    def close(self) -> None:
        """Waits for the jobs under way and ends every worker."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
