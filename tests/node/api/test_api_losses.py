"""Losses: made histories, and the words about them."""

from __future__ import annotations

import random

import pytest

from node.api.gains_words import lost_sentence
from node.api.losses import HOLD_ROUNDS, LossWatch
from node.api.run_changes import RunChanges
from node.api.types import Loss
from node.events import Evaluated, NamedPeer, PeersChanged, RoundDone
from tests.factories import round_done

BOB = NamedPeer("12D3KooWbob", "bob", "builtin:robin")


def played(number: int, rewards: dict[str, float], *, taught: bool = False, **changes: object) -> RoundDone:
    fields: dict[str, object] = {
        "reward_by_task": rewards,
        "success_by_task": rewards,
        "completions_by_task": dict.fromkeys(rewards, 8),
        "gradient_mass_by_task": {task: {BOB.peer: 1.0} for task in rewards} if taught else {},
    }
    return round_done(number, **{**fields, **changes})


def watched(*rounds: RoundDone) -> tuple[Loss, ...]:
    watch = LossWatch()
    for each in rounds:
        watch.add_round(each)
    return watch.answer()


def test_a_task_that_was_held_and_is_forgotten_is_lost_since_the_round_in_which_it_began_to_fall() -> None:
    held = [played(n, {"sort": 0.76, "add": 0.5}) for n in range(1, 101)]
    fallen = [played(n, {"sort": 0.11, "add": 0.5}) for n in range(101, 161)]
    (loss,) = watched(*held, *fallen)
    assert (loss.task, loss.measured) == ("sort", "practice") and loss.best == pytest.approx(0.76)
    assert loss.now == pytest.approx(0.11, abs=0.01) and loss.fall == pytest.approx(0.65, abs=0.01)
    assert 100 <= loss.since_round <= 103 and loss.since_seconds == float(loss.since_round)
    assert loss.sentence.startswith("sort has fallen from 0.76") and "to 0.11" in loss.sentence


@pytest.mark.parametrize("seed", range(10))
def test_success_that_only_swings_is_no_loss(seed: int) -> None:
    draws = random.Random(seed)
    rounds = [
        played(n, {"sort": sum(draws.random() < 0.5 for _ in range(8)) / 8}) for n in range(1, 500)
    ]  # eight completions a round that are right as often as not
    watch, losses = LossWatch(), 0
    for each in rounds:
        watch.add_round(each)
        losses += bool(watch.answer())
    assert losses == 0


def test_a_level_that_was_never_held_cannot_be_lost() -> None:
    lucky = [played(n, {"sort": 1.0 if n < HOLD_ROUNDS // 2 else 0.0}) for n in range(1, 100)]
    assert watched(*lucky) == ()


def test_a_loss_that_is_regained_is_over_and_is_told_again_only_when_it_is_lost_again() -> None:
    changes = RunChanges()
    told = []
    for n in range(1, 401):
        reward = 0.8 if (n - 1) // 100 % 2 == 0 else 0.1  # held, lost, regained, lost
        told += [(n, sentence.split()[0]) for sentence in changes.add(played(n, {"sort": reward}))]
    assert [task for _, task in told] == ["sort", "sort"]
    assert 120 <= told[0][0] <= 140 and 320 <= told[1][0] <= 340
    assert [mark.kind for mark in changes.marks.answer()] == ["loss", "loss"]


def test_a_loss_names_the_peers_that_left_and_the_groups_that_no_longer_come() -> None:
    changes = RunChanges()
    for n in range(1, 101):
        changes.add(played(n, {"sort": 0.76}, taught=True))
    changes.add(
        PeersChanged(time_seconds=100.0, round=100, came=(), left=(BOB,), came_total=0, left_total=1, present=0)
    )
    for n in range(101, 181):
        changes.add(played(n, {"sort": 0.11}))
    (loss,) = changes.losses
    assert loss.went_with[0] == "bob left after round 100"
    assert "groups of peers on this task have become rare, the last in round 100" in loss.went_with
    assert "Meanwhile: bob left after round 100; " in loss.sentence
    assert "lost success on sort from 0.76 to 0.11" in changes.gains().sentence


def test_a_loss_names_a_task_that_is_hardly_practised_any_more() -> None:
    held = [played(n, {"sort": 0.8, "add": 0.5}) for n in range(1, 101)]
    rare = [
        played(n, {"sort": 0.1, "add": 0.5} if n % 3 == 0 else {"add": 0.5}, completions_by_task={"sort": 1, "add": 15})
        for n in range(101, 261)
    ]
    (loss,) = watched(*held, *rare)
    assert any(text.startswith("it is practised less") for text in loss.went_with)


def test_held_out_prompts_show_the_loss_of_a_task_that_is_not_practised() -> None:
    def measured(number: int, reward: float) -> Evaluated:
        return Evaluated(
            time_seconds=float(number), round=number, policy_version=number, prompts=64, reward=reward,
            reward_by_task={"sort": reward}, validation=reward, best_round=1, best_reward=0.8, seconds=1.0,
        )  # fmt: skip

    watch = LossWatch()
    watch.add_round(played(1, {"sort": 0.8}))
    watch.add_evaluation(measured(10, 0.8))
    watch.add_evaluation(measured(20, 0.75))
    assert watch.answer() == ()  # within the noise of 64 prompts
    for n in range(21, 60):
        watch.add_round(played(n, {"add": 0.5}))
    watch.add_evaluation(measured(60, 0.2))
    (loss,) = watch.answer()
    assert (loss.measured, loss.best, loss.now, loss.since_round) == ("held-out", 0.8, 0.2, 20)
    assert loss.sentence.startswith(
        "sort (greedy answers) has fallen on held-out prompts from 0.80 (round 10) to 0.20, "
    )
    assert any("not been practised since round 1" in text for text in loss.went_with)


def test_the_words_name_a_few_and_count_the_rest() -> None:
    assert lost_sentence([]) == ""
    assert lost_sentence([("add", 0.5, 0.2)]) == "It has lost success on add from 0.50 to 0.20."
    many = lost_sentence([(f"t{i}", 0.5, 0.2) for i in range(6)])
    assert "t3 from" in many and "t4" not in many and many.endswith("and 2 more.")
