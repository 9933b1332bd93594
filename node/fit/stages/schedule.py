"""When every pass of a training step runs where a model's layers lie on several machines, and how long they wait. Pure.

The owner has the embedding, the head and the first layers. Hidden states come back to it, and it takes the loss. So a
tied embedding is there once, and no other machine is sent tokens or rewards, though hidden states of early layers tell
which tokens they are of. A micro-batch is a chain:

    owner forward, second forward, …, last forward, owner's turn, last backward, …, second backward, owner backward

In a ``star``, which is how nodes do it, each machine answers the owner, and the owner sends on what came: between two
machines is a turn of the owner's of no seconds. In a ``ring`` each machine sends to the next one.

A machine that is free takes of the work that has arrived what is furthest along its chain: a backward pass before a
forward pass, as 1F1B does (PipeDream-Flush, "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503). There
the number of stages is enough micro-batches at once. Here the owner may be in a forward pass when its turn comes, and
messages take time, so more of them are begun. A machine sends one message at a time through its one uplink, in the
order in which they are made, while it computes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SLOWER: Final = 1.03


@dataclass(frozen=True, slots=True)
class Work:
    """What one micro-batch needs of ``machine``, and then of its uplink until the result is sent to the next one."""

    machine: int
    seconds: float
    sent_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """What one micro-batch takes in a machine's layers."""

    forward: float
    backward: float


@dataclass(frozen=True, slots=True)
class Timeline:
    seconds: float  # until the last backward pass has ended
    idle: tuple[float, ...]  # of each machine, the share of that time in which it does not compute
    held: tuple[int, ...]  # the most micro-batches that each holds between their forward and their backward pass


def ring(stages: Sequence[StageSeconds], turn_seconds: float, sent_seconds: float) -> list[Work]:
    """Returns the chain of a micro-batch; the owner is machine 0, and its turn at the head takes ``turn_seconds``."""
    there = [Work(number, each.forward, sent_seconds) for number, each in enumerate(stages)]
    back = [Work(number, each.backward, sent_seconds) for number, each in enumerate(stages)][::-1]
    return [*there, Work(0, turn_seconds, sent_seconds), *back]


def star(stages: Sequence[StageSeconds], turn_seconds: float, sent_seconds: float) -> list[Work]:
    """As ``ring``, through the owner each time."""
    relayed = Work(0, 0.0, sent_seconds)
    own, others = stages[0], list(enumerate(stages))[1:]
    there, back = [Work(0, own.forward, sent_seconds)], [Work(0, turn_seconds, sent_seconds)]
    for number, each in others:
        there += [*([relayed] if number > 1 else []), Work(number, each.forward, sent_seconds)]
    for number, each in others[::-1]:
        back += [Work(number, each.backward, sent_seconds), *([relayed] if number > 1 else [])]
    return [*there, *back, Work(0, own.backward)]


def timeline(chain: Sequence[Work], micro_batches: int, begun: int, delay_seconds: float = 0.0) -> Timeline:
    """Returns how ``micro_batches`` equal ones go through, at most ``begun`` at once. A message is there
    ``delay_seconds`` after it was sent."""
    machines = 1 + max(work.machine for work in chain)
    waiting: list[list[tuple[int, int]]] = [[] for _ in range(machines)]  # (-place in the chain, micro-batch)
    running = [False] * machines
    uplink, busy = [0.0] * machines, [0.0] * machines
    holding, held = [set[int]() for _ in range(machines)], [0] * machines
    last = {work.machine: place for place, work in enumerate(chain)}
    begun = min(begun, micro_batches)
    events = [(0.0, number, 0, False) for number in range(begun)]  # (time, micro-batch, place, whether it has run)
    now = 0.0
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, number, place, has_run = heapq.heappop(events)
            work = chain[place]
            if not has_run:
                heapq.heappush(waiting[work.machine], (-place, number))
                continue
            running[work.machine] = False
            if place == last[work.machine]:
                holding[work.machine].discard(number)
            if place + 1 < len(chain):
                arrives = now
                if chain[place + 1].machine != work.machine:
                    uplink[work.machine] = max(uplink[work.machine], now) + work.sent_seconds
                    arrives = uplink[work.machine] + delay_seconds
                heapq.heappush(events, (arrives, number, place + 1, False))
            elif begun < micro_batches:
                heapq.heappush(events, (now, begun, 0, False))
                begun += 1
        for machine in range(machines):
            if waiting[machine] and not running[machine]:
                place, number = heapq.heappop(waiting[machine])
                running[machine] = True
                holding[machine].add(number)
                held[machine] = max(held[machine], len(holding[machine]))
                busy[machine] += chain[-place].seconds
                heapq.heappush(events, (now + chain[-place].seconds, number, -place, True))
    return Timeline(now, tuple(1 - each / now for each in busy), tuple(held))


def best_timeline(chain: Sequence[Work], micro_batches: int, most_begun: int, delay_seconds: float = 0.0) -> Timeline:
    """Returns the one with the fewest micro-batches begun at once, of 1 to ``most_begun``, that takes at most
    ``SLOWER`` times as long as the fastest."""
    ways = [timeline(chain, micro_batches, begun, delay_seconds) for begun in range(1, most_begun + 1)]
    fastest = min(way.seconds for way in ways)
    return next(way for way in ways if way.seconds <= SLOWER * fastest)
