"""What to practise on, what to value, what to share, and whom to learn from: the learner's pure decisions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from node.config import LearnerSection
from node.learner.advantages import group_advantages, learner_relative_advantages
from node.learner.allocator import allocate
from node.learner.replay import CANDIDATES, MOST_USES, ReplayPool, choose
from node.learner.rollouts import worth_sharing
from node.learner.success import INITIAL_SUCCESS, SuccessTracker
from protocol.limits import TASKS_PER_HEARTBEAT
from protocol.messages import GroupAdvert, PromptRef
from swarm.api import SeenGroup

NOW = 1_000_000.0
HASH = bytes(16)


class KnownTask:
    """As much of a task as choosing looks at."""

    def __init__(self, name: str) -> None:
        self.name, self.version, self.config_hash = name, 1, HASH


TASKS: dict[str, Any] = {"add": KnownTask("add"), "sort": KnownTask("sort")}


def seen(
    number: int,
    *,
    peer: str = "ann",
    rewards: Sequence[float] = (1, 0),
    task: str = "add",
    age_seconds: float = 0.0,
    version: int = 1,
    config_hash: bytes = HASH,
) -> SeenGroup:
    prompt = PromptRef(task, version, config_hash, number)
    count = len(rewards)
    advert = GroupAdvert(number.to_bytes(32, "big"), 100, prompt, tuple(rewards), (3,) * count, (-1.0,) * count)
    return SeenGroup(number, peer, NOW - age_seconds, HASH, HASH, 0, advert)


def pool_of(*groups: SeenGroup) -> ReplayPool:
    pool = ReplayPool()
    pool.add(groups)
    return pool


def chosen_numbers(
    pool: ReplayPool, section: LearnerSection | None = None, success: float = 0.1, seed: int = 0
) -> list[int]:
    choice = choose(NOW, pool, TASKS, lambda _: success, section or LearnerSection(), random.Random(seed))
    return [group.cursor for group in choice.chosen]


def test_group_advantages_are_standardised_with_the_unbiased_deviation() -> None:
    rewards = np.array([1, 0, 0, 0.5], dtype=np.float32)
    expected = (rewards - 0.375) / (np.std(rewards, ddof=1) + 1e-4)
    np.testing.assert_allclose(group_advantages(rewards), expected, rtol=1e-6)


@pytest.mark.parametrize("rewards", [[0.3] * 7, [1, 1], [0.5]])
def test_group_without_spread_has_exactly_no_advantage(rewards: list[float]) -> None:
    assert not group_advantages(np.array(rewards, dtype=np.float32)).any()


def test_learner_relative_advantage_values_an_all_right_group_and_never_punishes() -> None:
    advantages = learner_relative_advantages(np.array([1, 1, 0.1], dtype=np.float32), 0.2)
    np.testing.assert_allclose(advantages, [0.8, 0.8, 0], rtol=1e-6)


def test_success_runs_towards_what_the_learner_earns() -> None:
    tracker = SuccessTracker()
    assert tracker.of("add") == INITIAL_SUCCESS
    tracker.observe({"add": [1.0, 0.0], "sort": []})
    assert tracker.of("add") == pytest.approx(0.9 * INITIAL_SUCCESS + 0.1 * 0.5)
    assert tracker.of("sort") == INITIAL_SUCCESS
    for _ in range(200):
        tracker.observe({"add": [1.0]})
    assert tracker.of("add") == pytest.approx(1.0)


def test_success_survives_a_checkpoint_and_its_copy_stands_still() -> None:
    tracker = SuccessTracker()
    tracker.observe({"add": [1.0, 0.0]})
    copy = tracker.copy()
    restored = SuccessTracker.restored(tracker.snapshot())
    tracker.observe({"add": [1.0]})
    assert copy.classes == restored.classes != tracker.classes


def test_announced_success_is_within_the_protocols_bounds() -> None:
    tracker = SuccessTracker()
    for number in range(TASKS_PER_HEARTBEAT + 5):
        tracker.observe({f"task{number}": [50.0] * (1 + number)})
    announced = tracker.announced()
    assert len(announced) == TASKS_PER_HEARTBEAT
    assert announced[0].samples == TASKS_PER_HEARTBEAT + 5  # those most sampled come first
    assert all(0 <= each.success <= 1 for each in announced)


def test_allocation_is_repeatable_differs_by_node_and_treats_tasks_alike() -> None:
    tasks = ["a", "b", "c", "d", "e", "f"]
    rounds = [allocate(r, "7/ann", tasks, groups=8, completions=4) for r in range(60)]
    assert rounds[3] == allocate(3, "7/ann", list(reversed(tasks)), groups=8, completions=4)
    assert rounds[3] != allocate(3, "7/bob", tasks, groups=8, completions=4)
    counts = Counter(each.task for of_round in rounds for each in of_round)
    assert set(counts.values()) == {80}
    assert len({each.prompt_seed for of_round in rounds for each in of_round}) == 480
    assert {each.completions for each in rounds[0]} == {4}


def test_worth_sharing_takes_turns_between_tasks_and_leaves_out_what_is_all_wrong() -> None:
    rewards = [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    tasks = ["easy", "easy", "easy", "hard", "easy"]
    assert worth_sharing(rewards, tasks, 8) == [0, 3, 4, 1]
    assert worth_sharing(rewards, tasks, 2) == [0, 3]
    assert worth_sharing(rewards, tasks, 0) == []


def test_groups_far_above_the_learner_come_first() -> None:
    groups = [seen(1, rewards=(1, 0, 0, 0)), seen(2, rewards=(1, 1, 1, 1)), seen(3, rewards=(1, 1, 0, 0))]
    assert chosen_numbers(pool_of(*groups)) == [2, 3, 1]


def test_every_candidate_that_is_of_no_use_is_passed_over_with_its_reason() -> None:
    pool = pool_of(
        seen(1, age_seconds=301),
        seen(2, task="unheard of"),
        seen(3, version=2),
        seen(4, config_hash=b"\1" * 16),
        seen(5, rewards=(0, 0)),
        seen(6),
    )
    choice = choose(NOW, pool, TASKS, lambda _: 0.1, LearnerSection(), random.Random(0))
    assert [group.cursor for group in choice.chosen] == [6]
    assert choice.reasons() == {"stale": 1, "unknown_task": 3, "not_better": 1}


def test_group_mode_wants_spread_where_learner_mode_wants_gain() -> None:
    groups = seen(1, rewards=(1, 1)), seen(2, rewards=(1, 0))
    section = LearnerSection(foreign_advantage="group")
    choice = choose(NOW, pool_of(*groups), TASKS, lambda _: 0.9, section, random.Random(0))
    assert [group.cursor for group in choice.chosen] == [2]
    assert choice.reasons() == {"all_equal": 1}
    assert chosen_numbers(pool_of(*groups), success=0.9) == [1]


def test_no_peer_gets_more_than_its_share_while_others_have_groups() -> None:
    section = LearnerSection(foreign_groups=4, peer_share=0.5)
    ann = [seen(n, peer="ann", rewards=(1, 1)) for n in range(1, 9)]
    bob = [seen(n, peer="bob", rewards=(1, 0)) for n in range(9, 12)]
    peers = Counter("ann" if n < 9 else "bob" for n in chosen_numbers(pool_of(*ann, *bob), section))
    assert peers == {"ann": 2, "bob": 2}
    assert len(chosen_numbers(pool_of(*ann, *bob[:1]), section)) == 4  # bob has one: ann fills up
    assert len(chosen_numbers(pool_of(*ann), section)) == 4


def test_between_equally_good_groups_fresh_ones_and_peers_little_heard_come_first() -> None:
    section = LearnerSection(foreign_groups=1)
    firsts: Counter[int] = Counter()
    for seed in range(200):
        pool = pool_of(seen(1, peer="often"), seen(2, peer="seldom"))
        pool.taken_from["often"] = 50
        firsts.update(chosen_numbers(pool, section, seed=seed))
    assert firsts[2] > 3 * firsts[1] > 0
    firsts = Counter()
    for seed in range(200):
        firsts.update(chosen_numbers(pool_of(seen(1, age_seconds=250), seen(2)), section, seed=seed))
    assert firsts[2] > 3 * firsts[1] > 0


def test_choice_changes_nothing_and_equal_draws_give_equal_choices() -> None:
    pool = pool_of(*(seen(n) for n in range(1, 30)))
    assert chosen_numbers(pool) == chosen_numbers(pool)
    assert chosen_numbers(pool) != chosen_numbers(pool, seed=1)
    assert len(pool.candidates) == 29


def settled(pool: ReplayPool, groups: int, seed: int = 0) -> list[int]:
    """Chooses ``groups`` candidates and settles them; their numbers."""
    section = LearnerSection(foreign_groups=groups)
    choice = choose(NOW, pool, TASKS, lambda _: 0.1, section, random.Random(seed))
    pool.settle(choice)
    return [group.cursor for group in choice.chosen]


def test_groups_not_used_yet_come_first_and_none_is_used_more_often_than_allowed() -> None:
    pool = pool_of(*(seen(n) for n in range(1, 13)))
    uses: Counter[int] = Counter()
    for seed in range(20):
        uses.update(settled(pool, 8, seed))
        pool.add([seen(n) for n in range(1, 13)])  # advertised again and again
        if seed == 1:
            assert set(uses) == set(range(1, 13))  # two rounds of eight have met all twelve
    assert uses == dict.fromkeys(range(1, 13), MOST_USES)
    assert pool.taken_from == {"ann": 12}  # counted by group, not by use


def test_dropped_group_is_not_chosen_again() -> None:
    pool = pool_of(seen(1), seen(2))
    settled(pool, 2)
    pool.drop(seen(1).advert.blob)
    pool.add([seen(1), seen(2)])
    assert settled(pool, 2) == [2]


def test_restored_pool_uses_no_group_again_and_asks_from_the_beginning() -> None:
    pool = pool_of(*(seen(n) for n in range(1, 5)))
    used = settled(pool, 2)
    restored = ReplayPool.restored(pool.position())
    assert restored.cursor == 0
    restored.add([seen(n) for n in range(1, 5)])
    assert {group.cursor for group in restored.candidates.values()} == {1, 2, 3, 4} - set(used)
    assert restored.taken_from == pool.taken_from


def test_pool_is_bounded_and_forgets_its_oldest_candidates() -> None:
    pool = pool_of(*(seen(n) for n in range(1, CANDIDATES + 11)))
    assert len(pool.candidates) == CANDIDATES
    assert min(group.cursor for group in pool.candidates.values()) == 11
