"""The learner's side of the swarm: everything that may wait for a socket or a peer, on one thread of its own.

``begin`` starts looking for foreign groups, ``collect`` takes what has arrived; between the two the learner generates,
so that a round waits for the network only as long as it chooses to. Groups that come late are used a round later.
Without a swarm process, or when it is gone, nothing arrives and the reason is given; each round tries again.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from node.configuration import LearnerSection, ResearchSection
from node.learner.allocation.peer_success import Announced, announced_success
from node.learner.foreign.foreign_choice import DEFAULT_RESEARCH, choose
from node.learner.foreign.outcomes import Decided
from node.learner.foreign.replay import ForeignChoice, ReplayPool
from node.tasks.task import Task
from protocol.errors import OversizedError, ProtocolError, StarlingError, StorageError, TransportError
from protocol.messages import Heartbeat
from protocol.rollouts import Group, check_against_advert, decode_group
from swarm.api import Fetched, Judgement, PeerStatus, SeenGroup, SwarmStatus, Wanted

FETCH_DEADLINE_SECONDS = 10.0
SEEN_AT_ONCE = 4096  # all that the swarm process keeps
BACKLOG = 256  # calls that may wait while the swarm process is silent
CLOSE_SECONDS = 2.0
SHARE_EVERY_SECONDS = 0.2  # at least; half the rate of announcements that peers accept from one sender
BEAT_EVERY_SECONDS = 0.5  # at least
PEERS_EVERY_SECONDS = 5.0  # at least; they say how they fare at every heartbeat
NO_SWARM_PROCESS = "this node runs without a swarm process"

log = logging.getLogger(__name__)


class Swarm(Protocol):
    """What is used of ``swarm.client.SwarmClient``."""

    def status(self) -> SwarmStatus: ...
    def peers(self) -> Sequence[PeerStatus]: ...
    def share(self, groups: Sequence[Group]) -> None: ...
    def seen_groups(self, after: int, limit: int) -> list[SeenGroup]: ...
    def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> list[Fetched]: ...
    def beat(self, heartbeat: Heartbeat) -> None: ...
    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class ForeignGroup:
    """A fetched group that decodes and agrees with its advert; its claims are not checked yet."""

    peer: str
    blob: bytes
    group: Group
    new: bool  # not used by this learner before


@dataclass(frozen=True, slots=True)
class Incoming:
    groups: tuple[ForeignGroup, ...] = ()
    rejected: Counter[str] = field(default_factory=Counter)  # candidates and fetched groups not used, by reason
    bytes_fetched: int = 0
    alone_because: str | None = None
    peer_success: Mapping[str, Announced] | None = None  # by task, as announced; None: not asked now
    fetched: int = 0  # groups that came over the network
    waiting: int = 0  # candidates for later rounds
    decided: tuple[Decided, ...] = ()  # what ``rejected`` counts, one by one


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What to fetch, and what is out."""

    choice: ForeignChoice
    used_before: frozenset[bytes]
    rejected: Counter[str]
    decided: tuple[Decided, ...]
    waiting: int


class RolloutIntake:
    """One thread that owns the client. All methods but ``collect`` and ``close`` return at once."""

    def __init__(
        self,
        swarm: Swarm | None,
        tasks: Mapping[str, Task],
        section: LearnerSection,
        clock: Callable[[], float],
        position: Mapping[str, Any] | None = None,
        *,
        research: ResearchSection = DEFAULT_RESEARCH,
    ) -> None:
        self._swarm = swarm
        self._tasks = tasks
        self._section = section
        self._research = research
        self._clock = clock
        self._pool = ReplayPool() if position is None else ReplayPool.restored(position)
        self._pool_lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="exchange")
        self._arriving: Future[Incoming] | None = None
        self._faults: list[StarlingError] = []
        self._faults_lock = threading.Lock()
        self._shared_at_seconds = self._beaten_at_seconds = self._peers_asked_at_seconds = -math.inf
        self._asked: list[Future[None]] = []

    def begin(self, success: Callable[[str], float], draws: random.Random) -> None:
        """Starts to choose and fetch groups, unless the ones before have not been collected yet."""
        if self._swarm is not None and self._arriving is None:
            self._arriving = self._thread.submit(self._gather, self._swarm, success, draws)

    def collect(self, patience_seconds: float) -> Incoming:
        """What ``begin`` started, once it has arrived; waits for at most ``patience_seconds``."""
        if self._arriving is None:
            return Incoming(alone_because=NO_SWARM_PROCESS)
        try:
            incoming = self._arriving.result(timeout=patience_seconds)
        except FutureTimeoutError:
            return Incoming(rejected=Counter(late=1), alone_because="foreign groups are still on their way")
        self._arriving = None
        return incoming

    def may_share(self) -> bool:
        """Whether groups can be announced now: there is a swarm process, and the last announcement is long enough ago.

        A node whose rounds are shorter than that shares those of every so many rounds; peers would refuse the rest.
        """
        return self._swarm is not None and self._elapsed(self._shared_at_seconds, SHARE_EVERY_SECONDS)

    def share(self, groups: Sequence[Group]) -> None:
        self._shared_at_seconds = self._clock()
        self._later(lambda swarm: swarm.share(groups))

    def beat(self, heartbeat: Heartbeat) -> None:
        """Sets what the node says of itself, unless it did so a moment ago."""
        if self._elapsed(self._beaten_at_seconds, BEAT_EVERY_SECONDS):
            self._beaten_at_seconds = self._clock()
            self._later(lambda swarm: swarm.beat(heartbeat))

    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None:
        """Tells what checking a group showed, and remembers it for choosing."""
        with self._pool_lock:
            self._pool.checked(peer, held=judgement in (Judgement.USED, Judgement.UNUSED))
        self._later(lambda swarm: swarm.judge(peer, blob, judgement, detail))

    def measured(self, divergence_by_peer: Mapping[str, float]) -> None:
        """Remembers how far the policies of others are from ours, for choosing; nats a completion."""
        with self._pool_lock:
            self._pool.measured(divergence_by_peer)

    def faults(self) -> list[StarlingError]:
        """What went wrong since the last call, oldest first. Raises what was a bug of ours."""
        finished = [future for future in self._asked if future.done()]
        self._asked = [future for future in self._asked if future not in finished]
        for future in finished:
            future.result()
        with self._faults_lock:
            faults, self._faults = self._faults, []
        return faults

    def position(self) -> dict[str, Any]:
        """The pool's position, for a checkpoint."""
        with self._pool_lock:
            return self._pool.position()

    def refuse(self, foreign: ForeignGroup, judgement: Judgement, detail: str) -> None:
        """Judges a group that did not stand up to checking, and never gives it again."""
        with self._pool_lock:
            self._pool.drop(foreign.blob)
        self.judge(foreign.peer, foreign.blob, judgement, detail)

    def settle(self, limit_seconds: float) -> None:
        """Waits until all that was asked of the swarm process has been done, for at most ``limit_seconds``."""
        asked: list[Future[Any]] = [*self._asked]
        if self._arriving is not None:
            asked.append(self._arriving)
        wait(asked, timeout=limit_seconds)

    def close(self) -> None:
        """Gives what was asked of the swarm process a moment to be done, drops the rest, and ends the thread."""
        self.settle(CLOSE_SECONDS)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _elapsed(self, since_seconds: float, interval_seconds: float) -> bool:
        return not 0 <= self._clock() - since_seconds < interval_seconds  # also when the clock was set back

    def _later(self, call: Callable[[Swarm], None]) -> None:
        swarm = self._swarm
        if swarm is None:
            return
        if sum(not future.done() for future in self._asked) >= BACKLOG:
            self._note(TransportError(f"{BACKLOG} calls wait for the swarm process: this one is dropped"))
            return
        self._asked.append(self._thread.submit(self._guarded, call, swarm))

    def _guarded(self, call: Callable[[Swarm], None], swarm: Swarm) -> None:
        try:
            call(swarm)
        except (TransportError, StorageError, OversizedError) as error:  # the round after reports it and tries again
            self._note(error)

    def _note(self, error: StarlingError) -> None:
        with self._faults_lock:
            self._faults.append(error)

    def _gather(self, swarm: Swarm, success: Callable[[str], float], draws: random.Random) -> Incoming:
        try:
            peer_success = self._peer_success(swarm)
            chosen = self._choose(swarm, success, draws)
            if not chosen.choice.chosen:
                alone_because = self._why_alone(swarm)
                return Incoming((), chosen.rejected, 0, alone_because, peer_success, 0, chosen.waiting, chosen.decided)
            wanted = [Wanted(seen.advert.blob, seen.advert.size, (seen.peer,)) for seen in chosen.choice.chosen]
            fetched = swarm.fetch(wanted, deadline_seconds=FETCH_DEADLINE_SECONDS)
            return replace(self._opened(swarm, chosen, fetched), peer_success=peer_success)
        except TransportError as error:
            self._note(error)
            return Incoming(alone_because=f"the swarm process does not answer: {error}")

    def _peer_success(self, swarm: Swarm) -> Mapping[str, Announced] | None:
        if not self._elapsed(self._peers_asked_at_seconds, PEERS_EVERY_SECONDS):
            return None
        self._peers_asked_at_seconds = self._clock()
        return announced_success(swarm.peers())

    def _choose(self, swarm: Swarm, success: Callable[[str], float], draws: random.Random) -> _Chosen:
        seen = swarm.seen_groups(self._pool.cursor, SEEN_AT_ONCE)
        with self._pool_lock:
            crowded_out = self._pool.add(seen)
            choice = choose(
                self._clock(),
                self._pool,
                self._tasks,
                success,
                self._section,
                draws,
                self._research,
            )
            used_before = frozenset(self._pool.uses)
            decided = [Decided.of_advert("crowded_out", group) for group in crowded_out]
            decided += [
                Decided.of_advert(reason, self._pool.candidates[blob]) for blob, reason in choice.passed_over.items()
            ]
            self._pool.settle(choice, self._section.foreign_uses)
            waiting = sum(blob not in self._pool.uses for blob in self._pool.candidates)
        rejected = choice.reasons()
        if crowded_out:
            rejected["crowded_out"] += len(crowded_out)
        return _Chosen(choice, used_before, rejected, tuple(decided), waiting)

    def _why_alone(self, swarm: Swarm) -> str:
        status = swarm.status()
        if status.alone_because is not None:
            return status.alone_because
        return f"of {status.connected_peers} connected peers none has announced a group that would help"

    def _opened(self, swarm: Swarm, chosen: _Chosen, fetched: Sequence[Fetched]) -> Incoming:
        """What of the fetched blobs is a group, and the one that was advertised."""
        groups: list[ForeignGroup] = []
        unusable: list[bytes] = []
        malformed: list[tuple[SeenGroup, str]] = []
        missed: list[str] = []  # peers
        decided = list(chosen.decided)
        rejected, bytes_fetched, groups_fetched = Counter(chosen.rejected), 0, 0
        for seen, outcome in zip(chosen.choice.chosen, fetched, strict=True):
            blob = seen.advert.blob
            if outcome.path is None:
                rejected["not_fetched"] += 1
                decided.append(Decided.of_advert("not_fetched", seen, outcome.reason))
                unusable.append(blob)
                missed.append(seen.peer)
                log.debug("group %s of %s not fetched: %s", seen.advert.blob.hex()[:12], seen.peer, outcome.reason)
                continue
            try:
                raw = Path(outcome.path).read_bytes()
            except FileNotFoundError:  # the store is full of newer blobs and dropped this one
                rejected["evicted"] += 1
                decided.append(Decided.of_advert("evicted", seen))
                unusable.append(blob)
                continue
            if blob not in chosen.used_before:
                bytes_fetched, groups_fetched = bytes_fetched + len(raw), groups_fetched + 1
            try:
                group = decode_group(raw)
                check_against_advert(
                    group, seen.advert, family=seen.family, tokenizer=seen.tokenizer, policy_version=seen.policy_version
                )
            except ProtocolError as error:
                rejected[error.reason] += 1
                decided.append(Decided.of_advert(error.reason, seen, str(error)))
                unusable.append(blob)
                malformed.append((seen, str(error)))
                continue
            groups.append(ForeignGroup(seen.peer, blob, group, new=blob not in chosen.used_before))
        with self._pool_lock:
            for blob in unusable:
                self._pool.drop(blob)
            for peer in missed:
                self._pool.missed(peer)
            for seen, _ in malformed:
                self._pool.checked(seen.peer, held=False)
        for seen, detail in malformed:
            swarm.judge(seen.peer, seen.advert.blob, Judgement.MALFORMED, detail)
        return Incoming(
            tuple(groups),
            rejected,
            bytes_fetched,
            fetched=groups_fetched,
            waiting=chosen.waiting,
            decided=tuple(decided),
        )
