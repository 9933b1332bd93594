"""The record of one round while it runs: its counts, and the seconds of each phase."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from node.events import Phases, TurnsUsed
from node.learner.foreign.intake import Incoming
from node.learner.foreign.outcomes import MAX_PEERS, OTHERS, ForeignOutcomes
from node.learner.generation.generation import Generated
from node.learner.objective.batch import SELF
from node.learner.state.learner_state import LearnerState
from node.tasks.scorer import Scores

PHASES = Phases.__struct_fields__  # in the order of a round


class Stopwatch:
    """Seconds by phase of a round, from a monotonic clock. They are reported, and they bound how long a round waits for
    foreign groups; they decide nothing else."""

    def __init__(self, on_begin: Callable[[str], None] = lambda phase: None) -> None:
        """``on_begin`` is called with every phase when it begins."""
        self._began = self._last = time.monotonic()
        self._on_begin = on_begin
        self.seconds: dict[str, float] = {}
        on_begin(PHASES[0])

    def lap(self, phase: str) -> float:
        """Ends ``phase``, which began when the one before it ended; returns its seconds."""
        now = time.monotonic()
        self.seconds[phase], self._last = now - self._last, now
        if phase != PHASES[-1]:
            self._on_begin(PHASES[PHASES.index(phase) + 1])
        return self.seconds[phase]

    def total(self) -> float:
        return self._last - self._began


@dataclass(slots=True)
class RoundRecord:
    """The counts of one round, and its seconds."""

    watch: Stopwatch = field(default_factory=Stopwatch)
    own_groups: int = 0  # complete, dropped ones included
    own_groups_informative: int = 0
    own_groups_dropped: int = 0  # because all their rewards were equal
    own_groups_resumed: int = 0
    own_groups_unfinished: int = 0  # left for later rounds
    staleness_mean: float | None = None  # versions, over own completions that are learnt from
    staleness_max: int | None = None
    tokens_generated: int = 0
    foreign_fetched: int = 0
    foreign_waiting: int = 0
    foreign: ForeignOutcomes = field(default_factory=ForeignOutcomes)
    hints: int = 0  # that own completions were sampled with
    hints_right: int = 0
    foreign_completions: int = 0  # trained on
    bytes_fetched: int = 0
    completions_by_task: dict[str, int] = field(default_factory=dict)  # of own groups, as allocated
    groups_offered: int = 0
    scoring_failures: int = 0
    scoring_fault: str | None = None  # the first of them, for people
    environments_at_fault: tuple[str, ...] = ()  # in which peers' conversations go otherwise here, and it is not them
    alone_because: str | None = None
    reward_by_task: dict[str, float] = field(default_factory=dict)
    turns_by_task: dict[str, tuple[TurnsUsed, ...]] = field(default_factory=dict)
    reward: float = 0.0
    gradient_mass_by_task: dict[str, dict[str, float]] = field(default_factory=dict)  # then by peer

    def incoming(self, incoming: Incoming) -> None:
        """Takes what arrived, and what was decided on the groups that are not used."""
        self.bytes_fetched = incoming.bytes_fetched
        self.foreign_fetched, self.foreign_waiting = incoming.fetched, incoming.waiting
        for decided in incoming.decided:
            self.foreign.note(decided)
        if incoming.late:
            self.foreign.note_late()
        self.alone_because = incoming.alone_because

    def learnt_from(self, sources: Iterable[tuple[str, str, float]]) -> None:
        """Takes the groups that the step was taken on, each as task, peer and mass; those without a mass teach nothing.
        Peers beyond ``MAX_PEERS`` are counted together, so that the report is bounded."""
        by_task: dict[str, dict[str, float]] = {}
        named: set[str] = {SELF}
        for task, peer, mass in sources:
            if not (mass > 0 and math.isfinite(mass)):
                continue
            if peer not in named:
                if len(named) > MAX_PEERS:
                    peer = OTHERS
                else:
                    named.add(peer)
            masses = by_task.setdefault(task, {})
            masses[peer] = masses.get(peer, 0.0) + mass
        self.gradient_mass_by_task = {
            task: {peer: float(f"{mass:.4g}") for peer, mass in by_peer.items()} for task, by_peer in by_task.items()
        }

    def generated(self, generated: Generated, policy_version: int) -> None:
        """Takes what was generated; ``policy_version`` is that of the weights that learn from it."""
        self.own_groups = len(generated.rollouts) + len(generated.dropped)
        self.own_groups_dropped = len(generated.dropped)
        self.own_groups_resumed = generated.resumed
        self.own_groups_unfinished = len(generated.unfinished)
        self.tokens_generated = generated.tokens
        behind = [policy_version - sample.oldest_version for r in generated.rollouts for sample in r.samples]
        if behind:
            self.staleness_mean, self.staleness_max = sum(behind) / len(behind), max(behind)

    def rewards(self, rewards_by_task: Mapping[str, Sequence[float]], scores: Sequence[Scores]) -> None:
        """Takes the rewards and scores of all own groups."""
        self.reward_by_task = {task: sum(r) / len(r) for task, r in sorted(rewards_by_task.items()) if r}
        self.completions_by_task = {task: len(r) for task, r in sorted(rewards_by_task.items())}
        everything = [reward for rewards in rewards_by_task.values() for reward in rewards]
        self.reward = sum(everything) / len(everything) if everything else 0.0
        faults = [fault for each in scores for fault in each.faults if fault is not None]
        self.scoring_failures = len(faults)
        self.scoring_fault = f"{faults[0].reason}: {faults[0].detail}" if faults else None

    def count_in(self, state: LearnerState, rewards_by_task: Mapping[str, Sequence[float]]) -> None:
        """Counts the round in the learner's state; ``rewards_by_task`` are those by which its success is known."""
        state.round += 1
        state.tokens_generated += self.tokens_generated
        state.groups_shared += self.groups_offered
        state.foreign_groups_used += self.foreign.used
        state.foreign_completions += self.foreign_completions
        state.bytes_fetched += self.bytes_fetched
        state.success.observe(rewards_by_task)
