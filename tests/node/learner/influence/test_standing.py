"""Who may teach a learner, how much, and what harm does to that."""

from __future__ import annotations

from random import Random

from node.learner.influence.standing import (
    LEAST_CAUTION,
    MOST_PEERS,
    PLACES,
    PROBATION_ROUNDS,
    SET_ASIDE_ROUNDS,
    USELESS_ROUNDS,
    USELESS_SET_ASIDE_ROUNDS,
    Standings,
)


def taught(standings: Standings, peers: list[str], rounds: range) -> None:
    """Lets ``peers`` teach in ``rounds`` without harm."""
    for number in rounds:
        standings.seat(peers, number, Random(number))
        teaching = [peer for peer in peers if peer in standings.places or standings.of(peer).proven]
        standings.taught(teaching, number)
        standings.calm(teaching)


def test_newcomers_rise_to_full_influence_a_few_at_a_time() -> None:
    standings, peers = Standings(), [f"peer-{n}" for n in range(6)]
    standings.seat(peers, 1, Random(1))
    first = [peer for peer in peers if standings.admits(peer, 1)]
    assert len(first) == PLACES
    assert {standings.influence(peer, 1) for peer in first} == {1 / PROBATION_ROUNDS}
    taught(standings, peers, range(1, PROBATION_ROUNDS + 1))
    assert [standings.influence(peer, 9) for peer in first] == [1.0] * PLACES
    taught(standings, peers, range(9, 9 + 2 * PROBATION_ROUNDS))
    assert all(standings.of(peer).proven for peer in peers)


def test_members_of_a_private_cluster_begin_with_full_influence() -> None:
    standings = Standings(trusting=True)
    assert all(standings.admits(f"friend-{n}", 1) and standings.influence(f"friend-{n}", 1) == 1 for n in range(9))


def test_newcomers_in_whose_rounds_success_fell_are_set_aside_longer_each_time() -> None:
    standings = Standings()
    taught(standings, ["eve"], range(1, 3))
    assert standings.blame({"eve": 1.0}, 3) == ["eve"]
    assert standings.influence("eve", 3) == 0 == standings.influence("eve", 2 + SET_ASIDE_ROUNDS)
    assert not standings.admits("eve", 10) and standings.admits("eve", 3 + SET_ASIDE_ROUNDS)
    standings.blame({"eve": 1.0}, 30)
    assert not standings.admits("eve", 29 + 2 * SET_ASIDE_ROUNDS)


def test_a_newcomer_with_little_share_is_not_blamed_for_the_others() -> None:
    standings = Standings()
    taught(standings, ["sleeper", "old"], range(1, 20))
    taught(standings, ["sleeper", "old", "new"], range(20, 21))
    assert set(standings.blame({"sleeper": 9.0, "old": 5.0, "new": 0.1}, 21)) == {"sleeper", "old", "new"}
    assert standings.of("old").set_aside == 0  # suspected, not set aside
    assert not standings.of("sleeper").proven


def test_suspects_prove_themselves_one_at_a_time_until_the_harm_shows_whose_it_was() -> None:
    standings = Standings()
    taught(standings, ["sleeper", "old"], range(1, 20))
    standings.blame({"sleeper": 1.0, "old": 1.0}, 20)
    standings.seat(["sleeper", "old"], 21, Random(0))
    (alone,) = [peer for peer in ("sleeper", "old") if peer in standings.places]
    if alone == "old":
        taught(standings, ["old"], range(21, 21 + PROBATION_ROUNDS))
        assert standings.of("old").proven
    assert standings.blame({"sleeper": 1.0}, 40) == ["sleeper"]


def test_new_names_find_ever_less_to_spoil() -> None:
    standings = Standings()
    for number in range(1, 60, 2):
        standings.seat([f"sybil-{number}"], number, Random(number))
        standings.blame({f"sybil-{number}": 1.0}, number)
    assert standings.caution == LEAST_CAUTION
    taught(standings, ["bob"], range(60, 200))
    assert standings.caution == 1.0


def test_whoever_sends_nothing_worth_copying_is_set_aside() -> None:
    standings = Standings()
    for number in range(1, USELESS_ROUNDS + 1):
        assert standings.admits("padder", number)
        standings.useless("padder", number)
    assert not standings.admits("padder", USELESS_ROUNDS + 1)
    back = USELESS_ROUNDS + USELESS_SET_ASIDE_ROUNDS
    assert standings.admits("padder", back)
    standings.useless("padder", back)
    assert not standings.admits("padder", back + 2 * USELESS_SET_ASIDE_ROUNDS - 1)


def test_memory_is_bounded_and_keeps_those_who_did_harm() -> None:
    standings = Standings()
    standings.taught(["eve"], 1)
    standings.blame({"eve": 1.0}, 1)
    for number in range(2 * MOST_PEERS):
        standings.taught([f"peer-{number}"], 2 + number)
    assert len(standings.peers) == MOST_PEERS
    assert standings.of("eve").set_aside == 1
