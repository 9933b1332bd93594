"""How long a step is, by how much of its batch says something."""

from __future__ import annotations

import math

import pytest

from node.configuration import ObjectiveSection
from node.learner.objective.batch import TrainingGroup
from node.learner.steps.step import own_share, signal_share
from tests.node.learner.test_step import RATE, Bench, completion


def group(advantage: float, *, influence: float = 1.0, peer: str = "self") -> TrainingGroup:
    each = (completion([1, 2], advantage, peer=peer), completion([3, 4], -advantage, peer=peer))
    return TrainingGroup((5,), each if advantage else (), 4, 2, influence=influence)


def test_a_batch_of_which_every_completion_says_something_takes_a_whole_step() -> None:
    assert signal_share([group(1.0)] * 4, 8) == 1.0
    assert signal_share([group(5.0)] * 8, 8) == 1.0


def test_groups_that_are_all_right_or_all_wrong_shorten_the_step() -> None:
    assert signal_share([group(1.0), *[group(0.0)] * 3], 8) == pytest.approx(1 / 4)
    assert signal_share([group(0.0)] * 4, 8) == 0.0


def test_peers_that_have_much_to_teach_make_the_step_whole_again() -> None:
    own = [group(1.0), *[group(0.0)] * 3]
    assert signal_share([*own, *[group(1.0, peer="p")] * 3], 8) == 1.0


def test_what_own_completions_say_is_a_part_of_the_batch() -> None:
    assert own_share([group(1.0), *[group(1.0, peer="p")] * 3]) == pytest.approx(1 / 4)
    assert own_share([group(2.0), group(0.0)]) == 1.0
    assert own_share([group(0.0)]) == own_share([group(1.0, peer="p")]) == 0.0


def moved(groups: list[TrainingGroup], whole_batch: int, objective: ObjectiveSection) -> float:
    """Returns how far the first step moves the weights; AdamW's is as long for a gradient of any size."""
    bench = Bench(objective)
    before = bench.weights()
    bench.learn(groups, whole_batch)
    return math.sqrt(sum(float((w - before[name]).square().sum()) for name, w in bench.weights().items()))


def test_one_group_in_eight_that_says_something_moves_the_weights_an_eighth_as_far() -> None:
    silent = [group(0.0)] * 7
    whole = moved([group(1.0)] * 8, 16, ObjectiveSection())
    assert whole > RATE
    assert moved([group(1.0), *silent], 16, ObjectiveSection()) == pytest.approx(whole / 8, rel=0.02)


def test_groups_with_a_quarter_of_their_influence_move_the_weights_a_quarter_as_far() -> None:
    whole = moved([group(1.0, peer="p")] * 8, 16, ObjectiveSection())
    quarter = moved([group(1.0, peer="p", influence=0.25)] * 8, 16, ObjectiveSection())
    assert quarter == pytest.approx(whole / 4, rel=0.02)


def test_a_kl_term_speaks_in_every_token_and_keeps_the_step_whole() -> None:
    with_kl = ObjectiveSection(kl_weight=0.1)
    assert moved([group(1.0), *[group(0.0)] * 7], 16, with_kl) == pytest.approx(
        moved([group(1.0)] * 8, 16, with_kl), rel=0.02
    )
