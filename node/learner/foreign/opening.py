"""Fetches chosen groups and opens them, each by itself: a blob is read, decoded and compared with its advert.

Groups of peers whose claims held before are fetched first and together. Those of other peers follow, of a few peers at
a time, so that some that do not answer keep nobody else from being tried. As long as a proven peer has groups, at most
one part in ``1 + STRANGERS_REST`` of the time is spent on this. Blobs are opened one at a time, and none further than
its advert claims.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from node.learner.foreign.outcomes import Decided, ForeignOutcome
from node.learner.foreign.swarm_calls import Swarm
from protocol.errors import IntegrityError, ProtocolError
from protocol.rollouts import Group, check_against_advert, content_hash, decode_group
from swarm.announcements.crowding import Standing
from swarm.api import Fetched, SeenGroup, Wanted

FETCH_DEADLINE_SECONDS = 10.0
TRIAL_DEADLINE_SECONDS = 3.0  # for a few peers that are not proven: enough to connect over a slow network
CONNECTED_TRIAL_SECONDS = 2.0  # the same where all of them are connected
MAX_TRIAL_SECONDS = 60.0  # that are counted
STRANGERS_REST = 8.0  # after strangers were tried, × the time that it took
TRIAL_PEERS = 8  # at a time: as many as the swarm process asks at the same time (``swarm.blobs.fetch.PEERS_AT_ONCE``)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A chosen group that came and is the one that was advertised."""

    seen: SeenGroup
    group: Group
    size_bytes: int
    content: bytes  # hash


@dataclass(frozen=True, slots=True, eq=False)
class Unusable:
    """A chosen group that did not come, or is not the one that was advertised."""

    seen: SeenGroup
    decided: Decided
    size_bytes: int | None = None  # of a blob that was malformed or a copy; None: no blob came


class GroupFetcher:
    """Has groups fetched, and bounds the time that this takes for the sake of strangers. ``clock`` gives Unix time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._strangers_rest_until_seconds = -math.inf

    def may_try_strangers(self) -> bool:
        """Whether peers that are not proven may be asked now although proven ones have groups."""
        rest_seconds = self._strangers_rest_until_seconds - self._clock()
        return not 0 < rest_seconds <= STRANGERS_REST * MAX_TRIAL_SECONDS  # a clock set back ends the rest

    def fetched(
        self,
        swarm: Swarm,
        chosen: Sequence[SeenGroup],
        standings: Mapping[str, Standing],
        connected: frozenset[str],
    ) -> Iterator[tuple[SeenGroup, Fetched]]:
        """Yields the outcome for each group: those of proven peers, then those of the others, of a few at a time.

        Raises ``TransportError``.
        """
        proven = [seen for seen in chosen if standings[seen.peer] is Standing.PROVEN]
        others = [seen for seen in chosen if standings[seen.peer] is not Standing.PROVEN]
        yield from _asked_for(swarm, proven, FETCH_DEADLINE_SECONDS)
        if others:
            began_seconds = self._clock()
            for few in _of_few_peers(others):
                here = all(seen.peer in connected for seen in few)
                yield from _asked_for(swarm, few, CONNECTED_TRIAL_SECONDS if here else TRIAL_DEADLINE_SECONDS)
            took_seconds = min(max(0.0, self._clock() - began_seconds), MAX_TRIAL_SECONDS)
            self._strangers_rest_until_seconds = self._clock() + STRANGERS_REST * took_seconds


def _of_few_peers(groups: Sequence[SeenGroup]) -> Iterator[list[SeenGroup]]:
    """Yields the groups in lots of ``TRIAL_PEERS`` peers, in the order in which the peers first come."""
    peers = list(dict.fromkeys(seen.peer for seen in groups))
    for first in range(0, len(peers), TRIAL_PEERS):
        few = frozenset(peers[first : first + TRIAL_PEERS])
        yield [seen for seen in groups if seen.peer in few]


def _asked_for(
    swarm: Swarm, groups: Sequence[SeenGroup], deadline_seconds: float
) -> Iterator[tuple[SeenGroup, Fetched]]:
    if groups:
        wanted = [Wanted(seen.advert.blob, seen.advert.size, (seen.peer,)) for seen in groups]
        yield from zip(groups, swarm.fetch(wanted, deadline_seconds=deadline_seconds), strict=True)


def open_group(seen: SeenGroup, fetched: Fetched) -> Opened | Unusable:
    """Reads, decodes and compares one fetched blob with its advert."""
    if not fetched.is_here:
        log.debug("group %s of %s not fetched: %s", seen.advert.blob.hex()[:12], seen.peer, fetched.reason)
        return Unusable(seen, Decided.of_advert(ForeignOutcome.NOT_FETCHED, seen, fetched.reason))
    size_bytes = 0
    try:
        size_bytes = fetched.size()
        if size_bytes != seen.advert.size:  # a blob of the store itself, which may be of any size
            raise IntegrityError(f"size: advertised {seen.advert.size} bytes, the blob has {size_bytes}")
        group = decode_group(fetched.read(), tokens=sum(seen.advert.lengths))
        check_against_advert(
            group, seen.advert, family=seen.family, tokenizer=seen.tokenizer, policy_version=seen.policy_version
        )
    except FileNotFoundError:  # the store is full of newer blobs and dropped this one
        return Unusable(seen, Decided.of_advert(ForeignOutcome.EVICTED, seen))
    except ProtocolError as error:
        return Unusable(seen, Decided.of_advert(error, seen, str(error)), size_bytes)
    return Opened(seen, group, size_bytes, content_hash(group))
