"""The watch and averaging's trial accuse honest peers as seldom as they say, and find a fall as soon."""

from __future__ import annotations

import numpy as np
import pytest

from node.learner.influence.watch import HARM, HARM_OF_NEWCOMERS
from scripts.attacks.false_alarms import (
    AVERAGING_NODES,
    AVERAGING_PARTNERS,
    CASES,
    FALLS,
    NODES,
    Case,
    Node,
    averaging_days,
    delays,
    rates,
)

RUNS = 100  # of 400 rounds
STEPS = 200


@pytest.mark.parametrize("node", [NODES[0], NODES[-1]], ids=str)
@pytest.mark.parametrize("case", [CASES[2], CASES[3], CASES[4], CASES[5]], ids=lambda case: case.name)
def test_false_alarms_are_at_most_twice_as_frequent_as_documented(case: Case, node: Node) -> None:
    found = rates(node, case, runs=RUNS, steps=STEPS, seed=11)
    assert found.share_of_runs <= 2 * case.bar
    assert found.after_joining <= 2 * case.bar
    assert found.steps_lost <= 2 * case.bar


@pytest.mark.parametrize(("fall", "most"), [(0, 6), (4, 16), (5, 16)])
def test_a_fall_is_found_as_soon_as_documented(fall: int, most: int) -> None:
    _, start, fallen = FALLS[fall]
    assert np.median(delays(NODES[0], start, fallen, HARM, runs=40)) <= most
    assert np.median(delays(NODES[0], start, fallen, HARM_OF_NEWCOMERS, runs=40)) <= most


def test_honest_partners_that_chance_accuses_are_averaged_with_again_soon() -> None:
    """With every accusation of a third of a day still in force at its end, most partners would be shut out."""
    found = averaging_days(AVERAGING_NODES[1], (0.0, 0.0), 0.4, rounds_a_second=2.0)
    assert found.accusations >= 2
    assert found.missed == 0 and found.shut_out < 0.05 < found.accusations / 4 / len(AVERAGING_PARTNERS)
