"""Reputation: what is kept of a peer, when it is banned, and that strangers cannot abuse the memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import StorageError
from swarm.api import Judgement
from swarm.peers import reputation as reputation_module
from swarm.peers.peer_table import PeerTable
from swarm.peers.reputation import Conduct, PeerReputation, ReputationBook, is_banned, observed, reputation

NOW = 1_700_000_000.0


def after(*conducts: Conduct, at_seconds: float = NOW) -> PeerReputation:
    standing = PeerReputation(at_seconds=at_seconds)
    for conduct in conducts:
        standing = observed(standing, conduct, at_seconds)
    return standing


def test_the_reputation_of_a_stranger_is_one_half() -> None:
    assert ReputationBook().of("stranger", NOW) == 0.5
    assert reputation(PeerReputation(at_seconds=NOW), NOW) == 0.5


def test_every_judgement_of_the_learner_is_a_conduct() -> None:
    assert {Conduct(j) for j in Judgement} < set(Conduct)


def test_groups_that_held_raise_reputation_and_false_ones_lower_it_more() -> None:
    good = reputation(after(Conduct.USED), NOW)
    assert good > 0.5
    assert reputation(after(Conduct.FALSE_REWARD), NOW) < 0.5
    assert reputation(after(Conduct.USED, Conduct.FALSE_REWARD), NOW) < 0.5


def test_reputation_drifts_back_to_neutral_from_both_sides() -> None:
    liked, disliked = after(*[Conduct.USED] * 20), after(Conduct.STALLED, Conduct.STALLED)
    later = NOW + 20 * reputation_module.HALF_LIFE_SECONDS
    assert reputation(liked, NOW) > 0.9
    assert reputation(liked, later) == pytest.approx(0.5, abs=1e-3)
    assert reputation(disliked, later) == pytest.approx(0.5, abs=1e-3)
    assert reputation(liked, NOW + reputation_module.HALF_LIFE_SECONDS) < reputation(liked, NOW)


def test_a_clock_that_goes_backwards_changes_nothing() -> None:
    standing = after(*[Conduct.USED] * 5)
    assert reputation(standing, NOW - 1e6) == reputation(standing, NOW)


@pytest.mark.parametrize(
    "fault", [Conduct.FALSE_REWARD, Conduct.MALFORMED, Conduct.WRONG_CHUNK, Conduct.HOSTILE_REQUEST]
)
def test_three_proven_faults_in_a_row_ban(fault: Conduct) -> None:
    assert not is_banned(after(fault, fault), NOW)
    banned = after(fault, fault, fault)
    assert is_banned(banned, NOW)
    assert reputation(banned, NOW) == 0.0
    assert "3 " in banned.banned_because
    assert "1 h" in banned.banned_because


def test_stalls_and_missing_blobs_prove_nothing_and_never_ban() -> None:
    standing = after(*[Conduct.STALLED, Conduct.MISSING] * 500)
    assert not is_banned(standing, NOW)
    assert reputation(standing, NOW) < 0.01


def test_three_false_rewards_over_days_do_not_ban() -> None:
    standing = PeerReputation(at_seconds=NOW)
    for day in range(3):
        standing = observed(standing, Conduct.FALSE_REWARD, NOW + day * 86_400)
    assert not is_banned(standing, NOW + 2 * 86_400)


def test_a_peer_with_a_long_good_record_is_not_banned_for_three_faults_and_a_liar_among_good_claims_is() -> None:
    honest = after(*[Conduct.USED] * 100, *[Conduct.FALSE_REWARD] * 3)
    assert not is_banned(honest, NOW)
    liar = after(*([Conduct.USED] * 4 + [Conduct.FALSE_REWARD]) * 4)
    assert is_banned(liar, NOW)


def test_a_ban_ends_and_the_next_one_lasts_longer() -> None:
    banned = after(*[Conduct.FALSE_REWARD] * 3)
    free_at_seconds = NOW + reputation_module.BAN_SECONDS + 1
    assert not is_banned(banned, free_at_seconds)
    assert reputation(banned, free_at_seconds) == 0.5
    again = banned
    for _ in range(3):
        again = observed(again, Conduct.FALSE_REWARD, free_at_seconds)
    assert is_banned(again, free_at_seconds + 1.5 * reputation_module.BAN_SECONDS)
    assert not is_banned(again, free_at_seconds + 2 * reputation_module.BAN_SECONDS + 1)


def test_the_ban_is_told_once_with_its_reason() -> None:
    peers = ReputationBook()
    told = [peers.observe("liar", Judgement.FALSE_REWARD, NOW) for _ in range(5)]
    assert [why is not None for why in told] == [False, False, True, False, False]
    assert peers.banned(NOW) == ["liar"]
    assert "false rewards" in (peers.banned_because("liar", NOW) or "")


def test_standings_and_bans_are_remembered_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "trust.json"
    peers = ReputationBook(path)
    for _ in range(3):
        peers.observe("liar", Conduct.FALSE_REWARD, NOW)
    peers.observe("friend", Conduct.USED, NOW)
    peers.save()
    again = ReputationBook(path)
    assert again.banned(NOW) == ["liar"]
    assert again.banned_because("liar", NOW) == peers.banned_because("liar", NOW)
    assert again.of("friend", NOW) == peers.of("friend", NOW)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_file_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "trust.json").write_text('{"peer": ')
    with pytest.raises(StorageError, match="delete"):
        ReputationBook(tmp_path / "trust.json")


def test_strangers_without_number_push_out_neither_memory_nor_a_ban(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reputation_module, "PEERS_REMEMBERED", 50)
    peers = ReputationBook()
    for _ in range(3):
        peers.observe("liar", Conduct.FALSE_REWARD, NOW)
    for number in range(500):
        peers.observe(f"stranger {number}", Conduct.STALLED, NOW)
    assert peers.banned(NOW) == ["liar"]
    assert peers.of("stranger 0", NOW) == 0.5
    assert peers.of("stranger 499", NOW) < 0.5


def test_banned_identities_without_number_push_out_no_honest_standing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reputation_module, "PEERS_REMEMBERED", 64)
    monkeypatch.setattr(reputation_module, "BANS_REMEMBERED", 32)
    peers = ReputationBook()
    for number in range(20):
        peers.observe(f"friend {number}", Conduct.USED, NOW)
    for number in range(1000):
        for _ in range(3):
            peers.observe(f"liar {number}", Conduct.FALSE_REWARD, NOW + 1.0)
    assert all(peers.of(f"friend {number}", NOW + 1.0) > 0.5 for number in range(20))
    assert 0 < len(peers.banned(NOW + 1.0)) <= 32
    assert peers.banned(NOW + 1.0)[-1] == "liar 999"


def test_strangers_with_a_little_good_conduct_leave_before_friends_however_late_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reputation_module, "PEERS_REMEMBERED", 64)
    peers = ReputationBook()
    for _ in range(20):
        peers.observe("friend", Conduct.USED, NOW)
    for number in range(1000):
        peers.observe(f"stranger {number}", Conduct.AVERAGED, NOW + 2 * reputation_module.HALF_LIFE_SECONDS)
    assert peers.of("friend", NOW + 2 * reputation_module.HALF_LIFE_SECONDS) > 0.8


def test_no_amount_of_averaging_makes_a_peer_proven_and_one_claim_that_held_does() -> None:
    peers = ReputationBook()
    for _ in range(20):
        peers.observe("averages", Conduct.AVERAGED, NOW)
    peers.observe("shares", Conduct.UNUSED, NOW)
    assert peers.of("averages", NOW) > 0.8 and not peers.has_held("averages", NOW)
    assert peers.has_held("shares", NOW) and not peers.has_held("shares", NOW + reputation_module.HALF_LIFE_SECONDS)
    for _ in range(20):
        peers.observe("shares", Conduct.UNUSED, NOW)
    assert peers.has_held("shares", NOW + reputation_module.HALF_LIFE_SECONDS)
    assert not peers.has_held("unknown", NOW)


def test_heartbeats_of_made_up_identities_push_out_no_notes_on_a_peer_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.peers.peer_table.PEERS", 50)
    table = PeerTable()
    table.of("friend").groups_used = 1
    table.of("passer-by")
    for number in range(500):
        table.of(f"made up {number}")
    assert table.known("friend").groups_used == 1
    assert "passer-by" not in list(table) and "made up 499" in list(table) and len(table) == 50
