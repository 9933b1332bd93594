"""Rounds in which learning begins while an engine elsewhere samples: the round that they would be otherwise."""

from __future__ import annotations

import pytest
import torch

from node.configuration import LearnerSection
from node.engines.process.process_engine import ProcessEngine
from node.events import RoundDone
from node.learner.steps.step import BegunStep
from tests.node.engines.process.hosted import QUICK, Runs
from tests.node.learner.letter_node import MemorySwarm, Node, policy, right_group

LOT_TOKENS = 40  # two groups of a prompt of three tokens and four answers of up to four
SECTION = LearnerSection(own_groups=8, completions=4, foreign_groups=4, learning_rate=1e-2, batch_tokens=LOT_TOKENS)
ROUNDS = 4


class EarlyNode(Node):
    """Its engine is behind the protocol, and samples few rows at a time; ``begun`` counts groups learnt early."""

    def __init__(self, *, beside: bool, member: object = None, section: LearnerSection = SECTION) -> None:
        own_policy = policy()
        self.process: ProcessEngine = Runs(own_policy, patience=QUICK).engine(rows=4)
        self.process.beside = beside
        super().__init__(
            "ann",
            member,  # type: ignore[arg-type]
            own_policy=own_policy,
            learner=section,
            around=lambda engine: self.process,
        )
        self.begun: list[int] = []
        real = self.learner.learning.early._begin

        def counted(begun: BegunStep, groups: object) -> None:
            real(begun, groups)  # type: ignore[arg-type]
            self.begun.append(len(begun.groups))

        self.learner.learning.early._begin = counted

    def close(self) -> None:
        self.learner.close()
        self.process.close()


def run(node: EarlyNode, rounds: int = ROUNDS) -> EarlyNode:
    try:
        for _ in range(rounds):
            node.round()
    finally:
        node.close()
    return node


def told(node: Node) -> list[tuple[float, int, int]]:
    return [(e.reward, e.tokens_generated, e.policy_version) for e in node.events if isinstance(e, RoundDone)]


def assert_alike(node: Node, other: Node, atol: float) -> None:
    for name, tensor in other.policy.trainable().items():
        torch.testing.assert_close(node.policy.trainable()[name], tensor, atol=atol, rtol=0)


def test_a_round_that_begins_to_learn_early_is_the_round_that_waits() -> None:
    early, waiting = run(EarlyNode(beside=True), 1), run(EarlyNode(beside=False), 1)
    assert early.begun and max(early.begun) >= 4 and waiting.begun == []
    assert told(early) == told(waiting)
    # The first step of Adam moves a weight by the learning rate, whatever its gradient: rounding shows where that is
    # next to nothing.
    assert_alike(early, waiting, atol=1e-2 * SECTION.learning_rate)  # type: ignore[operator]
    losses = [next(e.loss for e in node.events if isinstance(e, RoundDone)) for node in (early, waiting)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_rounds_that_are_repeated_are_equal_to_the_bit() -> None:
    once, again = run(EarlyNode(beside=True)), run(EarlyNode(beside=True))
    assert once.begun == again.begun and sum(once.begun) > 0
    assert told(once) == told(again)
    assert_alike(once, again, atol=0.0)


def test_groups_of_others_and_those_that_fill_no_lot_join_the_same_step(tmp_path: object) -> None:
    nodes = []
    for beside in (True, False):
        swarm = MemorySwarm(tmp_path, lambda: 1_000_000.0)  # type: ignore[arg-type]
        node = EarlyNode(beside=beside, member=swarm.member("ann"))
        for seed in range(3):
            swarm.put("bob", right_group(node.policy, seed))
        nodes.append(run(node, 2))
    early, waiting = nodes
    used = [[e.foreign_completions for e in node.events if isinstance(e, RoundDone)] for node in nodes]
    assert sum(used[0]) > 0 and used[0] == used[1] and early.begun
    assert told(early)[0] == told(waiting)[0]
    assert_alike(early, waiting, atol=0.1 * SECTION.learning_rate)  # type: ignore[operator]


def test_weights_that_are_taken_back_in_the_round_take_back_what_was_begun() -> None:
    node = EarlyNode(beside=True)
    before = {name: p.detach().clone() for name, p in node.policy.trainable().items()}
    node.learner.taking_back.averaging = lambda scored: True  # type: ignore[method-assign]
    run(node, 1)
    assert node.begun
    assert node.optimizer.accumulated.gradients() == {}
    assert all(torch.equal(before[name], p) for name, p in node.policy.trainable().items())


@pytest.mark.parametrize("keys", [{"resample": 2}, {"max_staleness": 1}])
def test_rounds_that_drop_groups_or_generate_ahead_begin_nothing(keys: dict[str, int]) -> None:
    node = run(EarlyNode(beside=True, section=SECTION.model_copy(update=keys)), 2)
    assert node.begun == [] and len(told(node)) == 2
