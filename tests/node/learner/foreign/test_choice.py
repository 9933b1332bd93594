"""The pool of announced groups, and the choice among them before anything is fetched."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from node.configuration import LearnerSection, ResearchSection
from node.learner.foreign.choice import DEFAULT_RESEARCH, choose
from node.learner.foreign.peer_records import (
    HELD_TO_BE_PROVEN,
    REST_SECONDS,
)
from node.learner.foreign.replay import (
    COPY_SECONDS,
    MAX_CANDIDATES,
    MAX_REMEMBERED_GROUPS,
    ForeignChoice,
    ReplayPool,
    key_of,
)
from protocol.messages import GroupAdvert, PromptRef
from swarm.api import SeenGroup

NOW = 1_000_000.0
HASH = bytes(16)
USES = 4
AMONG_THEMSELVES = ResearchSection(foreign_advantage="group")
UNIFORM = ResearchSection(foreign_choice="uniform")


class KnownTask:
    """As much of a task as choosing looks at."""

    def __init__(self, name: str) -> None:
        self.name, self.version, self.config_hash, self.max_new_tokens = name, 1, HASH, 8


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


def reasons(choice: ForeignChoice) -> Counter[str]:
    return Counter(choice.passed_over.values())


def pool_of(*groups: SeenGroup, proven: Sequence[str] = ()) -> ReplayPool:
    pool = ReplayPool()
    for peer in proven:
        for _ in range(HELD_TO_BE_PROVEN):
            pool.peers.held(peer, NOW)
    pool.add(groups)
    return pool


def chosen_numbers(
    pool: ReplayPool,
    section: LearnerSection | None = None,
    success: float = 0.1,
    seed: int = 0,
    research: ResearchSection = DEFAULT_RESEARCH,
) -> list[int]:
    choice = choose(NOW, pool, TASKS, lambda _: success, section or LearnerSection(), random.Random(seed), research)
    return [group.cursor for group in choice.chosen]


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
    assert reasons(choice) == {"stale": 1, "unknown_task": 3, "not_better": 1}


def test_group_mode_wants_spread_where_learner_mode_wants_gain() -> None:
    groups = seen(1, rewards=(1, 1)), seen(2, rewards=(1, 0))
    choice = choose(NOW, pool_of(*groups), TASKS, lambda _: 0.9, LearnerSection(), random.Random(0), AMONG_THEMSELVES)
    assert [group.cursor for group in choice.chosen] == [2]
    assert reasons(choice) == {"all_equal": 1}
    assert chosen_numbers(pool_of(*groups), success=0.9) == [1]


def test_no_peer_gets_more_than_its_share_while_others_have_groups() -> None:
    section = LearnerSection(foreign_groups=4, peer_share=0.5)
    ann = [seen(n, peer="ann", rewards=(1, 1)) for n in range(1, 9)]
    bob = [seen(n, peer="bob", rewards=(1, 0)) for n in range(9, 12)]
    for proven in ((), ("ann", "bob")):
        peers = Counter("ann" if n < 9 else "bob" for n in chosen_numbers(pool_of(*ann, *bob, proven=proven), section))
        assert peers == {"ann": 2, "bob": 2}
        assert len(chosen_numbers(pool_of(*ann, *bob[:1], proven=proven), section)) == 4  # ann fills the rest
        assert len(chosen_numbers(pool_of(*ann, proven=proven), section)) == 4


def test_between_equally_good_groups_fresh_ones_and_peers_little_heard_come_first() -> None:
    section = LearnerSection(foreign_groups=1)
    firsts: Counter[int] = Counter()
    for seed in range(200):
        pool = pool_of(seen(1, peer="often"), seen(2, peer="seldom"), proven=("often", "seldom"))
        for _ in range(50):
            pool.peers.taken("often")
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
    """Chooses ``groups`` candidates, settles them and returns their numbers."""
    section = LearnerSection(foreign_groups=groups)
    choice = choose(NOW, pool, TASKS, lambda _: 0.1, section, random.Random(seed))
    pool.settle(choice, USES)
    return [group.cursor for group in choice.chosen]


def test_groups_not_used_yet_come_first_and_none_is_used_more_often_than_allowed() -> None:
    pool = pool_of(*(seen(n) for n in range(1, 13)))
    uses: Counter[int] = Counter()
    for seed in range(20):
        uses.update(settled(pool, 8, seed))
        pool.add([seen(n) for n in range(1, 13)])  # advertised again and again
        if seed == 1:
            assert set(uses) == set(range(1, 13))  # two rounds of eight have used all twelve
    assert uses == dict.fromkeys(range(1, 13), USES)
    assert pool.peers.of("ann").groups_taken == 12  # counted by group, not by use


def test_dropped_group_is_not_chosen_again() -> None:
    pool = pool_of(seen(1), seen(2))
    settled(pool, 2)
    pool.drop(key_of(seen(1)))
    pool.add([seen(1), seen(2)])
    assert settled(pool, 2) == [2]


def test_restored_pool_uses_no_group_again_and_asks_from_the_beginning() -> None:
    pool = pool_of(*(seen(n) for n in range(1, 5)))
    used = settled(pool, 2)
    restored = ReplayPool(pool.position())
    assert restored.cursor == 0
    restored.add([seen(n) for n in range(1, 5)])
    assert {group.cursor for group in restored.candidates.values()} == {1, 2, 3, 4} - set(used)
    assert restored.peers.position() == pool.peers.position()


def test_kept_position_is_of_the_moment_when_it_was_kept() -> None:
    pool = pool_of(*(seen(n) for n in range(1, 5)))
    settled(pool, 1)
    pool.learnt(key_of(seen(1)), [b"outline", b"content"], NOW)
    then, kept = pool.position(), pool.kept_position()
    settled(pool, 2)
    pool.learnt(key_of(seen(2)), [b"another"], NOW)
    pool.peers.held("ann", NOW)
    assert kept() == then != pool.position()
    assert list(then["learnt"]) == [b"outline".hex(), b"content".hex()], "the oldest first, which leave first"


def test_pool_is_bounded_and_forgets_its_oldest_candidates() -> None:
    pool = pool_of(*(seen(n) for n in range(1, MAX_CANDIDATES + 1)))
    kept = MAX_CANDIDATES * 3 // 8  # what a stranger may take
    assert sorted(group.cursor for group in pool.candidates.values()) == [*range(MAX_CANDIDATES + 1 - kept, 1025)]


def test_peer_that_floods_pushes_out_its_own_groups_only() -> None:
    honest = [seen(n, peer=f"peer{n % 3}") for n in range(1, 31)]
    flood = [seen(n, peer="flood", rewards=(1, 1)) for n in range(100, 100 + 4 * MAX_CANDIDATES)]
    pool = pool_of(*honest, *flood)
    assert len(pool.candidates) <= MAX_CANDIDATES
    assert {group.cursor for group in pool.candidates.values()} >= {group.cursor for group in honest}
    choice = choose(NOW, pool, TASKS, lambda _: 0.1, LearnerSection(foreign_groups=32), random.Random(0))
    assert Counter(group.peer == "flood" for group in choice.chosen) == {True: 8, False: 24}


def test_flood_of_useless_adverts_keeps_memory_bounded_and_what_was_used_out() -> None:
    pool = pool_of(seen(1))
    for seed in range(USES):
        assert settled(pool, 1, seed) == [1]
    for start in range(100, 100 + 4 * MAX_REMEMBERED_GROUPS, MAX_CANDIDATES // 4):
        pool.add(seen(n, peer="flood", rewards=(0, 0)) for n in range(start, start + MAX_CANDIDATES // 4))
        settled(pool, 1)
    assert not pool.candidates and not pool.outlines and not pool.uses
    assert len(pool.position()["decided"]) == MAX_REMEMBERED_GROUPS


def test_empty_pool_gives_an_empty_choice_under_every_rule() -> None:
    for rule in ("gain", "uniform"):
        research = ResearchSection.model_validate({"foreign_choice": rule})
        choice = choose(NOW, ReplayPool(), TASKS, lambda _: 0.1, LearnerSection(), random.Random(0), research)
        assert choice == ForeignChoice((), {})


def test_pool_of_one_peer_fills_the_round() -> None:
    pool = pool_of(*(seen(n) for n in range(1, 41)))
    assert len(chosen_numbers(pool, LearnerSection(foreign_groups=32, peer_share=0.1))) == 32


def test_when_every_candidate_is_passed_over_nothing_is_chosen_and_each_has_its_reason() -> None:
    pool = pool_of(seen(1, rewards=(0, 0)), seen(2, age_seconds=1e6), seen(3, task="unheard of"))
    choice = choose(NOW, pool, TASKS, lambda _: 0.1, LearnerSection(), random.Random(0))
    assert choice.chosen == ()
    assert reasons(choice) == {"not_better": 1, "stale": 1, "unknown_task": 1}
    pool.settle(choice, USES)
    assert not pool.candidates


def test_liar_falls_behind_everybody_whatever_it_claims_and_is_heard_again_once_nobody_else_is_left() -> None:
    section = LearnerSection(foreign_groups=4, peer_share=0.5)
    liar = [seen(n, peer="liar", rewards=(1000, 1000)) for n in range(1, 11)]
    honest = [seen(n, peer="ann", rewards=(1, 0, 0, 0)) for n in range(11, 21)]
    pool = pool_of(*liar, *honest)
    assert sum(n < 11 for n in chosen_numbers(pool, section)) == 2  # its turn, while nothing is known against it
    pool.peers.lied("liar", NOW)
    assert all(n > 10 for n in chosen_numbers(pool, section))
    restored = ReplayPool(pool.position())  # remembered over a restart
    restored.add(liar)
    assert chosen_numbers(restored, section) == []
    later = choose(NOW + REST_SECONDS, restored, TASKS, lambda _: 0.1, section, random.Random(0))
    assert [group.peer for group in later.chosen] == ["liar"] * 4


def test_what_strangers_claim_buys_them_no_place_of_peers_whose_claims_held() -> None:
    section = LearnerSection(foreign_groups=32)
    liars = [seen(n, peer=f"liar {n % 40}", rewards=(1000, 1000)) for n in range(1, 401)]
    honest = [seen(n, peer=f"honest {n % 4}", rewards=(1, 0, 0, 0)) for n in range(1000, 1064)]
    pool = pool_of(*liars, *honest, proven=[f"honest {n}" for n in range(4)])
    chosen = chosen_numbers(pool, section)
    assert sum(n >= 1000 for n in chosen) == 28
    choice = choose(NOW, pool, TASKS, lambda _: 0.1, section, random.Random(0), try_strangers=False)
    assert sum(group.cursor >= 1000 for group in choice.chosen) == 32
    for n in range(40):
        pool.peers.lied(f"liar {n}", NOW - REST_SECONDS)
    assert all(n >= 1000 for n in chosen_numbers(pool, section))  # known liars get no place that others can fill
    alone = pool_of(*liars, *honest)
    peers = [group.peer for group in choose(NOW, alone, TASKS, lambda _: 0.1, section, random.Random(0)).chosen]
    assert len(set(peers)) == 32  # of 44 strangers each is tried once before any is tried twice


def test_unconnected_strangers_are_tried_after_connected_ones() -> None:
    pool = pool_of(*(seen(n, peer=f"far {n}", rewards=(1, 1)) for n in range(1, 9)), seen(10, peer="near"))
    pool.peers.connected = frozenset({"near"})
    assert chosen_numbers(pool, LearnerSection(foreign_groups=1)) == [10]


def test_advert_that_no_group_of_its_task_can_have_is_passed_over() -> None:
    longer = seen(1, rewards=(1, 1))
    longer = replace(longer, advert=replace(longer.advert, lengths=(8, 9)))
    larger = seen(2, rewards=(1, 1))
    larger = replace(larger, advert=replace(larger.advert, size=200_000))
    choice = choose(NOW, pool_of(longer, larger, seen(3)), TASKS, lambda _: 0.1, LearnerSection(), random.Random(0))
    assert [group.cursor for group in choice.chosen] == [3]
    assert reasons(choice) == {"too_long": 2}


def test_of_adverts_that_seem_to_be_one_group_the_first_of_the_best_standing_is_chosen() -> None:
    original, twin = seen(1, peer="ann"), seen(2, peer="eve")
    twin = replace(twin, advert=replace(twin.advert, prompt=original.advert.prompt))
    same_blob = replace(original, cursor=3, peer="mallory", advert=replace(original.advert, rewards=(1.0, 1.0)))
    assert chosen_numbers(pool_of(original, twin, same_blob)) == [1]
    assert chosen_numbers(pool_of(original, twin, same_blob, proven=("eve",))) == [2, 3]
    pool = pool_of(original, twin, same_blob)
    pool.drop(key_of(original))  # it failed, for example: the other announcements of it stay
    assert chosen_numbers(pool) == [2, 3]


def test_copy_of_what_was_learnt_is_passed_over_for_an_hour() -> None:
    original, twin = seen(1, peer="ann"), seen(2, peer="eve")
    twin = replace(twin, advert=replace(twin.advert, prompt=original.advert.prompt))
    pool = pool_of(original, twin)
    pool.learnt(key_of(original), [pool.outlines[key_of(original)]], NOW)
    for known in (pool, ReplayPool(pool.position())):
        known.add([original, twin])
        choice = choose(NOW, known, TASKS, lambda _: 0.1, LearnerSection(), random.Random(0))
        assert [group.cursor for group in choice.chosen] == [1]  # a second use of its own
        assert reasons(choice) == {"copy": 1}
        assert not known.is_copy(key_of(twin), known.outlines[key_of(twin)], NOW + COPY_SECONDS + 1)


def test_between_equally_good_groups_the_policy_nearer_to_ours_comes_first() -> None:
    firsts: Counter[int] = Counter()
    for seed in range(200):
        pool = pool_of(seen(1, peer="far"), seen(2, peer="near"), proven=("far", "near"))
        pool.peers.measured({"far": 5000.0, "near": 0.1})
        firsts.update(chosen_numbers(pool, LearnerSection(foreign_groups=1), seed=seed))
    assert firsts[2] > 10 * firsts[1]
    far, near = seen(1, peer="far", rewards=(1, 1)), seen(2, peer="near", rewards=(1, 0))
    pool = pool_of(far, near, proven=("far", "near"))
    pool.peers.measured({"far": 5000.0, "near": 0.1})
    assert chosen_numbers(pool) == [1, 2]  # the peer with more to teach still comes first


def test_under_group_advantages_spread_on_a_class_that_we_master_counts_little() -> None:
    pool = pool_of(seen(1, task="add"), seen(2, task="sort", rewards=(1, 0, 0, 0)))
    success = {"add": 0.95, "sort": 0.05}
    choice = choose(NOW, pool, TASKS, success.__getitem__, LearnerSection(), random.Random(0), AMONG_THEMSELVES)
    assert [group.cursor for group in choice.chosen] == [2, 1]


def test_uniform_rule_drops_what_is_all_equal_and_takes_any_of_the_rest() -> None:
    section = LearnerSection(foreign_groups=2, peer_share=0.1)
    groups = [seen(n, rewards=(1, 0) if n % 2 else (1, 1)) for n in range(1, 13)]
    counts: Counter[int] = Counter()
    for seed in range(600):
        counts.update(chosen_numbers(pool_of(*groups), section, success=0.9, seed=seed, research=UNIFORM))
    assert set(counts) == {1, 3, 5, 7, 9, 11}
    assert all(150 < count < 250 for count in counts.values())  # 200 expected, standard deviation 11.5
    choice = choose(NOW, pool_of(*groups), TASKS, lambda _: 0.1, section, random.Random(0), UNIFORM)
    assert reasons(choice) == {"all_equal": 6}
    by_capability = ResearchSection(foreign_choice="uniform", foreign_advantage="capability")
    everything = LearnerSection(foreign_groups=12)
    assert len(chosen_numbers(pool_of(*groups), everything, success=0.9, research=by_capability)) == 12
