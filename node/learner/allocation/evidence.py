"""What the learner's own completions show about each class of prompts, with forgetting λ. A class is a task.

    success p ~ Beta(a0 + s, b0 + f)     s ← λ s + Σ R,  f ← λ f + Σ (1 − R)       over one round's own completions
    groups solved by none, part or all of their completions: a chain of three states, as in DPS (arXiv 2603.10887)
        predicted   b⁻ = b T,   T = rows of (1 + N), normalised                    Dirichlet(1) over transitions
        observed    N ← λ N + n · E[from, to | to ~ o],   b = (b⁻ + n o) / (1 + n)    n groups, o their shares by state

DPS keeps a chain for each prompt and repeats its prompts; prompts here hardly ever recur, so the chain is that of a
class, and its state is the share of the class's prompts in each of the three. Every class forgets in every round,
practised or not: a class that was not practised for long is uncertain again, and so is practised again. Rewards count
clipped to 0 … 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Solved(IntEnum):
    """How many of a group's completions solve its prompt. A group teaches where they differ."""

    NONE = 0
    PART = 1
    ALL = 2


UNKNOWN_STATES = (1 / 3, 1 / 3, 1 / 3)
NO_TRANSITIONS = ((0.0, 0.0, 0.0),) * 3
ALL_SOLVED_REWARD = 0.5  # a group of equal rewards counts as solved by all from here up


@dataclass(frozen=True, slots=True)
class ClassEvidence:
    """Discounted sums. They contain no prior, so that what others announce can change the prior at any time."""

    successes: float = 0.0
    failures: float = 0.0
    states: tuple[float, ...] = UNKNOWN_STATES  # (3,) by ``Solved``, after the last observation
    transitions: tuple[tuple[float, ...], ...] = NO_TRANSITIONS  # (3, 3) from, to

    def predicted_states(self) -> NDArray[np.float64]:
        """Returns the (3,) shares of the class's prompts solved by none, part and all, one round later."""
        counts = 1.0 + np.array(self.transitions)
        return np.asarray(np.array(self.states) @ (counts / counts.sum(axis=1, keepdims=True)))

    def after_round(self, groups: Sequence[Sequence[float]], forgetting: float) -> ClassEvidence:
        """Returns the evidence after one more round in which ``groups`` of rewards, perhaps none, were seen."""
        rewards = [min(max(reward, 0.0), 1.0) for group in groups for reward in group]
        successes = forgetting * self.successes + sum(rewards)
        failures = forgetting * self.failures + len(rewards) - sum(rewards)
        counts = 1.0 + np.array(self.transitions)  # (3, 3)
        joint = np.array(self.states)[:, None] * counts / counts.sum(axis=1, keepdims=True)  # P(from, to)
        predicted = joint.sum(axis=0)
        kept = forgetting * np.array(self.transitions)
        if groups:
            seen = np.bincount([solved(group) for group in groups], minlength=len(Solved)).astype(np.float64)
            kept = kept + joint / predicted * seen
            predicted = (predicted + seen) / (1.0 + seen.sum())
        return ClassEvidence(successes, failures, tuple(predicted.tolist()), tuple(map(tuple, kept.tolist())))


def solved(rewards: Sequence[float]) -> Solved:
    """Returns the state of one group, which has at least one completion."""
    if min(rewards) < max(rewards):
        return Solved.PART
    return Solved.ALL if rewards[0] >= ALL_SOLVED_REWARD else Solved.NONE


@dataclass(slots=True)
class Evidence:
    """The evidence of every class seen so far. The caller must observe own completions only."""

    classes: dict[str, ClassEvidence] = field(default_factory=dict)

    def of(self, name: str) -> ClassEvidence:
        return self.classes.get(name, ClassEvidence())

    def observe(self, groups: Sequence[tuple[str, Sequence[float]]], forgetting: float) -> None:
        """Takes one round's groups, each as the name of its class and its rewards."""
        by_class: dict[str, list[Sequence[float]]] = {name: [] for name in self.classes}
        for name, rewards in groups:
            by_class.setdefault(name, []).append(rewards)
        self.classes = {name: self.of(name).after_round(of_class, forgetting) for name, of_class in by_class.items()}

    def snapshot(self) -> dict[str, Any]:
        return {
            name: {
                "successes": each.successes,
                "failures": each.failures,
                "states": list(each.states),
                "transitions": [list(row) for row in each.transitions],
            }
            for name, each in self.classes.items()
        }

    @classmethod
    def restored(cls, snapshot: Mapping[str, Any]) -> Evidence:
        return cls(
            {
                name: ClassEvidence(
                    float(each["successes"]),
                    float(each["failures"]),
                    tuple(map(float, each["states"])),
                    tuple(tuple(map(float, row)) for row in each["transitions"]),
                )
                for name, each in snapshot.items()
            }
        )
