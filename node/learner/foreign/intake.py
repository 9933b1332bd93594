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
from typing import Any

from node.configuration import LearnerSection, ResearchSection
from node.learner.foreign.choice import DEFAULT_RESEARCH, choose
from node.learner.foreign.opening import GroupFetcher, Opened, Unusable, open_group
from node.learner.foreign.outcomes import Decided, ForeignOutcome
from node.learner.foreign.replay import ForeignChoice, Key, ReplayPool, key_of, outline
from node.learner.foreign.swarm_calls import Swarm, SwarmCalls, elapsed
from node.tasks.task import Task
from protocol.errors import StarlingError, TransportError
from protocol.rollouts import Group, content_hash
from swarm.api import Judgement
from swarm.recent import Recent

MAX_HANDED_OUT = 512  # groups on which a judgement may still come
MAX_ADVERTS = 4096  # asked for at once; what the swarm process keeps beyond them comes a round later
MIN_SECONDS_BETWEEN_PEER_QUERIES = 5.0  # peers announce their success with every heartbeat
OURSELVES = ""  # no peer's id
NO_SWARM_PROCESS = "this node runs without a swarm process"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class ForeignGroup:
    """A fetched group that decodes and agrees with its advert; its claims are not checked yet."""

    peer: str
    blob: bytes
    group: Group
    new: bool  # not used by this learner before

    @property
    def key(self) -> Key:
        return self.peer, self.blob


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a round takes in."""

    groups: tuple[ForeignGroup, ...] = ()
    decided: tuple[Decided, ...] = ()  # candidates and fetched groups that are not among ``groups``, and why
    bytes_fetched: int = 0
    alone_because: str | None = None
    fetched: int = 0  # groups that came over the network
    waiting: int = 0  # candidates for later rounds
    late: bool = False  # what was asked for has not arrived


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
        """``tasks``: those whose groups are taken in and shared. ``clock`` gives Unix time; ``position`` is that of an
        earlier intake, from a checkpoint."""
        self.calls = SwarmCalls(swarm, clock)
        self.tasks = tasks
        self._section = section
        self._research = research
        self._clock = clock
        self._fetcher = GroupFetcher(clock)
        self._pool = ReplayPool(position)
        self._handed_out: Recent[Key, tuple[bytes, ...]] = Recent(MAX_HANDED_OUT)  # marks of groups not judged yet
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

    def share(self, groups: Sequence[Group]) -> None:
        """Announces own groups to the swarm, and remembers their content: a copy of one teaches nothing."""
        with self._pool_lock:
            for group in groups:
                mark = content_hash(group)
                self._pool.learnt((OURSELVES, mark), [mark], self._clock())
        self.calls.share(groups)

    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None:
        """Reports that a group's claims hold, also where the group was of no use, and remembers it for choosing."""
        with self._pool_lock:
            self._pool.peers.held(peer, self._clock())
            marks = self._handed_out.pop((peer, blob), ())
            self._pool.learnt((peer, blob), marks, self._clock())
        self.calls.judge(peer, blob, judgement, detail)

    def refuse(self, foreign: ForeignGroup, judgement: Judgement | None, detail: str) -> None:
        """Judges a group that is not learnt from, and never returns it again.

        ``Judgement.UNUSED`` means that a claim could not be checked: that speaks neither for its sender nor against it.
        None: no claim was looked at, and nobody is judged.
        """
        with self._pool_lock:
            self._pool.drop(foreign.key)
            self._handed_out.pop(foreign.key, None)
            if judgement not in (None, Judgement.UNUSED):
                self._pool.peers.lied(foreign.peer, self._clock())
        if judgement is not None:
            self.calls.judge(foreign.peer, foreign.blob, judgement, detail)

    def measured(self, divergence_by_peer: Mapping[str, float]) -> None:
        """Remembers, for choosing, how far the policies of others are from ours, in nats per completion."""
        with self._pool_lock:
            self._pool.peers.measured(divergence_by_peer)

    def position(self) -> dict[str, Any]:
        """Returns the pool's position, for a checkpoint."""
        with self._pool_lock:
            return self._pool.position()

    def kept_position(self) -> Callable[[], dict[str, Any]]:
        """As ``ReplayPool.kept_position``."""
        with self._pool_lock:
            return self._pool.kept_position()

    def faults(self) -> list[StarlingError]:
        """Returns what went wrong since the last call, oldest first. Raises the exception of a bug of ours."""
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
            self._look_who_is_connected(swarm)
            choice, used_before, incoming = self._choose(swarm, success, draws)
            if choice.chosen:
                return self._fetch(swarm, choice, used_before, incoming)
            return replace(incoming, alone_because=_why_alone(swarm))
        except TransportError as error:
            self.calls.note(error)
            return Incoming(alone_because=f"the swarm process does not answer: {error}")

    def _look_who_is_connected(self, swarm: Swarm) -> None:
        now_seconds = self._clock()
        if not elapsed(
            now_seconds,
            since_seconds=self._peers_asked_at_seconds,
            interval_seconds=MIN_SECONDS_BETWEEN_PEER_QUERIES,
        ):
            return
        self._peers_asked_at_seconds = now_seconds
        connected = frozenset(status.peer for status in swarm.peers() if status.connected)
        with self._pool_lock:
            self._pool.peers.connected = connected

    def _choose(
        self, swarm: Swarm, success: Callable[[str], float], draws: random.Random
    ) -> tuple[ForeignChoice, frozenset[Key], Incoming]:
        """Returns what to fetch, what of it was used before, and what was decided on the other candidates."""
        seen = swarm.seen_groups(self._pool.cursor, MAX_ADVERTS)
        with self._pool_lock:
            crowded_out = self._pool.add(seen)
            choice = choose(
                self._clock(),
                self._pool,
                self.tasks,
                success,
                self._section,
                draws,
                self._research,
                try_strangers=self._fetcher.may_try_strangers(),
                admits=self.admits,
            )
            used_before = frozenset(self._pool.uses)
            decided = [Decided.of_advert(ForeignOutcome.CROWDED_OUT, group) for group in crowded_out]
            decided += [
                Decided.of_advert(outcome, self._pool.candidates[key]) for key, outcome in choice.passed_over.items()
            ]
            self._pool.settle(choice, self._section.foreign_uses)
            waiting = sum(key not in self._pool.uses for key in self._pool.candidates)
        return choice, used_before, Incoming(decided=tuple(decided), waiting=waiting)

    def _fetch(self, swarm: Swarm, choice: ForeignChoice, used_before: frozenset[Key], incoming: Incoming) -> Incoming:
        opened: list[Opened] = []
        unusable: list[Unusable] = []
        with self._pool_lock:
            standings = {seen.peer: self._pool.peers.standing(seen.peer) for seen in choice.chosen}
            connected = self._pool.peers.connected or frozenset()
        for seen, fetched in self._fetcher.fetched(swarm, choice.chosen, standings, connected):
            result = self._distinct(open_group(seen, fetched), opened)
            if isinstance(result, Opened):
                opened.append(result)
            else:
                unusable.append(result)
        self._drop(swarm, unusable)
        groups = [
            ForeignGroup(*key_of(each.seen), each.group, new=key_of(each.seen) not in used_before) for each in opened
        ]
        arrived: list[Opened | Unusable] = [*opened, *unusable]
        sizes_bytes = [
            each.size_bytes for each in arrived if each.size_bytes is not None and key_of(each.seen) not in used_before
        ]
        with self._pool_lock:
            for each in opened:
                if key_of(each.seen) not in used_before:
                    self._handed_out[key_of(each.seen)] = (outline(each.seen.advert), each.content)
        return replace(
            incoming,
            groups=tuple(groups),
            decided=(*incoming.decided, *(each.decided for each in unusable)),
            bytes_fetched=sum(sizes_bytes),
            fetched=len(sizes_bytes),
        )

    def _distinct(self, result: Opened | Unusable, opened: Sequence[Opened]) -> Opened | Unusable:
        """Returns what was opened, unless it is a copy of what was learnt, or opened for this round before."""
        if isinstance(result, Unusable):
            return result
        key = key_of(result.seen)
        with self._pool_lock:
            known = self._pool.is_copy(key, result.content, self._clock())
        if known or any(result.content == each.content for each in opened):
            decided = Decided.of_advert(
                ForeignOutcome.COPY, result.seen, "the same completions, from another announcement"
            )
            return Unusable(result.seen, decided, result.size_bytes)
        return result

    def _drop(self, swarm: Swarm, unusable: Sequence[Unusable]) -> None:
        """Takes groups out for good. A peer is judged for what it sent, and counts as less reliable for what did not
        come, and a little less for copies."""
        now_seconds = self._clock()
        with self._pool_lock:
            for each in unusable:
                self._pool.drop(key_of(each.seen))
                if each.decided.outcome == ForeignOutcome.NOT_FETCHED:
                    self._pool.peers.missed(each.seen.peer, now_seconds)
                elif each.decided.outcome == ForeignOutcome.COPY:
                    self._pool.peers.copied(each.seen.peer)
                elif each.size_bytes is not None:
                    self._pool.peers.lied(each.seen.peer, now_seconds)
        for each in unusable:
            if each.size_bytes is not None and each.decided.outcome != ForeignOutcome.COPY:
                swarm.judge(each.seen.peer, each.seen.advert.blob, Judgement.MALFORMED, each.decided.detail or "")


def _why_alone(swarm: Swarm) -> str:
    status = swarm.status()
    if status.alone_because is not None:
        return status.alone_because
    return f"of {status.connected_peers} connected peers none has announced a group that would help"
