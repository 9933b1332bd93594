"""What donors sample is the learner's own: on-policy, at the newest version, and it learns from it."""

from __future__ import annotations

import numpy as np
import pytest

from node.configuration import LearnerSection
from node.engines.donors.donated_engine import DonatedEngine
from node.engines.torch import TorchEngine
from node.events import DonorsShared
from tests.node.engines.donors.lent import Village
from tests.node.engines.process.hosted import QUICK
from tests.node.learner.letter_node import Node, policy


def test_a_node_with_donors_gets_better_on_their_samples_as_on_its_own() -> None:
    own_policy = policy()
    village = Village(own_policy)
    village.comes("ada")
    village.comes("bob")

    def around(engine: TorchEngine) -> DonatedEngine:
        return DonatedEngine(
            engine, engine.policy, village, report=village.told.append, wall_clock=lambda: 1.0, patience=QUICK
        )

    section = LearnerSection(own_groups=8, completions=8, learning_rate=3e-3)
    node = Node("ann", own_policy=own_policy, learner=section, around=around)
    try:
        rounds = [node.round() for _ in range(80)]
    finally:
        village.end()
    by_donors = sum(donor.tokens for told in village.told for donor in told.donors)
    assert by_donors > 0.2 * sum(done.tokens_generated for done in rounds)
    assert not village.dropped
    assert all(isinstance(told, DonorsShared) for told in village.told)
    assert all(done.own_groups == 8 and done.staleness_max == 0 and done.foreign_groups_used == 0 for done in rounds)
    assert all(done.divergence_by_peer["self"] == pytest.approx(0.0, abs=1e-3) for done in rounds)
    first, last = np.mean([r.reward for r in rounds[:10]]), np.mean([r.reward for r in rounds[-20:]])
    assert last > first + 0.2
