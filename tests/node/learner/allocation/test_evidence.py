"""What is known of each class of prompts: counts with forgetting, the chain of three states, what others announce."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.learner.allocation.evidence import ClassEvidence, Evidence, Solved, solved
from node.learner.allocation.peer_success import STALE_SECONDS, Announced, announced_success
from protocol.messages import Heartbeat, TaskSuccess
from swarm.api import PeerStatus

HASH = bytes(16)
groups_of_rewards = st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=8), max_size=5)


def test_counts_are_discounted_sums_of_clipped_rewards() -> None:
    evidence = Evidence()
    evidence.observe([("add", [1.0, 0.25]), ("add", [7.0, -3.0])], 0.5)
    assert (evidence.of("add").successes, evidence.of("add").failures) == (2.25, 1.75)
    evidence.observe([("sort", [0.0])], 0.5)
    assert (evidence.of("add").successes, evidence.of("add").failures) == (1.125, 0.875)
    assert evidence.of("sort").failures == 1.0
    assert evidence.of("never met") == ClassEvidence()


@given(st.lists(groups_of_rewards, max_size=8), st.floats(0, 1))
def test_states_and_their_prediction_stay_probabilities(rounds: list[list[list[float]]], forgetting: float) -> None:
    evidence = ClassEvidence()
    for groups in rounds:
        evidence = evidence.after_round(groups, forgetting)
        for states in (np.array(evidence.states), evidence.predicted_states()):
            assert states.sum() == pytest.approx(1.0)
            assert (states >= 0).all()
        assert (np.array(evidence.transitions) >= 0).all()


@given(groups_of_rewards)
def test_expected_transitions_count_each_group_once(groups: list[list[float]]) -> None:
    counts = np.array(ClassEvidence().after_round(groups, 0.7).transitions)
    assert counts.sum() == pytest.approx(len(groups))
    seen = np.bincount([solved(group) for group in groups], minlength=3)
    np.testing.assert_allclose(counts.sum(axis=0), seen)


def test_group_is_solved_in_part_where_its_rewards_differ() -> None:
    assert [solved(r) for r in ([0, 0], [1, 0], [1, 1], [0.2, 0.2])] == [
        Solved.NONE,
        Solved.PART,
        Solved.ALL,
        Solved.NONE,
    ]


def test_chain_learns_that_a_class_moves_from_none_to_part_before_it_has_moved_again() -> None:
    """A class that alternates is predicted to change next, and one that stays is predicted to stay."""
    alternating, staying = ClassEvidence(), ClassEvidence()
    for number in range(30):
        alternating = alternating.after_round([[1.0, 0.0] if number % 2 else [0.0, 0.0]] * 4, 0.95)
        staying = staying.after_round([[1.0, 0.0]] * 4, 0.95)
    assert alternating.states[Solved.PART] > 0.7
    assert alternating.predicted_states()[Solved.PART] < 0.4
    assert staying.predicted_states()[Solved.PART] > 0.7


def test_class_not_seen_for_long_is_as_unknown_as_a_new_one() -> None:
    evidence = ClassEvidence()
    for _ in range(20):
        evidence = evidence.after_round([[0.0, 0.0]] * 4, 0.7)
    assert evidence.predicted_states()[Solved.PART] < 0.1
    for _ in range(60):
        evidence = evidence.after_round([], 0.7)
    np.testing.assert_allclose(evidence.predicted_states(), 1 / 3, atol=0.01)


def test_evidence_survives_a_checkpoint_exactly() -> None:
    evidence = Evidence()
    for _ in range(3):
        evidence.observe([("add", [1.0, 0.3]), ("sort", [0.0, 0.0])], 0.7)
    assert Evidence.restored(json.loads(json.dumps(evidence.snapshot()))) == evidence


def peer(
    *tasks: tuple[str, float, int], reputation: float = 1.0, age_seconds: float | None = 1.0, silent: bool = False
) -> PeerStatus:
    claims = tuple(TaskSuccess(*each) for each in tasks)
    beat = Heartbeat("x", "x", "x", HASH, HASH, 1, 1, "learning", 1.0, 0, 0, claims)
    return PeerStatus("p", True, (), None, None if silent else beat, age_seconds, 0, 0, 0, reputation, None)


def test_one_specialist_among_many_shows_that_a_task_can_be_learnt() -> None:
    found = announced_success([peer(("add", 0.0, 10_000))] * 7 + [peer(("add", 0.9, 10_000))])
    assert found["add"].success == pytest.approx(0.9)
    assert found["add"].weight == pytest.approx(1.0, abs=0.01)


def test_claim_of_few_samples_or_of_a_stranger_weighs_less_and_silence_nothing() -> None:
    assert announced_success([peer(("add", 1.0, 32))]) == {"add": Announced(1.0, 0.5)}
    assert announced_success([peer(("add", 1.0, 32), reputation=0.5)]) == {"add": Announced(1.0, 0.25)}
    nobody = [
        peer(("add", 1.0, 0)),
        peer(("add", 1.0, 1000), reputation=0.0),
        peer(("add", 1.0, 1000), age_seconds=STALE_SECONDS + 1),
        peer(("add", 1.0, 1000), age_seconds=None),
        peer(silent=True),
    ]
    assert announced_success(nobody) == {}


def test_strangers_claim_is_held_against_what_the_trusted_say() -> None:
    found = announced_success([peer(("add", 0.0, 10**6)), peer(("add", 1.0, 10**6), reputation=0.2)])
    assert found["add"].success == pytest.approx(0.2, abs=1e-3)
