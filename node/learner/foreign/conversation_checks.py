"""Conversations of peers, played again here: which ones within a round's time, and who is wrong where they differ.

Replaying costs time that a stranger's actions decide, so it has a budget of its own, and what is not replayed is not
learnt from. The most useful ones a turn come first:

    use = (mean claimed reward − V_θ(class)) / turns of all conversations of the group

An environment has passed its audit here, and yet a sender's digests may differ from ours. One that differs has lied, or
runs something else under the same configuration. Where more senders differ from us in an environment than agree, and
``DIFFERING_PEERS`` at least, it is rather this node that does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from node.learner.generation.own_rollouts import RewardScorer
from node.tasks.scorer import Scores
from protocol.messages import PromptRef
from protocol.rollouts import Group
from swarm.recent import Recent

COMPLETIONS_AT_ONCE: Final = 8  # between two looks at the clock; the workers share them
DIFFERING_PEERS: Final = 3
REMEMBERED_PEERS: Final = 64  # of one environment


class Conversations(Protocol):
    """A peer's group of conversations whose prompt was made here."""

    @property
    def group(self) -> Group: ...

    def scoring_item(self) -> tuple[PromptRef, list[str]]: ...


@dataclass(frozen=True, slots=True)
class Replays:
    """``seconds``: of each round. ``clock`` gives monotonic seconds."""

    scorer: RewardScorer
    seconds: float
    clock: Callable[[], float] = time.monotonic

    def scores(self, groups: Sequence[Conversations], success: Callable[[str], float]) -> list[Scores | None]:
        """Returns what each group's actions lead to here; None for those that time did not suffice for. Takes longer
        than ``seconds`` by at most what ``COMPLETIONS_AT_ONCE`` of the scorer take."""
        until = self.clock() + self.seconds
        found: list[Scores | None] = [None] * len(groups)
        for place in most_useful_first([each.group for each in groups], success):
            found[place] = self._replayed(*groups[place].scoring_item(), until)
        return found

    def _replayed(self, ref: PromptRef, texts: Sequence[str], until: float) -> Scores | None:
        parts: list[Scores] = []
        for first in range(0, len(texts), COMPLETIONS_AT_ONCE):
            if self.clock() >= until:
                return None
            parts += self.scorer.score([(ref, [text]) for text in texts[first : first + COMPLETIONS_AT_ONCE]])
        return Scores(
            tuple(part.rewards[0] for part in parts),
            tuple(part.faults[0] for part in parts),
            tuple(part.played[0] if part.played else None for part in parts),
        )


def most_useful_first(groups: Sequence[Group], success: Callable[[str], float]) -> list[int]:
    """Returns the indices of ``groups``, by use as defined above."""

    def use(group: Group) -> float:
        turns = sum(len(completion.actions) for completion in group.completions)
        return (statistics.fmean(each.reward for each in group.completions) - success(group.prompt.task)) / turns

    return sorted(range(len(groups)), key=lambda place: -use(groups[place]))


@dataclass(slots=True)
class Agreement:
    """Which peers' conversations go here as they say, by environment. Of each the newest ``REMEMBERED_PEERS``."""

    _agrees: dict[str, Recent[str, bool]] = field(default_factory=dict)

    def note(self, environment: str, peer: str, agrees: bool) -> None:
        """A peer that has differed once counts as differing."""
        peers = self._agrees.setdefault(environment, Recent(REMEMBERED_PEERS))
        peers[peer] = agrees and peers.get(peer, True)

    def fault_is_ours(self, environment: str) -> bool:
        """Whether this node's own copy is rather wrong than its peers'."""
        agreeing = list(self._agrees[environment].values()) if environment in self._agrees else []
        return agreeing.count(False) >= DIFFERING_PEERS and agreeing.count(False) > agreeing.count(True)

    def own_faults(self) -> list[str]:
        """Returns the environments whose fault is ours."""
        return [environment for environment in self._agrees if self.fault_is_ours(environment)]
