"""The learner's calls to the swarm process, one after another on one thread that owns the client.

``RolloutIntake`` asks for groups on this thread; what the node shares and reports goes out on it between two questions.
Neither keeps the learner waiting. The number of waiting calls is bounded, and a call that fails is a fault for the
round's report.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, TypeVar

from protocol.errors import OversizedError, StarlingError, StorageError, TransportError
from protocol.messages import Heartbeat
from protocol.rollouts import Group
from swarm.api import Fetched, Judgement, PeerStatus, SeenGroup, SwarmStatus, Wanted

MAX_WAITING_CALLS = 256  # while the swarm process is silent
MAX_LAST_CALLS_SECONDS = 2.0  # for waiting calls to be done when the learner ends
MIN_SECONDS_BETWEEN_SHARES = 0.2  # half the rate of announcements that peers accept from one sender
MIN_SECONDS_BETWEEN_HEARTBEATS = 0.5

T = TypeVar("T")


class Swarm(Protocol):
    """What is used of ``swarm.client.SwarmClient``."""

    def status(self) -> SwarmStatus: ...
    def peers(self) -> Sequence[PeerStatus]: ...
    def share(self, groups: Sequence[Group]) -> None: ...
    def seen_groups(self, after: int, limit: int) -> list[SeenGroup]: ...
    def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> list[Fetched]: ...
    def beat(self, heartbeat: Heartbeat) -> None: ...
    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None: ...


class SwarmCalls:
    """The thread, and what goes out on it. All methods but ``settle`` and ``close`` return at once.

    ``swarm`` is None for a node without a swarm process; then every report is dropped.
    """

    def __init__(self, swarm: Swarm | None, clock: Callable[[], float]) -> None:
        self._swarm, self._clock = swarm, clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="swarm-calls")
        self._waiting: list[Future[None]] = []
        self._faults: list[StarlingError] = []
        self._faults_lock = threading.Lock()
        self._shared_at_seconds = self._beaten_at_seconds = -math.inf

    def may_share(self) -> bool:
        """Whether groups can be announced now: there is a swarm process, and the last announcement is long enough ago.

        A node whose rounds are shorter than ``MIN_SECONDS_BETWEEN_SHARES`` skips rounds: peers would refuse the rest.
        """
        return self._swarm is not None and elapsed(
            self._clock(), since_seconds=self._shared_at_seconds, interval_seconds=MIN_SECONDS_BETWEEN_SHARES
        )

    def share(self, groups: Sequence[Group]) -> None:
        """Announces groups to the swarm."""
        self._shared_at_seconds = self._clock()
        self._send(lambda swarm: swarm.share(groups))

    def beat(self, heartbeat: Heartbeat) -> None:
        """Sets the node's next heartbeat, unless that was done less than ``MIN_SECONDS_BETWEEN_HEARTBEATS`` ago."""
        now_seconds = self._clock()
        if elapsed(now_seconds, since_seconds=self._beaten_at_seconds, interval_seconds=MIN_SECONDS_BETWEEN_HEARTBEATS):
            self._beaten_at_seconds = now_seconds
            self._send(lambda swarm: swarm.beat(heartbeat))

    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None:
        """Reports what checking a peer's group showed."""
        self._send(lambda swarm: swarm.judge(peer, blob, judgement, detail))

    def ask(self, question: Callable[[Swarm], T]) -> Future[T] | None:
        """Starts a question on the thread; None without a swarm process. The caller handles what it raises."""
        return self._thread.submit(question, self._swarm) if self._swarm is not None else None

    def note(self, fault: StarlingError) -> None:
        """Keeps a fault for ``faults``. May be called from any thread."""
        with self._faults_lock:
            self._faults.append(fault)

    def faults(self) -> list[StarlingError]:
        """Returns what went wrong since the last call, oldest first. Raises the exception of a bug of ours."""
        finished = [future for future in self._waiting if future.done()]
        self._waiting = [future for future in self._waiting if future not in finished]
        for future in finished:
            future.result()
        with self._faults_lock:
            faults, self._faults = self._faults, []
        return faults

    def settle(self, limit_seconds: float, *also: Future[Any]) -> None:
        """Waits until all reports, and the questions ``also``, have been answered, for at most ``limit_seconds``."""
        wait([*self._waiting, *also], timeout=limit_seconds)

    def close(self, *also: Future[Any]) -> None:
        """Gives waiting calls ``MAX_LAST_CALLS_SECONDS`` to be done, drops the rest, and ends the thread."""
        self.settle(MAX_LAST_CALLS_SECONDS, *also)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _send(self, call: Callable[[Swarm], None]) -> None:
        if self._swarm is None:
            return
        if sum(not future.done() for future in self._waiting) >= MAX_WAITING_CALLS:
            self.note(TransportError(f"{MAX_WAITING_CALLS} calls wait for the swarm process: this one is dropped"))
            return
        self._waiting.append(self._thread.submit(self._guarded, call, self._swarm))

    def _guarded(self, call: Callable[[Swarm], None], swarm: Swarm) -> None:
        try:
            call(swarm)
        except (TransportError, StorageError, OversizedError) as error:  # the next round reports it and tries again
            self.note(error)


def elapsed(now_seconds: float, *, since_seconds: float, interval_seconds: float) -> bool:
    """Whether an interval is over, or the clock was set back during it."""
    return not 0 <= now_seconds - since_seconds < interval_seconds
