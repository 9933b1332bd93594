"""Own success over rounds: which falls are seen, how soon, and how rarely one is seen that is none."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from node.learner.influence.watch import HARM, HARM_OF_NEWCOMERS, SuccessWatch
from tests.node.learner.influence.own_success import own_groups


def rounds_until(score: float, success: float, fallen: float, seed: int, *, before: int = 60, groups: int = 32) -> int:
    """Returns how many rounds after a fall the watch is at ``score``; 99 for not at all."""
    rng, watch = Random(seed), SuccessWatch()
    for number in range(1, before + 1):
        watch = watch.after_round(number, own_groups(rng, success, groups))
    for number in range(before + 1, before + 60):
        watch = watch.after_round(number, own_groups(rng, fallen, groups))
        if watch.score >= score:
            return number - before
    return 99


@pytest.mark.parametrize(("success", "fallen", "most"), [(0.5, 0.05, 4), (0.7, 0.35, 8), (0.35, 0.1, 12)])
def test_a_large_fall_is_seen_within_a_few_rounds(success: float, fallen: float, most: int) -> None:
    assert max(rounds_until(HARM, success, fallen, seed) for seed in range(12)) <= most
    assert max(rounds_until(HARM_OF_NEWCOMERS, success, fallen, seed) for seed in range(12)) <= most


def test_what_was_lost_is_the_share_of_the_usual_success() -> None:
    rng, watch = Random(5), SuccessWatch()
    for number in range(1, 40):
        watch = watch.after_round(number, own_groups(rng, 0.6, 32))
    assert watch.lost_share(3) < 0.3
    for number in range(40, 43):
        watch = watch.after_round(number, own_groups(rng, 0.01, 32))
    assert watch.lost_share(3) > 0.6
    assert watch.since in (39, 40)
    assert watch.forgetting().rounds == tuple(each for each in watch.rounds if each.number < watch.since)
    assert watch.accepting().rounds == tuple(each for each in watch.rounds if each.number >= watch.since)
    assert watch.accepting().score == watch.forgetting().score == 0


def test_rounds_of_other_tasks_are_not_compared() -> None:
    watch = SuccessWatch()
    for number in range(1, 20):
        watch = watch.after_round(number, [("easy", [1.0, 1.0])] * 16)
    for number in range(20, 30):
        watch = watch.after_round(number, [("hard", [0.0, 0.0])] * 16)
        assert watch.score == 0 and watch.since is None


def test_a_watch_survives_a_checkpoint() -> None:
    rng, watch = Random(7), SuccessWatch()
    for number in range(1, 30):
        watch = watch.after_round(number, own_groups(rng, 0.4, 8))
    again = msgspec.convert(msgspec.to_builtins(watch), SuccessWatch)
    assert again == watch
    groups = own_groups(rng, 0.1, 8)
    assert again.after_round(30, groups) == watch.after_round(30, groups)
