"""How often a node announces, by the size of its swarm, so that what every node receives does not grow with the swarm.

    heartbeats      one every max(shortest, n / HEARTBEATS_PER_SECOND) seconds, at most LONGEST_HEARTBEAT_SECONDS
    rollout adverts on average ADVERTS_PER_SECOND / a a second, and at least one every LONGEST_ADVERT_SECONDS

n counts the nodes heard of lately, ourselves among them. A newcomer has not heard everybody yet: in its first minute it
announces as if there were as many more as the heartbeats that it hears allow (``unheard_factor``). a counts the nodes
that advertised lately, and is n / 2 at least, for which others accept our adverts; so a crowd that only says that it is
here halves nobody's adverts more than once. From 80 to 960 nodes
a node then receives about the same, above that heartbeats grow again. Receivers lose nothing that they could use: a
learner takes a few foreign groups a round out of all that were announced. Invented identities can make n large; the two
longest times bound what that does.
What a sender sends beyond ``ALLOWANCE`` times its due is not accepted, hence not forwarded: so many sybils cost little.
It is counted in slots that hold at least ``FEWEST_A_SLOT`` messages, whose lengths are powers of two
(``sender_slots.py``): they are short, since what a new identity may send at once is what a slot holds and a reserve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from swarm.announcements.sender_slots import SenderAllowance
from swarm.token_bucket import TokenBucket

HEARTBEATS_PER_SECOND: Final = 16.0  # of the whole swarm
LONGEST_HEARTBEAT_SECONDS: Final = 60.0
PRESENT_SECONDS: Final = 2.5 * LONGEST_HEARTBEAT_SECONDS  # after its last heartbeat a node counts as gone
ADVERTS_PER_SECOND: Final = 8.0  # of the whole swarm
ADVERTS_AT_ONCE: Final = 4.0  # of one node, at most; at least one, and otherwise a minute's worth
LONGEST_ADVERT_SECONDS: Final = 120.0
ALLOWANCE: Final = 4.0
MESSAGES_PER_SECOND: Final = 10.0  # accepted of one sender, however small the swarm is
SHORTEST_SLOT_SECONDS: Final = 8.0  # in which what is accepted of one sender is counted; doubled until it holds ...
FEWEST_A_SLOT: Final = 8.0  # ... so many messages: more than a node sends at once
COUNT_SECONDS: Final = 5.0  # between two counts of the swarm's nodes


def heartbeat_seconds(nodes: int, shortest_seconds: float) -> float:
    """Returns the time between two heartbeats of one node."""
    longest_seconds = max(shortest_seconds, LONGEST_HEARTBEAT_SECONDS)
    return min(max(shortest_seconds, nodes / HEARTBEATS_PER_SECOND), longest_seconds)


def adverts_per_second(nodes: int) -> float:
    """Returns how many rollout adverts one node may send on average."""
    return max(ADVERTS_PER_SECOND / nodes, 1.0 / LONGEST_ADVERT_SECONDS)


def adverts_at_once(nodes: int) -> float:
    return min(ADVERTS_AT_ONCE, max(1.0, 60.0 * adverts_per_second(nodes)))


def unheard_factor(first: int, again: int, *, listening_seconds: float, longest_seconds: float) -> float:
    """Returns how many times as many nodes there may be as were heard, for a node that listens for so long.

    Of the latest heartbeats, ``first`` came from nodes not heard before and ``again`` from others. These are as large a
    part of all as the nodes heard are of the swarm. Before any comes again, the swarm may be as large as heartbeats at
    the longest intervals allow; after one such interval everybody was heard.
    """
    at_most = max(1.0, longest_seconds / max(listening_seconds, COUNT_SECONDS))
    return min(at_most, (first + again) / again) if again else at_most


def messages_per_second(nodes: int, shortest_seconds: float) -> float:
    """Returns how many announcements of one sender are accepted on average: several times what it is to send, for the
    sender may count fewer nodes than we do."""
    due = 1.0 / heartbeat_seconds(nodes, shortest_seconds) + adverts_per_second(nodes)
    return min(MESSAGES_PER_SECOND, ALLOWANCE * due)


def allowance(nodes: int, shortest_seconds: float) -> SenderAllowance:
    """Returns what is accepted of one sender in a swarm of ``nodes``."""
    rate, slot_seconds = messages_per_second(nodes, shortest_seconds), SHORTEST_SLOT_SECONDS
    while rate * slot_seconds < FEWEST_A_SLOT:
        slot_seconds *= 2.0
    return SenderAllowance(slot_seconds, int(rate * slot_seconds))


class AdvertPacing:
    """Says whether an advert may be sent now."""

    def __init__(self, *, now_seconds: float) -> None:
        self._bucket = TokenBucket(ADVERTS_PER_SECOND, ADVERTS_AT_ONCE, now_seconds=now_seconds)

    def may_send(self, nodes: int, *, now_seconds: float) -> bool:
        """Counts one advert that is sent, and returns True; or returns False."""
        self._bucket.rate, self._bucket.burst = adverts_per_second(nodes), adverts_at_once(nodes)
        return self._bucket.take(1.0, now_seconds=now_seconds)


class SwarmPacing:
    """The pace of one node, by the number of nodes of its swarm, which is counted every ``COUNT_SECONDS``."""

    def __init__(
        self,
        shortest_heartbeat_seconds: float,
        *,
        heard_since: Callable[[float], int],
        advertised_since: Callable[[float], int],
        clock: Callable[[], float],
    ) -> None:
        """``heard_since`` counts the other nodes whose heartbeat came at a time of ``clock`` or later,
        ``advertised_since`` those that advertised groups then."""
        self.adverts_held_back = 0
        self._shortest_seconds = shortest_heartbeat_seconds
        self._heard_since, self._advertised_since = heard_since, advertised_since
        self._clock = clock
        self._adverts = AdvertPacing(now_seconds=clock())
        self._nodes, self._advertising, self._counted_at_seconds = 1, 1, clock() - COUNT_SECONDS
        self._allowance = allowance(1, shortest_heartbeat_seconds)
        self._listening_since_seconds: float | None = None  # when the first heartbeat came
        self._first, self._again = 0, 0  # heartbeats since the last count: of nodes not heard before, and of others

    def on_heartbeat(self, *, is_first: bool) -> None:
        """Another node was heard, for the first time or again."""
        if self._listening_since_seconds is None:
            self._listening_since_seconds = self._clock()
        self._first += is_first
        self._again += not is_first

    def heartbeat_seconds(self) -> float:
        self._count()
        return heartbeat_seconds(self._nodes, self._shortest_seconds)

    def may_advertise(self) -> bool:
        """Counts one advert, as sent if it may be sent now, and otherwise as held back."""
        self._count()
        allowed = self._adverts.may_send(self._advertising, now_seconds=self._clock())
        self.adverts_held_back += not allowed
        return allowed

    def allowance(self) -> SenderAllowance:
        """Returns what is accepted of one sender now."""
        self._count()
        return self._allowance

    def _count(self) -> None:
        now_seconds = self._clock()
        if not 0.0 <= now_seconds - self._counted_at_seconds < COUNT_SECONDS:
            self._counted_at_seconds = now_seconds
            heard = self._heard_since(now_seconds - PRESENT_SECONDS)
            self._nodes = 1 + round(heard * self._unheard_factor(now_seconds))
            advertised = self._advertised_since(now_seconds - PRESENT_SECONDS)
            self._advertising = max(1 + advertised, -(-self._nodes // 2))
            self._first, self._again = 0, 0
            self._allowance = allowance(1 + heard, self._shortest_seconds)  # strict only with what is certain

    def _unheard_factor(self, now_seconds: float) -> float:
        since_seconds = now_seconds if self._listening_since_seconds is None else self._listening_since_seconds
        return unheard_factor(
            self._first,
            self._again,
            listening_seconds=now_seconds - since_seconds,
            longest_seconds=max(self._shortest_seconds, LONGEST_HEARTBEAT_SECONDS),
        )
