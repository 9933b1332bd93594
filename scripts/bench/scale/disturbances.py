"""What disturbs the simulated swarm: nodes that leave or die while newcomers come, and partitions that heal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Final

import anyio

from scripts.bench.scale.swarm_node import Node
from swarm.hosts.simulated.network import SimulatedNetwork

REPLACED_SHARE: Final = 0.3  # of the nodes, in ten minutes
PARTITION_SECONDS: Final = 60.0  # at most; a ninth of the time
PARTITION_AT: Final = (0.25, 0.6)  # of the time, the middle of each: a run that is cut short has seen one
AFTER_PARTITION_SECONDS: Final = 45.0  # in which the nodes find each other again


@dataclass(frozen=True, slots=True)
class Partition:
    begins_seconds: float
    ends_seconds: float


def partitions(minutes: float) -> list[Partition]:
    """Returns the partitions of an observation of so many minutes: two, or one where a second would leave no calm time
    between them and after them."""
    seconds = 60.0 * minutes
    half_seconds = min(PARTITION_SECONDS, seconds / 9) / 2
    both = [Partition(at * seconds - half_seconds, at * seconds + half_seconds) for at in PARTITION_AT]
    calm_until = [after.begins_seconds for _, after in pairwise(both)] + [seconds]
    has_calm = all(
        until - each.ends_seconds > AFTER_PARTITION_SECONDS for each, until in zip(both, calm_until, strict=True)
    )
    return both if has_calm else both[:1]


class Calm:
    """Says whether what happens counts: the network is whole, and has been for ``AFTER_PARTITION_SECONDS``."""

    def __init__(self, now_seconds: Callable[[], float]) -> None:
        self._now_seconds = now_seconds
        self._disturbed_until_seconds = 0.0
        self.healed_at_seconds: float | None = None

    def disturb(self, lasting_seconds: float) -> None:
        self._disturbed_until_seconds = self._now_seconds() + lasting_seconds + AFTER_PARTITION_SECONDS
        self.healed_at_seconds = self._now_seconds() + lasting_seconds

    def holds(self) -> bool:
        return self._now_seconds() > self._disturbed_until_seconds


async def churn(
    nodes: list[Node], size: int, network: SimulatedNetwork, random: Random, join: Callable[[], Awaitable[None]]
) -> None:
    """Replaces nodes for as long as it runs, half of them without a goodbye. The first one stays."""
    between_seconds = 600.0 / (REPLACED_SHARE * size)
    while True:
        await anyio.sleep(random.expovariate(1.0 / between_seconds))
        node = nodes.pop(random.randrange(1, len(nodes)))
        if random.random() < 0.5:
            network.crash(node.host)
            node.task.cancel()
        else:
            node.service.leave("left")
        await join()


async def part(
    planned: list[Partition], nodes: list[Node], network: SimulatedNetwork, random: Random, calm: Calm
) -> None:
    """Divides the network into halves, and heals it, at the times that are planned, counted from now."""
    began_seconds = anyio.current_time()
    for each in planned:
        await anyio.sleep_until(began_seconds + each.begins_seconds)
        hosts = [node.host for node in nodes]
        random.shuffle(hosts)
        lasting_seconds = each.ends_seconds - each.begins_seconds
        calm.disturb(lasting_seconds)
        network.partition(hosts[: len(hosts) // 2], hosts[len(hosts) // 2 :])
        await anyio.sleep(lasting_seconds)
        network.heal()
