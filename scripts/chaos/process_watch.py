"""What looks at all processes show over time: who outlives its supervisor, who is not waited for, whose memory grows.
Pure: the time is an argument."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean, median
from typing import Final, NamedTuple

from scripts.chaos.marked_processes import SUPERVISOR, Identity, SeenProcess

ORPHAN_SECONDS: Final = 60.0  # a supervisor waits so long for the children of a killed one
ZOMBIE_SECONDS: Final = 15.0
SAMPLE_SECONDS: Final = 5.0
LIFE_SECONDS: Final = 150.0  # of a process whose growth is judged
WARM_UP: Final = 0.4  # of a life: before that, growth is caches that fill
SHARE: Final = 0.2  # of a life over which a mean is taken


class MemorySample(NamedTuple):
    at_seconds: float
    memory_bytes: int  # resident or in the machine's swap
    descriptors: int


class Growth(NamedTuple):
    """Of one process: from the middle of its life to its end."""

    kind: str
    bytes: float
    descriptors: float


class ProcessWatch:
    """All looks so far."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, Identity], list[MemorySample]] = defaultdict(list)
        self._sampled_at = -SAMPLE_SECONDS
        self._cpu: dict[tuple[str, Identity], float] = {}
        self._orphan_since: dict[Identity, float] = {}
        self._zombie_since: dict[Identity, float] = {}
        self.longest_orphan_seconds = 0.0
        self.most_descriptors: Counter[str] = Counter()
        self.most_memory_bytes: Counter[str] = Counter()
        self.most_swapped_bytes: Counter[str] = Counter()
        self.seen: Sequence[SeenProcess] = ()

    def judge(self, seen: Sequence[SeenProcess], ended: Sequence[Identity], *, now: float) -> list[str]:
        """Takes in one look at all processes; returns in words what must not be, each only once.

        ``ended``: those that have ended and whose living parents have not waited for them.
        """
        self.seen = seen
        if now - self._sampled_at >= SAMPLE_SECONDS:
            self._sampled_at = now
            for each in self.seen:
                self._sample(each, now)
        for each in self.seen:
            self._cpu[each.kind, each.identity] = each.cpu_seconds
        return [*self._orphans(now), *self._zombies(now, ended)]

    def of(self, node: int, kind: str) -> SeenProcess | None:
        """Returns the node's process of this kind at the last look, if there was one."""
        return next((each for each in self.seen if (each.node, each.kind) == (node, kind)), None)

    def cpu_seconds(self, kind: str) -> float:
        return sum(seconds for (of_kind, _), seconds in self._cpu.items() if of_kind == kind)

    def growth(self) -> list[Growth]:
        """Returns the growth of every process that lived for ``LIFE_SECONDS``."""
        found = []
        for (kind, _), samples in self._samples.items():
            life = samples[-1].at_seconds - samples[0].at_seconds
            if life < LIFE_SECONDS:
                continue
            began = samples[0].at_seconds
            middle = [s for s in samples if WARM_UP <= (s.at_seconds - began) / life <= WARM_UP + SHARE]
            last = [s for s in samples if (s.at_seconds - began) / life >= 1.0 - SHARE]
            if middle and last:
                found.append(
                    Growth(
                        kind,
                        fmean(s.memory_bytes for s in last) - fmean(s.memory_bytes for s in middle),
                        fmean(s.descriptors for s in last) - fmean(s.descriptors for s in middle),
                    )
                )
        return found

    def _sample(self, seen: SeenProcess, now: float) -> None:
        memory_bytes = seen.resident_bytes + seen.swapped_bytes
        self._samples[seen.kind, seen.identity].append(MemorySample(now, memory_bytes, seen.descriptors))
        self.most_descriptors[seen.kind] = max(self.most_descriptors[seen.kind], seen.descriptors)
        self.most_memory_bytes[seen.kind] = max(self.most_memory_bytes[seen.kind], memory_bytes)
        self.most_swapped_bytes[seen.kind] = max(self.most_swapped_bytes[seen.kind], seen.swapped_bytes)

    def _orphans(self, now: float) -> list[str]:
        """A child whose supervisor is gone has some time to end in order; while it is stopped, it cannot."""
        supervisors = {each.identity.pid for each in self.seen if each.kind == SUPERVISOR}
        lost = [e for e in self.seen if e.kind != SUPERVISOR and e.parent not in supervisors and not e.stopped]
        self._orphan_since = {each.identity: self._orphan_since.get(each.identity, now) for each in lost}
        told = []
        for each in lost:
            seconds = now - self._orphan_since[each.identity]
            if self.longest_orphan_seconds <= ORPHAN_SECONDS < seconds:
                told.append(
                    f"{each.kind} {each.identity.pid} of node {each.node} has had no supervisor for {seconds:.0f} s"
                )
            self.longest_orphan_seconds = max(self.longest_orphan_seconds, seconds)
        return told

    def _zombies(self, now: float, ended: Sequence[Identity]) -> list[str]:
        before, told = self._zombie_since, []
        self._zombie_since = {identity: before.get(identity, now) for identity in ended}
        for identity, since in self._zombie_since.items():
            if now - since > ZOMBIE_SECONDS:
                self._zombie_since[identity] = float("inf")  # told once
                told.append(
                    f"process {identity.pid} ended {now - since:.0f} s ago, and its parent has not waited for it"
                )
        return told


def median_of(growths: Sequence[Growth], kind: str) -> tuple[float, float]:
    """Returns the median growth of this kind of process in bytes and in descriptors; 0 where none lived long enough."""
    those = [growth for growth in growths if growth.kind == kind]
    return (median(g.bytes for g in those), median(g.descriptors for g in those)) if those else (0.0, 0.0)


def most_of(growths: Sequence[Growth], kind: str) -> tuple[float, float]:
    """Returns the most growth of a process of this kind in bytes and in descriptors."""
    those = [growth for growth in growths if growth.kind == kind]
    return max((g.bytes for g in those), default=0.0), max((g.descriptors for g in those), default=0.0)
