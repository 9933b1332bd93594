"""A node's part in a swarm of GenRL: what it shares with others, over GenRL's back end on hivemind, and what it takes.

The rule is that of SAPO (arXiv 2509.08721), whose reference implementation GenRL is: every node shares its groups; of
those of others it recomputes the rewards, leaves out groups without an advantage, and draws some of the rest, which it
learns from as from its own. The newest groups of each node are kept under one key, so that nobody waits for the others.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

Score = Callable[[Sequence[tuple[str, int, str]]], list[float]]

_KEY: Final = b"rollouts"


@dataclass(frozen=True)
class Group:
    """Answers to one question, which ``task`` and ``seed`` name."""

    task: str
    seed: int
    text: str
    answers: list[str]
    rewards: list[float] = field(default_factory=list)


def rewarded(groups: Sequence[Group], score: Score) -> list[Group]:
    """Returns the groups with the rewards of their answers, computed here."""
    rewards = iter(score([(group.task, group.seed, answer) for group in groups for answer in group.answers]))
    return [replace(group, rewards=list(itertools.islice(rewards, len(group.answers)))) for group in groups]


class NoSwarm:
    """A node alone."""

    def share(self, groups: Sequence[Group]) -> None:
        """Nobody is there."""

    def drawn(self, count: int) -> list[Group]:
        return []

    def close(self) -> None:
        """There is nothing to end."""


class GenrlSwarm:
    def __init__(self, peer: str, score: Score, draws: random.Random) -> None:
        """``peer`` is the address of a node; "" for the first one."""
        import hivemind
        from hivemind.utils import get_dht_time

        hivemind.get_dht_time = get_dht_time  # GenRL 0.3.0 imports it from there, where 1.1.12 has it no more
        from genrl.communication.hivemind.hivemind_backend import HivemindBackend, HivemindRendezvouz

        HivemindRendezvouz.init(is_master=not peer)
        self._back_end = HivemindBackend(initial_peers=[peer] if peer else None, get_retries=1)
        self._score, self._draws = score, draws
        print(json.dumps({"address": str(self._back_end.dht.get_visible_maddrs(latest=True)[0])}), flush=True)

    def share(self, groups: Sequence[Group]) -> None:
        """Puts ``groups`` in place of those that this node shared before."""
        self._back_end.put([[each.task, each.seed, each.text, each.answers] for each in groups], sub_key=_KEY)

    def drawn(self, count: int) -> list[Group]:
        """Returns at most so many groups of others, drawn from those with an advantage."""
        own = self._back_end.get_id()
        shared = [groups for peer, groups in self._back_end.get(_KEY).items() if peer != own]
        groups = rewarded([Group(*each) for each in itertools.chain.from_iterable(shared)], self._score)
        useful = [group for group in groups if min(group.rewards) < max(group.rewards)]
        return self._draws.sample(useful, min(count, len(useful)))

    def close(self) -> None:
        """Ends the processes of the back end, which hold what this one has open."""
        self._back_end.dht.shutdown()
