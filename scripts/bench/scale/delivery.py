"""Which announcements arrive: each of an honest node, at the honest nodes that were there to hear it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import anyio
from anyio.abc import TaskGroup

from protocol.messages import Announcement, Body
from scripts.bench.scale.disturbances import Calm
from scripts.bench.scale.swarm_node import Node

PRESENT_SECONDS: Final = 30.0  # that a newcomer is there before an announcement which it must hear
DELIVERY_SECONDS: Final = 15.0


class Phase(StrEnum):
    """When an announcement was made."""

    BEFORE = "before any partition"
    HEALED_15 = "within 15 s of a heal"
    HEALED_30 = "15 to 30 s after a heal"
    HEALED_45 = "30 to 45 s after a heal"
    AFTER = "later than 45 s after a heal"


HEALING: Final = (Phase.HEALED_15, Phase.HEALED_30, Phase.HEALED_45)
CALM: Final = (Phase.BEFORE, Phase.AFTER)


def phase(calm: Calm, now_seconds: float) -> Phase | None:
    """Returns None while the network is parted."""
    if calm.healed_at_seconds is None:
        return Phase.BEFORE
    since_seconds = now_seconds - calm.healed_at_seconds
    if calm.holds():
        return Phase.AFTER
    return HEALING[min(int(since_seconds / 15.0), 2)] if since_seconds >= 0 else None


@dataclass
class Sent:
    """An announcement on its way."""

    expected: set[str]  # the honest peers that are to hear it
    heard: set[str] = field(default_factory=set)


class Delivery:
    """``due`` are receptions that had to be, ``heard`` those that were, both by phase."""

    def __init__(self, nodes: Sequence[Node], calm: Calm, tasks: TaskGroup, now_seconds: Callable[[], float]) -> None:
        self._nodes, self._calm, self._tasks, self._now_seconds = nodes, calm, tasks, now_seconds
        self._sent: dict[tuple[str, int], Sent] = {}
        self.is_counting = False
        self.due: Counter[Phase] = Counter()
        self.heard: Counter[Phase] = Counter()

    def share(self, *phases: Phase) -> float:
        due = sum(self.due[each] for each in phases)
        return sum(self.heard[each] for each in phases) / due if due else 0.0

    def watch(self, node: Node) -> None:
        """To be called before the node starts."""
        node.service.gossip.listen(functools.partial(self._on_announcement, node))
        announce = node.service.gossip.announce

        async def announced(body: Body) -> int:
            self._note(node)
            return await announce(body)

        node.service.gossip.announce = announced  # type: ignore[method-assign]

    def _note(self, node: Node) -> None:
        now_seconds = self._now_seconds()
        made_in = phase(self._calm, now_seconds)
        oldest_seconds = now_seconds - PRESENT_SECONDS
        if not self.is_counting or made_in is None or not node.is_there_since(oldest_seconds):
            return
        there = {n.host.peer_id for n in self._nodes if not n.is_sybil and n.is_there_since(oldest_seconds)}
        if node.host.peer_id in there:
            of = node.host.peer_id, node.service.gossip._sequence + 1
            self._sent[of] = Sent(there - {node.host.peer_id})
            self._tasks.start_soon(self._count, of, made_in)

    def _on_announcement(self, node: Node, announcement: Announcement) -> None:
        sent = self._sent.get((announcement.sender, announcement.sequence))
        if sent is not None:
            sent.heard.add(node.host.peer_id)

    async def _count(self, of: tuple[str, int], made_in: Phase) -> None:
        healed_at_seconds = self._calm.healed_at_seconds
        await anyio.sleep(DELIVERY_SECONDS)
        sent = self._sent.pop(of)
        if self._calm.healed_at_seconds != healed_at_seconds:
            return  # a partition began meanwhile
        expected = sent.expected & {node.host.peer_id for node in self._nodes}
        self.due[made_in] += len(expected)
        self.heard[made_in] += len(expected & sent.heard)
