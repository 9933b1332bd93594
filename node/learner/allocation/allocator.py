"""Which prompts a round uses, and how many completions each gets. Pure in (round, seed, configuration, knowledge).

Every method gives ``groups`` prompts and spends exactly ``groups × completions`` completions, at least two on each. A
class of prompts is a task. What is known of it is ``evidence`` (our own groups) and ``peer_success`` (what others
announced), which make

    p ~ Beta(a, b),   a = 1 + s + k q/2,   b = 1 + f + k (1 − q/2),   k = peer_prior · weight

where q is the best credible success announced, and p⁰ is the same with k = 0, from our own groups alone. The prior's
mean is q/2, halfway to q. No published allocator has that.

    uniform    tasks take turns, equal groups
    posterior  groups ∝ E[1 − p⁰] · E[1 − (1 − p)^x],   x = 3 · groups · completions / tasks
    sgpo       E[p] > .75 left out, < 1/16 kept one time in ten; completions ∝ 1/E[p], 2 to 8    (arXiv 2606.08854)
    dps        groups ∝ predicted share of prompts that are solved in part, equal groups         (arXiv 2603.10887)

The first factor of "posterior" is what a class has left to gain. The second is the chance of at least one success, from
which to gain it, among the completions that an even share makes in three rounds. It counts whether there are successes
and not, as p(1 − p) does, how many: that would starve hard classes, and a hard skill that gets less than others is
lost, since the policy grows sure of its wrong answers (docs/experiments/allocation.md). A class that nobody solves gets
less by the second factor; a peer that lies about a success can at most remove that factor.

Departures: both papers judge single prompts that recur; here prompts hardly ever recur, and classes are judged. sGPO
rounds 1/p to 2, 4 or 8 and orders an epoch from easy to hard; here the budget is exact, and a round is one batch. DPS
takes the best prompts only; here prompts are taken in proportion, since otherwise one class would take the whole round.
With nothing known every method treats tasks alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from node.configuration import AllocationSection
from node.learner.allocation.apportionment import bounded_shares, systematic_shares
from node.learner.allocation.evidence import Evidence, Solved
from node.learner.allocation.peer_success import Announced

PROMPT_SEEDS = 1 << 53  # far more than any task has prompts; the task takes it modulo its own number
MIN_COMPLETIONS = 2  # of a group: one completion alone has no group advantage
SOLVED, UNSOLVED = 0.75, 1 / 16  # sGPO's bounds on p; it finds p = 0 with eight samples
UNSOLVED_KEPT = 0.1
MAX_SGPO_COMPLETIONS = 8
ROUNDS_UNTIL_A_SUCCESS = 3  # of an even share, within which "posterior" wants a success


@dataclass(frozen=True, slots=True)
class Allocation:
    """One prompt to sample from."""

    task: str
    prompt_seed: int
    completions: int
    reason: str = "turn"  # why this class, for the round's report


@dataclass(frozen=True, slots=True)
class Known:
    """What an allocation may look at: the state of the posterior."""

    evidence: Evidence = field(default_factory=Evidence)
    peer_success: Mapping[str, Announced] = field(default_factory=dict)


UNIFORM = AllocationSection(method="uniform")
NOTHING_KNOWN = Known()


@dataclass(frozen=True, slots=True)
class Belief:
    """p ~ Beta(a, b) of one class."""

    a: float
    b: float

    def mean(self) -> float:
        return self.a / (self.a + self.b)

    def chance_of_success(self, completions: float) -> float:
        """E[1 − (1 − p)^x]: the probability that at least one of x completions is right."""
        b, total = self.b, self.a + self.b
        # E[(1 − p)^x] = B(a, b + x) / B(a, b)
        log = math.lgamma(b + completions) - math.lgamma(total + completions) + math.lgamma(total) - math.lgamma(b)
        return -math.expm1(min(log, 0.0))


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of ``allocate``."""

    round_number: int
    seed: str
    tasks: Sequence[str]
    groups: int
    completions: int
    section: AllocationSection
    known: Known

    def belief(self, task: str) -> Belief:
        return belief(task, self.known, self.section.peer_prior)


_Share = tuple[str, int, str]  # task, completions, reason: a prompt before it has a seed


def allocate(
    round_number: int,
    seed: str,
    tasks: Sequence[str],
    *,
    groups: int,
    completions: int,
    section: AllocationSection = UNIFORM,
    known: Known = NOTHING_KNOWN,
) -> list[Allocation]:
    """Returns ``groups`` prompts of ``tasks`` with ``groups × completions`` completions in all.

    Equal arguments give equal allocations on every machine. ``seed`` must differ between nodes: otherwise they would
    all practise on the same prompts.
    """
    shares = _METHODS[section.method](_Asked(round_number, seed, tasks, groups, completions, section, known))
    return [
        Allocation(
            task,
            random.Random(f"starling/prompt/{seed}/{round_number}/{index}").randrange(PROMPT_SEEDS),
            count,
            reason,
        )
        for index, (task, count, reason) in enumerate(shares)
    ]


def belief(task: str, known: Known, peer_prior: float) -> Belief:
    """Returns the posterior over our success on ``task``; Beta(1, 1) where nothing is known."""
    own, others = known.evidence.of(task), known.peer_success.get(task)
    weight = peer_prior * others.weight if others is not None else 0.0
    expected = others.success / 2 if others is not None else 0.0
    return Belief(1 + own.successes + weight * expected, 1 + own.failures + weight * (1 - expected))


def _uniform(asked: _Asked) -> list[_Share]:
    turns = range(asked.round_number * asked.groups, (asked.round_number + 1) * asked.groups)
    return [(_task_in_turn(position, asked.seed, asked.tasks), asked.completions, "turn") for position in turns]


def _posterior(asked: _Asked) -> list[_Share]:
    looked_for = ROUNDS_UNTIL_A_SUCCESS * asked.groups * asked.completions / len(asked.tasks)
    scores = {
        task: (1 - belief(task, asked.known, 0.0).mean()) * asked.belief(task).chance_of_success(looked_for)
        for task in asked.tasks
    }
    return [(task, asked.completions, "left to gain") for task in _drawn(asked, scores)]


def _dps(asked: _Asked) -> list[_Share]:
    evidence = asked.known.evidence
    scores = {task: float(evidence.of(task).predicted_states()[Solved.PART]) for task in asked.tasks}
    return [(task, asked.completions, "solved in part") for task in _drawn(asked, scores)]


def _sgpo(asked: _Asked) -> list[_Share]:
    success = {task: asked.belief(task).mean() for task in asked.tasks}
    kept = {task: UNSOLVED_KEPT if p < UNSOLVED else 1.0 for task, p in success.items() if p <= SOLVED}
    if not kept:
        return [(task, count, "all solved") for task, count, _ in _uniform(asked)]
    drawn = _drawn(asked, kept)
    most = max(MAX_SGPO_COMPLETIONS, asked.completions)
    counts = bounded_shares(
        [1 / success[task] for task in drawn], asked.groups * asked.completions, least=MIN_COMPLETIONS, most=most
    )
    reasons = ["unsolved" if kept[task] < 1 else "unsure" for task in drawn]
    return list(zip(drawn, counts, reasons, strict=True))


def _drawn(asked: _Asked, scores: Mapping[str, float]) -> list[str]:
    """Draws a task for each group, in proportion to scores, in random order: the first few are like the rest."""
    draws = random.Random(f"starling/tasks/{asked.seed}/{asked.round_number}")
    order = sorted(scores)
    draws.shuffle(order)
    counts = systematic_shares([scores[task] for task in order], asked.groups, draws.random())
    drawn = [task for task, count in zip(order, counts, strict=True) for _ in range(count)]
    draws.shuffle(drawn)
    return drawn


def _task_in_turn(position: int, seed: str, tasks: Sequence[str]) -> str:
    """Returns a task by its turn. The order is drawn anew after each cycle: over any stretch, counts differ by two at
    most."""
    cycle, place = divmod(position, len(tasks))
    order = sorted(tasks)
    random.Random(f"starling/tasks/{seed}/{cycle}").shuffle(order)
    return order[place]


_METHODS: Mapping[str, Callable[[_Asked], list[_Share]]] = {
    "uniform": _uniform,
    "posterior": _posterior,
    "sgpo": _sgpo,
    "dps": _dps,
}
