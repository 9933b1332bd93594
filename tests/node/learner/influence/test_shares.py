"""However many groups and completions others send, their share of a step is bounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.learner.influence.shares import NEWCOMERS, ONE_PEER, factors, masses_by_peer, own_mass, shaped
from node.learner.objective.alignment import text_alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup

mass_of_peer = st.floats(0, 1e6)
PEERS = ["ann", "bob", "eve", "new"]


def group(peer: str, tokens: int, advantage: float, count: int = 1, prompt: int = 1) -> TrainingGroup:
    completion = TrainingCompletion(np.ones(tokens, np.int64), text_alignment(tokens), advantage, peer, count=count)
    return TrainingGroup((prompt,), (completion,), tokens * count, count)


@given(
    st.dictionaries(st.sampled_from(PEERS), mass_of_peer),
    st.floats(0.1, 1e4),
    st.fixed_dictionaries({peer: st.floats(0, 1) for peer in PEERS}),
    st.frozensets(st.sampled_from(PEERS)),
    st.floats(1 / 16, 1),
)
def test_no_peer_and_no_crowd_of_newcomers_exceeds_its_cap(
    masses: dict[str, float], own: float, influence: dict[str, float], newcomers: frozenset[str], caution: float
) -> None:
    scale = factors(masses, own, influence, newcomers, caution)
    assert scale.keys() == masses.keys()
    for peer, each in masses.items():
        assert 0 <= scale[peer] <= 1
        assert scale[peer] * each <= ONE_PEER * influence[peer] * own * (1 + 1e-9)
    together = sum(scale[peer] * masses[peer] for peer in newcomers & masses.keys())
    assert together <= NEWCOMERS * caution * own * (1 + 1e-9)


@given(st.dictionaries(st.sampled_from(PEERS), st.floats(0, 0.2)))
def test_what_is_within_the_caps_stays_as_it_is(masses: dict[str, float]) -> None:
    scale = factors(masses, 1.0, dict.fromkeys(PEERS, 1.0), frozenset(), 1.0)
    assert set(scale.values()) <= {1.0}


def test_a_group_of_many_completions_weighs_as_one_of_ours() -> None:
    (shaped_group,) = shaped(
        [group(SELF, 8, 1.0, count=4)] * 9,
        [("eve", group("eve", 8, 1.0, count=64))],
        completions=4,
        influence=lambda peer: 1.0,
        newcomers=frozenset(),
        caution=1.0,
    )
    assert shaped_group.influence == pytest.approx(4 / 64)


def test_one_question_again_and_again_counts_once() -> None:
    own = [group(SELF, 8, 1.0, count=4)] * 9
    sent = [("eve", group("eve", 8, 0.5, count=4)) for _ in range(3)]
    alike = shaped(own, sent, completions=4, influence=lambda _: 1.0, newcomers=frozenset(), caution=1.0)
    assert masses_by_peer([("eve", each) for each in alike])["eve"] == pytest.approx(sent[0][1].mass)


def test_a_learner_whose_own_groups_teach_nothing_still_learns_from_others() -> None:
    nothing = [TrainingGroup((1,), (), 40, 4)] * 4
    assert own_mass(nothing) == pytest.approx(40)
    (taught,) = shaped(
        nothing,
        [("bob", group("bob", 10, 1.0, count=4))],
        completions=4,
        influence=lambda _: 1.0,
        newcomers=frozenset(),
        caution=1.0,
    )
    assert taught.influence == 1.0


def test_a_peer_without_influence_teaches_nothing_and_counts_nowhere() -> None:
    (left,) = shaped(
        [group(SELF, 8, 1.0)],
        [("eve", group("eve", 8, 1.0))],
        completions=4,
        influence=lambda _: 0.0,
        newcomers=frozenset(),
        caution=1.0,
    )
    assert left.influence == 0.0
