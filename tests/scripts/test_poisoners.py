"""The poisoners' rows run: a learner beside one, with its guard and without any."""

from __future__ import annotations

import pytest

from scripts.attacks.poisoners import ONE, UNGUARDED, run


@pytest.mark.parametrize("name", [ONE + UNGUARDED, ONE + "blanks"])
def test_a_round_beside_honest_peers_and_poisoners_is_learnt_and_measured(name: str) -> None:
    learnt = run(name, seed=0, rounds=1, log=False)
    assert len(learnt.reward) == 1 and set(learnt.final) and learnt.used[0]
