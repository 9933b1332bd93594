"""When every pass of a training step runs where a model's layers lie on several machines, and how long they wait. Pure.

The owner has the embedding, the head and the first layers. Hidden states come back to it, and it takes the loss. So a
tied embedding is there once, and no other machine is sent tokens or rewards, though hidden states of early layers tell
which tokens they are of. A micro-batch is a chain:

    owner forward, second forward, …, last forward, owner's turn, last backward, …, second backward, owner backward

In a ``star``, which is how nodes do it, each machine answers the owner, and the owner sends on what came: between two
machines is a turn of the owner's of no seconds. In a ``ring`` each machine sends to the next one.

The owner computes in an order that is fixed beforehand, so that sums do not depend on which machine was faster
(``owner_order``): some micro-batches are begun; then, each time, one more has its turn at the head, one that had its
turn some turns before goes back through the owner's layers, and a new one begins. With as many micro-batches as stages
that is 1F1B (PipeDream-Flush, "Memory-Efficient Pipeline-Parallel DNN Training", arXiv 2006.09503); with more of them
the owner finds what it is to compute next, though messages take time. The other machines compute in the order in which
work arrives. A machine sends one message at a time through its one uplink, in the order in which they are made, while
it computes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Final

from msgspec import Struct

SLOWER: Final = 1.03


class OwnerOrder(Struct, frozen=True):
    """In which order the owner computes."""

    begun: int  # micro-batches under way at a time, at most
    behind: int  # of these, how many have their turn at the head before the first of them goes back; fewer than begun


@dataclass(frozen=True, slots=True)
class Sent:
    """What a message takes: of the sender's uplink, and then on its way."""

    seconds: float = 0.0
    delay_seconds: float = 0.0


AT_ONCE: Final = Sent()


@dataclass(frozen=True, slots=True)
class Work:
    """What one micro-batch needs of ``machine``, before the result is sent to the next one."""

    machine: int
    seconds: float
    sent: Sent = AT_ONCE
    relayed: bool = False  # by the owner, which only sends it on


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


def ring(stages: Sequence[StageSeconds], turn_seconds: float, sent: Sent) -> tuple[Work, ...]:
    """Returns the chain of a micro-batch; the owner is machine 0, and its turn at the head takes ``turn_seconds``."""
    there = [Work(number, each.forward, sent) for number, each in enumerate(stages)]
    back = [Work(number, each.backward, sent) for number, each in enumerate(stages)][::-1]
    return (*there, Work(0, turn_seconds, sent), *back)


def star(stages: Sequence[StageSeconds], turn_seconds: float, links: Sequence[Sent]) -> tuple[Work, ...]:
    """As ``ring``, through the owner each time; ``links`` between it and each of the others."""
    own, others = stages[0], list(zip(range(1, len(stages)), stages[1:], links, strict=True))
    there, back = list[Work](), list[Work]()
    for number, each, link in others:
        # What goes to the first comes from the owner's layers, to the others from the one before.
        first = number == 1
        there += [Work(0, own.forward if first else 0.0, link, relayed=not first), Work(number, each.forward, link)]
    for number, each, link in others[::-1]:
        last = number == len(others)
        back += [Work(0, turn_seconds if last else 0.0, link, relayed=not last), Work(number, each.backward, link)]
    return (*there, *back, Work(0, own.backward))


def owner_order(micro_batches: int, order: OwnerOrder) -> list[int]:
    """Returns which micro-batch the owner works on, each three times: forward, at the head, and back."""
    begun = min(order.begun, micro_batches)
    behind, following = min(order.behind, begun - 1), begun
    found = list(range(begun))
    for number in range(micro_batches + behind):
        if number < micro_batches:
            found.append(number)
        if number >= behind:
            found.append(number - behind)
            if following < micro_batches:
                found.append(following)
                following += 1
    return found


def timeline(chain: Sequence[Work], micro_batches: int, order: OwnerOrder) -> Timeline:
    """Returns how ``micro_batches`` equal ones go through."""
    machines = 1 + max(work.machine for work in chain)
    waiting: list[deque[tuple[int, int]]] = [deque() for _ in range(machines)]  # (micro-batch, place in the chain)
    at_owner: dict[int, int] = dict.fromkeys(range(micro_batches), 0)  # micro-batch → place, of what has arrived there
    due = deque(owner_order(micro_batches, order))
    running = [False] * machines
    uplink, busy = [0.0] * machines, [0.0] * machines
    holding, held = [set[int]() for _ in range(machines)], [0] * machines
    last = {work.machine: place for place, work in enumerate(chain)}
    events: list[tuple[float, int, int, int, bool]] = []  # (time, number, micro-batch, place, whether it has run)
    numbers, now = count(), 0.0

    def run(number: int, place: int) -> None:
        machine = chain[place].machine
        running[machine] = True
        holding[machine].add(number)
        held[machine] = max(held[machine], len(holding[machine]))
        busy[machine] += chain[place].seconds
        heapq.heappush(events, (now + chain[place].seconds, next(numbers), number, place, True))

    def follow(number: int, place: int) -> None:
        """The work at ``place`` has run."""
        machine = chain[place].machine
        if place == last[machine]:
            holding[machine].discard(number)
        if place + 1 == len(chain):
            return
        arrives = now
        if chain[place + 1].machine != machine:
            uplink[machine] = max(uplink[machine], now) + chain[place].sent.seconds
            arrives = uplink[machine] + chain[place].sent.delay_seconds
        heapq.heappush(events, (arrives, next(numbers), number, place + 1, False))

    while True:
        if due and not running[0] and due[0] in at_owner:
            number = due.popleft()
            run(number, at_owner.pop(number))
        for machine in range(1, machines):
            if waiting[machine] and not running[machine]:
                run(*waiting[machine].popleft())
        if not events:
            return Timeline(now, tuple(1 - each / now for each in busy), tuple(held))
        now, _, number, place, has_run = heapq.heappop(events)
        work = chain[place]
        if has_run:
            running[work.machine] = False
            follow(number, place)
        elif work.machine > 0:
            waiting[work.machine].append((number, place))
        elif work.relayed:
            follow(number, place)
        else:
            at_owner[number] = place


@lru_cache(maxsize=256)  # of a plan's many settings few differ in this
def best_timeline(chain: tuple[Work, ...], micro_batches: int, most_begun: int) -> tuple[Timeline, OwnerOrder]:
    """Returns the one with the fewest micro-batches begun at once, of 1 to ``most_begun``, that takes at most
    ``SLOWER`` times as long as the fastest."""
    ways = [
        (timeline(chain, micro_batches, order), order)
        for begun in range(1, min(most_begun, micro_batches) + 1)
        for order in (OwnerOrder(begun, behind) for behind in range(begun) if abs(behind - begun / 2) <= 1)  # or worse
    ]
    fastest = min(way.seconds for way, _ in ways)
    begun = next(order.begun for way, order in ways if way.seconds <= SLOWER * fastest)
    return min((each for each in ways if each[1].begun == begun), key=lambda each: each[0].seconds)
