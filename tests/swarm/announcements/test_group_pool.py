"""The pool of announced groups: what is listed, and who makes room when it is full."""

from __future__ import annotations

from collections import Counter

from protocol.messages import GroupAdvert, PromptRef, RolloutAdvert
from swarm.announcements.crowding import ROOM_SHARES, SenderShares, Standing
from swarm.announcements.group_pool import AGE_SECONDS, GROUP_SIZE, ROOM, GroupPool

NOW = 1_790_000_000.0
GROUP_OF_EIGHT = GROUP_SIZE + 8


def rollouts(*numbers: int, completions: int = 8) -> RolloutAdvert:
    adverts = tuple(
        GroupAdvert(
            number.to_bytes(32, "big"),
            2000,
            PromptRef("chain_sum", 1, bytes(16), number),
            (1.0,) * completions,
            (64,) * completions,
            (-0.5,) * completions,
        )
        for number in numbers
    )
    return RolloutAdvert(bytes(16), bytes(16), 1, adverts)


def pool_with(standings: dict[str, Standing] | None = None, *, groups: int = ROOM // GROUP_OF_EIGHT) -> GroupPool:
    """A pool with room for so many groups of eight completions; senders without a standing are strangers."""
    known = standings or {}
    return GroupPool(lambda peer: known.get(peer, Standing.STRANGER), room=groups * GROUP_OF_EIGHT)


def held(pool: GroupPool) -> Counter[str]:
    return Counter(seen.peer for seen in pool.after(0, 10_000, NOW))


def test_the_pool_lists_each_group_of_a_sender_once_with_rising_cursors() -> None:
    pool = pool_with()
    assert pool.add("a", rollouts(1, 2), NOW) == 2
    assert pool.add("a", rollouts(2, 3), NOW) == 1
    assert [(s.cursor, s.peer) for s in pool.after(0, 10, NOW)] == [(1, "a"), (2, "a"), (3, "a")]
    assert [s.cursor for s in pool.after(1, 1, NOW)] == [2]
    assert pool.after(3, 10, NOW) == []
    assert [s.cursor for s in pool.after(99, 10, NOW)] == [1, 2, 3]


def test_sender_that_claims_the_blob_of_another_first_takes_nothing_from_it() -> None:
    pool = pool_with()
    pool.add("thief", rollouts(1, completions=2), NOW)
    pool.add("honest", rollouts(1), NOW)
    assert [(s.peer, len(s.advert.rewards)) for s in pool.after(0, 10, NOW)] == [("thief", 2), ("honest", 8)]
    pool.forget("thief")
    assert held(pool) == {"honest": 1}


def test_groups_leave_the_pool_with_age_and_with_their_sender() -> None:
    pool = pool_with()
    pool.add("a", rollouts(1), NOW)
    pool.add("b", rollouts(2), NOW + 10)
    assert [s.peer for s in pool.after(0, 10, NOW + AGE_SECONDS + 1)] == ["b"]
    pool.forget("b")
    assert len(pool) == 0
    pool.add("b", rollouts(4), NOW)
    assert [s.cursor for s in pool.after(0, 10, NOW)] == [3]


def test_a_flood_pushes_out_its_own_groups_only() -> None:
    pool = pool_with(groups=40)
    pool.add("honest", rollouts(1, 2, 3), NOW)
    for number in range(10, 200):
        pool.add("flood", rollouts(number), NOW)
    assert held(pool) == {"honest": 3, "flood": 12}
    for number in range(200, 300):
        pool.add("heavy", rollouts(number, completions=64), NOW)
    assert held(pool)["honest"] == 3
    completions = sum(len(s.advert.rewards) for s in pool.after(0, 1000, NOW))
    assert completions + GROUP_SIZE * len(pool) <= ROOM_SHARES[Standing.STRANGER] * 40 * GROUP_OF_EIGHT


def test_eight_messages_of_five_identities_push_out_no_group_of_anybody() -> None:
    pool = pool_with()
    for peer in range(10):
        pool.add(f"honest {peer}", rollouts(*range(100 * peer, 100 * peer + 32)), NOW)
    for message in range(8):
        numbers = range(10_000 + 64 * message, 10_064 + 64 * message)
        pool.add(f"sybil {message % 5}", rollouts(*numbers, completions=64), NOW)
    counts = held(pool)
    assert all(counts[f"honest {peer}"] == 32 for peer in range(10))


def test_no_number_of_new_identities_pushes_out_senders_whose_claims_held() -> None:
    proven = {f"honest {peer}": Standing.PROVEN for peer in range(8)}
    pool = pool_with(proven, groups=400)
    for number, peer in enumerate(proven):
        pool.add(peer, rollouts(*range(100 * number, 100 * number + 20)), NOW)
    for identity in range(2_000):
        pool.add(f"sybil {identity}", rollouts(10_000 + identity, completions=64), NOW)
    counts = held(pool)
    assert all(counts[peer] == 20 for peer in proven)
    assert len(pool) <= 400


def test_unconnected_senders_push_out_no_connected_stranger_and_each_other_only() -> None:
    standings = {f"far {n}": Standing.LAST for n in range(1000)}
    pool = pool_with(standings, groups=160)
    pool.add("near", rollouts(*range(30)), NOW)
    for number, peer in enumerate(standings):
        pool.add(peer, rollouts(100 + number), NOW)
    assert held(pool)["near"] == 30
    assert len(pool) == 30 + 20


def test_sender_that_loses_its_standing_makes_room_in_its_new_place() -> None:
    standings = {"a": Standing.PROVEN, "b": Standing.LAST}
    pool = pool_with(standings, groups=80)
    pool.add("a", rollouts(*range(30)), NOW)
    pool.add("b", rollouts(*range(100, 105)), NOW)
    standings["a"] = Standing.LAST
    pool.regrade()
    assert held(pool) == {"a": 5, "b": 5}


def test_shares_stay_exact_and_their_bookkeeping_small_under_any_sequence() -> None:
    standings: dict[str, Standing] = {}
    shares: SenderShares[tuple[str, int]] = SenderShares(64, lambda peer: standings.get(peer, Standing.LAST))
    kept: dict[tuple[str, int], Standing] = {}
    state = 1
    for step in range(6_000):
        state = state * 48271 % (2**31 - 1)
        peer = f"peer {state % 23}"
        if state % 7 == 0:
            standings[peer] = Standing(state // 7 % 3)
            shares.regrade()
        elif state % 11 == 0 and kept:
            key = next(iter(kept))
            shares.remove(key[0], key)
            del kept[key]
        else:
            kept[peer, step] = Standing.LAST
            shares.add(peer, (peer, step))
        for key in shares.crowded_out():
            del kept[key]
        counts = Counter(standings.get(peer, Standing.LAST) for peer, _ in kept)
        assert all(counts[standing] <= ROOM_SHARES[standing] * 64 for standing in Standing)
    assert {key for peer in {peer for peer, _ in kept} for key in shares.of(peer)} == set(kept)
    assert sum(map(len, shares._largest.values())) <= 3 * (2 * 23 + 65)
