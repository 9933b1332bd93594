"""Takes in the rollout groups of other nodes: looks through their adverts, chooses, fetches, opens.

``begin`` starts this on the thread of ``swarm_calls``, ``collect`` takes what has arrived. Between the two the learner
generates, so that a round waits for the network only as long as it chooses to. Groups that arrive late are used a round
later. Where there is no swarm process, or it does not answer, nothing arrives and the reason is given; each round tries
again.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from node.configuration import LearnerSection, ResearchSection
from node.learner.allocation.peer_success import Announced, announced_success
from node.learner.foreign.choice import DEFAULT_RESEARCH, choose
from node.learner.foreign.outcomes import Decided, ForeignOutcome
from node.learner.foreign.replay import ForeignChoice, ReplayPool
from node.learner.foreign.swarm_calls import Swarm, SwarmCalls, elapsed
from node.tasks.task import Task
from protocol.errors import ProtocolError, StarlingError, TransportError
from protocol.rollouts import Group, check_against_advert, decode_group
from swarm.api import Fetched, Judgement, SeenGroup, Wanted

FETCH_DEADLINE_SECONDS = 10.0
MAX_ADVERTS = 4096  # asked for at once; the swarm process keeps no more
MIN_SECONDS_BETWEEN_PEER_QUERIES = 5.0  # peers announce their success with every heartbeat
NO_SWARM_PROCESS = "this node runs without a swarm process"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class ForeignGroup:
    """A fetched group that decodes and agrees with its advert; its claims are not checked yet."""

    peer: str
    blob: bytes
    group: Group
    new: bool  # not used by this learner before


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a round takes in."""

    groups: tuple[ForeignGroup, ...] = ()
    decided: tuple[Decided, ...] = ()  # candidates and fetched groups that are not among ``groups``, and why
    bytes_fetched: int = 0
    alone_because: str | None = None
    peer_success: Mapping[str, Announced] | None = None  # by task, as announced; None: not asked for this time
    fetched: int = 0  # groups that came over the network
    waiting: int = 0  # candidates for later rounds
    late: bool = False  # what was asked for has not arrived


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What to fetch, and what was decided on the other candidates."""

    choice: ForeignChoice
    used_before: frozenset[bytes]
    decided: tuple[Decided, ...]
    waiting: int


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """A chosen group that came and is the one that was advertised."""

    seen: SeenGroup
    group: Group
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Unusable:
    """A chosen group that did not come, or is not the one that was advertised."""

    seen: SeenGroup
    decided: Decided
    size_bytes: int | None = None  # of what came, which was malformed; None: nothing came


class RolloutIntake:
    """The pool of candidates, and the thread that asks for them. All methods but ``collect``, ``settle`` and ``close``
    return at once."""

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
        """``clock`` gives Unix time; ``position`` is that of an earlier intake, from a checkpoint."""
        self.calls = SwarmCalls(swarm, clock)
        self._tasks = tasks
        self._section = section
        self._research = research
        self._clock = clock
        self._pool = ReplayPool() if position is None else ReplayPool.restored(position)
        self._pool_lock = threading.Lock()
        self.admits: Callable[[str], bool] = lambda peer: True  # whose groups can be learnt from
        self._arriving: Future[Incoming] | None = None
        self._peers_asked_at_seconds = -math.inf

    def begin(self, success: Callable[[str], float], draws: random.Random) -> None:
        """Starts to choose and fetch groups, unless the ones before have not been collected yet."""
        if self._arriving is None:
            self._arriving = self.calls.ask(lambda swarm: self._gather(swarm, success, draws))

    def collect(self, patience_seconds: float) -> Incoming:
        """Returns what ``begin`` started, once it has arrived; waits for at most ``patience_seconds``."""
        if self._arriving is None:
            return Incoming(alone_because=NO_SWARM_PROCESS)
        try:
            incoming = self._arriving.result(timeout=patience_seconds)
        except FutureTimeoutError:
            return Incoming(late=True, alone_because="foreign groups are still on their way")
        self._arriving = None
        return incoming

    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None:
        """Reports what checking a group showed, and remembers it for choosing."""
        with self._pool_lock:
            self._pool.checked(peer, held=judgement in (Judgement.USED, Judgement.UNUSED))
        self.calls.judge(peer, blob, judgement, detail)

    def refuse(self, foreign: ForeignGroup, judgement: Judgement, detail: str) -> None:
        """Judges a group whose claims were refused, and never returns it again."""
        with self._pool_lock:
            self._pool.drop(foreign.blob)
        self.judge(foreign.peer, foreign.blob, judgement, detail)

    def measured(self, divergence_by_peer: Mapping[str, float]) -> None:
        """Remembers, for choosing, how far the policies of others are from ours, in nats per completion."""
        with self._pool_lock:
            self._pool.measured(divergence_by_peer)

    def position(self) -> dict[str, Any]:
        """Returns the pool's position, for a checkpoint."""
        with self._pool_lock:
            return self._pool.position()

    def faults(self) -> list[StarlingError]:
        """Returns what went wrong since the last call, oldest first. Raises what was a bug of ours."""
        return self.calls.faults()

    def settle(self, limit_seconds: float) -> None:
        """Waits until all that was asked of the swarm process has been done, for at most ``limit_seconds``."""
        self.calls.settle(limit_seconds, *self._asked())

    def close(self) -> None:
        """Ends the thread as ``SwarmCalls.close``."""
        self.calls.close(*self._asked())

    def _asked(self) -> list[Future[Incoming]]:
        return [self._arriving] if self._arriving is not None else []

    def _gather(self, swarm: Swarm, success: Callable[[str], float], draws: random.Random) -> Incoming:
        try:
            peer_success = self._peer_success(swarm)
            chosen = self._choose(swarm, success, draws)
            if chosen.choice.chosen:
                incoming = self._fetch(swarm, chosen)
            else:
                alone_because = _why_alone(swarm)
                incoming = Incoming(decided=chosen.decided, waiting=chosen.waiting, alone_because=alone_because)
            return replace(incoming, peer_success=peer_success)
        except TransportError as error:
            self.calls.note(error)
            return Incoming(alone_because=f"the swarm process does not answer: {error}")

    def _peer_success(self, swarm: Swarm) -> Mapping[str, Announced] | None:
        now_seconds = self._clock()
        if not elapsed(
            now_seconds,
            since_seconds=self._peers_asked_at_seconds,
            interval_seconds=MIN_SECONDS_BETWEEN_PEER_QUERIES,
        ):
            return None
        self._peers_asked_at_seconds = now_seconds
        return announced_success(swarm.peers())

    def _choose(self, swarm: Swarm, success: Callable[[str], float], draws: random.Random) -> _Chosen:
        seen = swarm.seen_groups(self._pool.cursor, MAX_ADVERTS)
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
                self.admits,
            )
            used_before = frozenset(self._pool.uses)
            decided = [Decided.of_advert(ForeignOutcome.CROWDED_OUT, group) for group in crowded_out]
            decided += [
                Decided.of_advert(outcome, self._pool.candidates[blob]) for blob, outcome in choice.passed_over.items()
            ]
            self._pool.settle(choice, self._section.foreign_uses)
            waiting = sum(blob not in self._pool.uses for blob in self._pool.candidates)
        return _Chosen(choice, used_before, tuple(decided), waiting)

    def _fetch(self, swarm: Swarm, chosen: _Chosen) -> Incoming:
        wanted = [Wanted(seen.advert.blob, seen.advert.size, (seen.peer,)) for seen in chosen.choice.chosen]
        fetched = swarm.fetch(wanted, deadline_seconds=FETCH_DEADLINE_SECONDS)
        results = [_opened(seen, each) for seen, each in zip(chosen.choice.chosen, fetched, strict=True)]
        unusable = [result for result in results if isinstance(result, _Unusable)]
        self._drop(swarm, unusable)
        sizes_bytes = [
            result.size_bytes
            for result in results
            if result.size_bytes is not None and result.seen.advert.blob not in chosen.used_before
        ]
        groups = [
            ForeignGroup(seen.peer, seen.advert.blob, result.group, new=seen.advert.blob not in chosen.used_before)
            for result in results
            if isinstance(result, _Opened) and (seen := result.seen)
        ]
        return Incoming(
            tuple(groups),
            (*chosen.decided, *(each.decided for each in unusable)),
            bytes_fetched=sum(sizes_bytes),
            fetched=len(sizes_bytes),
            waiting=chosen.waiting,
        )

    def _drop(self, swarm: Swarm, unusable: Sequence[_Unusable]) -> None:
        """Takes groups out for good. A peer is judged for what it sent, and counts as less reliable for what did not
        come."""
        missed = [each.seen.peer for each in unusable if each.decided.outcome == ForeignOutcome.NOT_FETCHED]
        malformed = [each for each in unusable if each.size_bytes is not None]
        with self._pool_lock:
            for each in unusable:
                self._pool.drop(each.seen.advert.blob)
            for peer in missed:
                self._pool.missed(peer)
            for each in malformed:
                self._pool.checked(each.seen.peer, held=False)
        for each in malformed:
            detail = each.decided.detail or ""
            swarm.judge(each.seen.peer, each.seen.advert.blob, Judgement.MALFORMED, detail)


def _why_alone(swarm: Swarm) -> str:
    status = swarm.status()
    if status.alone_because is not None:
        return status.alone_because
    return f"of {status.connected_peers} connected peers none has announced a group that would help"


def _opened(seen: SeenGroup, fetched: Fetched) -> _Opened | _Unusable:
    """Reads, decodes and compares one fetched blob with its advert."""
    if fetched.path is None:
        log.debug("group %s of %s not fetched: %s", seen.advert.blob.hex()[:12], seen.peer, fetched.reason)
        return _Unusable(seen, Decided.of_advert(ForeignOutcome.NOT_FETCHED, seen, fetched.reason))
    try:
        raw = Path(fetched.path).read_bytes()
    except FileNotFoundError:  # the store is full of newer blobs and dropped this one
        return _Unusable(seen, Decided.of_advert(ForeignOutcome.EVICTED, seen))
    try:
        group = decode_group(raw)
        check_against_advert(
            group, seen.advert, family=seen.family, tokenizer=seen.tokenizer, policy_version=seen.policy_version
        )
    except ProtocolError as error:
        return _Unusable(seen, Decided.of_advert(error, seen, str(error)), len(raw))
    return _Opened(seen, group, len(raw))
