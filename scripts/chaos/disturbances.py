"""What happens to which node, when, and for how long: drawn from a seed, before anything is started. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from scripts.chaos.conditions import Lie

NODE_SECONDS: Final = 75.0  # between two disturbances of one node, on average
KEPT_ALIVE_EVERY: Final = 4  # one node in so many has no process killed, so that growth shows


class Kind(StrEnum):
    KILL_LEARNER = "kill -9 learner"
    KILL_SWARM = "kill -9 swarm"
    KILL_SUPERVISOR = "kill -9 supervisor"
    STOP_LEARNER = "stop learner"
    STOP_SWARM = "stop swarm"
    STOP_SUPERVISOR = "stop supervisor"
    NO_MEMORY_LEARNER = "no more memory for learner"
    NO_MEMORY_SWARM = "no more memory for swarm"
    NO_MEMORY_SUPERVISOR = "no more memory for supervisor"
    OUT_OF_MEMORY = "machine out of memory"
    SWAPPING = "machine that swaps"
    FULL_DISK = "full disk"
    SLOW_DISK = "slow disk"
    CLOCK = "clock jump"
    NAMES = "lying name servers"
    SLOW = "slow link"
    DOWN = "interface down"
    CUT_OFF = "node cut off"
    PARTITION = "partition"


NO_MEMORY: Final = frozenset({Kind.NO_MEMORY_LEARNER, Kind.NO_MEMORY_SWARM, Kind.NO_MEMORY_SUPERVISOR})
KILLS: Final = frozenset(  # or may
    {Kind.KILL_LEARNER, Kind.KILL_SWARM, Kind.KILL_SUPERVISOR, Kind.OUT_OF_MEMORY, Kind.SWAPPING, *NO_MEMORY}
)
NEED_GROUPS: Final = frozenset({Kind.OUT_OF_MEMORY, Kind.SWAPPING})  # of memory; a group has one limit
NEED_NAMESPACES: Final = frozenset({Kind.SLOW, Kind.DOWN, Kind.CUT_OFF, Kind.PARTITION})
WEIGHTS: Final[Mapping[Kind, float]] = {
    Kind.KILL_LEARNER: 3,
    Kind.KILL_SWARM: 3,
    Kind.KILL_SUPERVISOR: 2,
    Kind.STOP_LEARNER: 1,
    Kind.STOP_SWARM: 2,
    Kind.STOP_SUPERVISOR: 2,
    Kind.NO_MEMORY_LEARNER: 1,
    Kind.NO_MEMORY_SWARM: 1,
    Kind.NO_MEMORY_SUPERVISOR: 1,
    Kind.OUT_OF_MEMORY: 1,
    Kind.SWAPPING: 1,
    Kind.FULL_DISK: 3,
    Kind.SLOW_DISK: 2,
    Kind.CLOCK: 2,
    Kind.NAMES: 2,
    Kind.SLOW: 2,
    Kind.DOWN: 2,
    Kind.CUT_OFF: 2,
    Kind.PARTITION: 0.5,
}
HELD_SECONDS: Final[Mapping[Kind, tuple[float, float]]] = {  # least and most; a kill holds for an instant
    Kind.STOP_LEARNER: (2, 30),
    Kind.STOP_SWARM: (2, 45),
    Kind.STOP_SUPERVISOR: (2, 30),
    Kind.NO_MEMORY_LEARNER: (5, 45),
    Kind.NO_MEMORY_SWARM: (5, 45),
    Kind.NO_MEMORY_SUPERVISOR: (5, 45),
    Kind.OUT_OF_MEMORY: (5, 60),
    Kind.SWAPPING: (10, 60),
    Kind.FULL_DISK: (30, 75),
    Kind.SLOW_DISK: (10, 60),
    Kind.CLOCK: (10, 60),
    Kind.NAMES: (20, 90),
    Kind.SLOW: (10, 60),
    Kind.DOWN: (5, 60),
    Kind.CUT_OFF: (5, 60),
    Kind.PARTITION: (10, 45),
}
CLOCK_SECONDS: Final = (-86400.0, -3600.0, -600.0, -30.0, 30.0, 600.0, 3600.0, 86400.0)
SLOW_MEGABITS: Final = (0.1, 0.5, 2.0)
SLOW_DISK_SECONDS: Final = (0.05, 0.3, 1.0)
KEPT_MEMORY: Final = (0.15, 0.3, 0.6)
LIES: Final = tuple(float(lie) for lie in Lie if lie is not Lie.NONE)
AMOUNTS: Final[Mapping[Kind, tuple[float, ...]]] = {
    Kind.CLOCK: CLOCK_SECONDS,
    Kind.SLOW: SLOW_MEGABITS,
    Kind.SLOW_DISK: SLOW_DISK_SECONDS,
    Kind.NAMES: LIES,
    Kind.SWAPPING: KEPT_MEMORY,
}


@dataclass(frozen=True, slots=True)
class Disturbance:
    at_seconds: float  # since the start of the schedule
    until_seconds: float
    kind: Kind
    nodes: tuple[int, ...]  # of a partition, those on one side
    # Of a clock and a disk: seconds; of a slow link: megabits a second; of names: which lie; of swapping: what share of
    # its memory a node keeps.
    amount: float = 0.0

    def __str__(self) -> str:
        amount = f" {self.amount:g}" if self.amount else ""
        return f"{self.kind}{amount} of {','.join(map(str, self.nodes))}"


def is_kept_alive(node: int) -> bool:
    return node % KEPT_ALIVE_EVERY == 0


def drawn(
    seed: int, nodes: int, seconds: float, allowed: frozenset[Kind], small_disks: frozenset[int]
) -> list[Disturbance]:
    """Returns the disturbances by time; each is over before ``seconds``.

    Disks are filled on ``small_disks`` alone, and these nodes do not swap. No node has two disturbances of one kind at
    once, nor two that limit its group; different ones overlap.
    """
    random = Random(seed)
    kinds = [kind for kind in Kind if kind in allowed and (kind is not Kind.FULL_DISK or small_disks)]
    weights = [WEIGHTS[kind] for kind in kinds]
    busy_until: dict[tuple[Kind, int], float] = {}
    found: list[Disturbance] = []
    at = random.expovariate(nodes / NODE_SECONDS)
    while at < seconds:
        kind = random.choices(kinds, weights)[0]
        until = at + random.uniform(*HELD_SECONDS.get(kind, (0.0, 0.0)))
        amount = random.choice(AMOUNTS.get(kind, (0.0,)))
        if kind is Kind.PARTITION:
            hit = tuple(sorted(random.sample(range(nodes), random.randint(1, max(1, nodes // 2)))))
            places = [(Kind.PARTITION, -1)]
        else:
            # The files on a small disk are memory of its node's group: while it swaps, nobody else could read them.
            excluded = small_disks if kind is Kind.SWAPPING else frozenset[int]()
            those = [n for n in range(nodes) if n not in excluded and not (kind in KILLS and is_kept_alive(n))]
            hit = (random.choice(sorted(small_disks) if kind is Kind.FULL_DISK else those),)
            places = [(Kind.OUT_OF_MEMORY if kind in NEED_GROUPS else kind, hit[0])]
        if until <= seconds and all(busy_until.get(place, 0.0) <= at for place in places):
            busy_until |= dict.fromkeys(places, until)
            found.append(Disturbance(at, until, kind, hit, amount))
        at += random.expovariate(nodes / NODE_SECONDS)
    return found
