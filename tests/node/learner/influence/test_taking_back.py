"""A learner whose own success falls after learning from others has the weights of before again, and says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from node.checkpoints.checkpoints import read_newest
from node.configuration import LearnerSection
from node.events import InfluenceWithdrawn
from node.learner.influence.watch import OwnRound, SuccessWatch
from node.learner.state.persistence import restore
from tests.node.learner.letter_node import MemorySwarm, Node, right_group

SECTION = LearnerSection(own_groups=16, completions=4, learning_rate=1e-2)


@pytest.fixture
def swarm(tmp_path: Path) -> MemorySwarm:
    return MemorySwarm(tmp_path, lambda: 1_000_000.0)


def rounds_until(node: Node, swarm: MemorySwarm, done: Callable[[], bool]) -> None:
    for version in range(20):
        swarm.put("eve", replace(right_group(node.policy, seed=version), policy_version=version))
        node.round()
        if done():
            return
    raise AssertionError("20 rounds were not enough")


def weights(node: Node) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in node.policy.trainable().items()}


def test_weights_go_back_to_before_the_fall_and_the_engine_gets_them(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"), learner=SECTION)
    influence = node.learner.state.influence
    rounds_until(node, swarm, lambda: bool(node.learner.learning.guard._kept))
    kept_round, _ = node.learner.learning.guard._kept[-1]
    before = weights(node)
    assert kept_round == node.learner.state.round

    usual = dict.fromkeys(("first", "again"), (16.0, 15.2, 14.6))  # .95, far above what this policy achieves
    number = node.learner.state.round
    influence.watch = SuccessWatch(tuple(OwnRound(each, usual) for each in range(number - 8, number)))
    rounds_until(node, swarm, lambda: InfluenceWithdrawn in map(type, node.events))
    (withdrawn,) = [event for event in node.events if isinstance(event, InfluenceWithdrawn)]
    assert (withdrawn.weights_of_round, withdrawn.peers) == (kept_round, ("eve",))
    assert not node.faults()  # nobody is proven to have done anything
    for name, tensor in weights(node).items():
        assert torch.equal(tensor, before[name])
    assert not influence.standings.of("eve").proven
    assert not any(node.learner.state.imitation.classes.values())  # what eve taught is not seen again


def test_who_has_influence_survives_a_restart(swarm: MemorySwarm, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    node = Node("ann", swarm.member("ann"), learner=SECTION, folder=folder, trusting=False)
    rounds_until(node, swarm, lambda: node.learner.state.influence.standings.of("eve").calm_rounds > 0)
    node.learner.run(lambda: "enough")
    saved = node.learner.state.influence
    again = Node("ann", swarm.member("ann"), learner=SECTION)
    state, _ = restore(read_newest(folder), folder, again.policy, again.optimizer)
    assert state.influence.standings.peers == saved.standings.peers
    assert state.influence.watch == saved.watch
