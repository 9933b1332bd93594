"""Caps on what others do to one optimizer step: one peer's share, the newcomers' together, and one group's. Pure.

A group's mass is what it adds to the absolute weights of the loss, Σ count · |A| · tokens. Importance weights are left
out: they are known only after the forward pass, and lie between ``ratio_floor`` and ``ratio_cap``.
Masses are compared with B, that of our own groups, or a quarter of our own tokens where they teach less than that, as
where every group failed:

    one group       at most as many completions as one of our own; a peer's groups on one question count as one group
    one peer        at most ONE_PEER · i · B, i its influence
    newcomers       together at most NEWCOMERS · caution · B

Nothing is left out, all groups of a peer are scaled alike, and a scaled group counts so much less in what the loss is
divided by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from node.learner.objective.batch import TrainingGroup

ONE_PEER: Final = 1.0  # a peer that is proven may do as much as our own groups: half of a step where it is the only one
NEWCOMERS: Final = 1.0  # half of it, with two places, cost a learner among strangers 5 % of its first reward
LEAST_MASS_PER_TOKEN: Final = 0.25


def own_mass(own: Sequence[TrainingGroup]) -> float:
    """Returns B."""
    return max(sum(group.mass for group in own), LEAST_MASS_PER_TOKEN * sum(group.tokens for group in own))


def masses_by_peer(groups: Sequence[tuple[str, TrainingGroup]]) -> dict[str, float]:
    """Returns each peer's mass, scaled as its groups are."""
    by_peer: dict[str, float] = {}
    for peer, group in groups:
        by_peer[peer] = by_peer.get(peer, 0.0) + group.influence * group.mass
    return by_peer


def factors(
    masses: Mapping[str, float], own: float, influence: Mapping[str, float], newcomers: frozenset[str], caution: float
) -> dict[str, float]:
    """Returns by how much each peer's groups are scaled, 0 to 1; ``own`` is B."""
    capped = {
        peer: min(1.0, ONE_PEER * influence[peer] * own / each) if each > 0 else 1.0 for peer, each in masses.items()
    }
    together = sum(capped[peer] * masses[peer] for peer in newcomers & masses.keys())
    most = NEWCOMERS * caution * own
    return {
        peer: factor * (most / together if peer in newcomers and together > most else 1.0)
        for peer, factor in capped.items()
    }


def shaped(
    own: Sequence[TrainingGroup],
    foreign: Sequence[tuple[str, TrainingGroup]],  # with its peer
    *,
    completions: int,  # of one of our own groups
    influence: Callable[[str], float],
    newcomers: frozenset[str],
    caution: float,
) -> list[TrainingGroup]:
    """Returns the foreign groups with their influence, in their order."""
    alike = Counter((peer, group.prompt_ids) for peer, group in foreign)
    sized = [
        (peer, replace(group, influence=min(1.0, completions / max(1, group.size)) / alike[peer, group.prompt_ids]))
        for peer, group in foreign
    ]
    masses = masses_by_peer(sized)
    scale = factors(masses, own_mass(own), {peer: influence(peer) for peer in masses}, newcomers, caution)
    return [replace(group, influence=group.influence * scale[peer]) for peer, group in sized]
