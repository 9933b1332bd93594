"""Whether a node can be dialled, from what peers report, and at which relays it takes a place."""

from __future__ import annotations

import pytest

from node.cli.wording import reach_lines
from node.doctor.findings import Severity
from node.doctor.network import is_reach_known, judge_reach
from swarm.api import ReachStatus, SwarmStatus
from swarm.peers.discovery import AddressSource, Candidate, DiscoveryConfig, is_dialable, next_dials
from swarm.peers.reachability import (
    ASK_AGAIN_SECONDS,
    RELAY_BACKOFF_SECONDS,
    REPORT_SECONDS,
    DialReport,
    Reach,
    in_words,
    judged,
    relays_to_ask,
    whom_to_ask,
)

PUBLIC, PRIVATE = "203.0.113.9", "192.168.1.9"


def reports(ip: str, *reached: bool | None, at_seconds: float = 0.0) -> list[DialReport]:
    return [DialReport(f"{ip} {n}", at_seconds, ip, each) for n, each in enumerate(reached)]


@pytest.mark.parametrize(
    ("heard", "reach", "needs_relay"),
    [
        ([], Reach.UNKNOWN, False),
        (reports(PUBLIC, True), Reach.UNKNOWN, False),
        (reports(PUBLIC, False), Reach.UNKNOWN, True),
        (reports(PUBLIC, True, True), Reach.INTERNET, False),
        (reports(PUBLIC, False, False), Reach.NOWHERE, True),
        (reports(PUBLIC, None, None, None), Reach.UNKNOWN, False),
        (reports(PUBLIC, True, True, False), Reach.INTERNET, False),
        (reports(PUBLIC, True, False, False), Reach.NOWHERE, True),
        (reports(PRIVATE, True, True), Reach.LOCAL_NETWORK, False),
        (reports(PRIVATE, True, True, True) + reports(PUBLIC, False, False), Reach.NOWHERE, True),
        (reports("no address", True, True), Reach.LOCAL_NETWORK, False),
        (reports("224.0.0.1", True, True), Reach.LOCAL_NETWORK, False),
    ],
)
def test_two_reports_must_agree_and_those_over_the_internet_decide(
    heard: list[DialReport], reach: Reach, needs_relay: bool
) -> None:
    verdict = judged(1.0, heard, {PUBLIC, PRIVATE})
    assert (verdict.reach, verdict.needs_relay) == (reach, needs_relay)


def test_a_node_that_asked_in_vain_knows_that_nobody_tried() -> None:
    assert judged(1.0, reports(PUBLIC, None, None)).nobody_tried
    assert not judged(1.0, []).nobody_tried, "it has not asked yet"
    assert not judged(1.0, reports(PUBLIC, None, True)).nobody_tried
    assert not judged(2 * REPORT_SECONDS, reports(PUBLIC, None)).nobody_tried, "that was long ago"


def test_one_liar_changes_no_verdict_of_two_honest_peers() -> None:
    assert judged(1.0, [*reports(PUBLIC, False, False), DialReport("liar", 0.0, PUBLIC, True)]).reach is Reach.NOWHERE
    assert judged(1.0, [*reports(PUBLIC, True, True), DialReport("liar", 0.0, PUBLIC, False)]).reach is Reach.INTERNET


def test_a_node_behind_a_router_takes_places_until_two_peers_reached_it_and_then_announces_the_router() -> None:
    one, two = (DialReport(name, 0.0, PUBLIC, True, 4001) for name in ("a", "b"))
    assert judged(1.0, [one], {PRIVATE}).needs_relay
    assert not judged(1.0, [one], {PUBLIC}).needs_relay
    assert judged(1.0, [one, two], {PRIVATE}).also_at == (PUBLIC, 4001)
    assert judged(1.0, [one, two], {PUBLIC}).also_at is None
    liar = DialReport("liar", 0.0, "198.51.100.1", True, 80)
    assert judged(1.0, [one, two, liar], {PRIVATE}).also_at == (PUBLIC, 4001)
    assert judged(1.0, [one, liar], {PRIVATE}).also_at is None


def test_a_report_is_forgotten_once_it_is_old() -> None:
    assert judged(2 * REPORT_SECONDS, reports(PUBLIC, True, True)).reach is Reach.UNKNOWN


def test_asked_are_those_never_asked_then_those_whose_report_is_old() -> None:
    heard = {
        "fresh": DialReport("fresh", 1000.0, PUBLIC, True),
        "old": DialReport("old", 1000.0 - REPORT_SECONDS, PUBLIC, True),
        "silent": DialReport("silent", 1000.0 - ASK_AGAIN_SECONDS, "", None),
        "silent lately": DialReport("silent lately", 999.0, "", None),
    }
    assert whom_to_ask(1000.0, [*heard, "new"], heard) == ["new", "old"]
    assert whom_to_ask(1000.0, ["fresh", "silent lately"], heard) == []


def test_a_node_takes_two_places_renews_them_and_leaves_a_relay_that_refused_alone() -> None:
    assert relays_to_ask(10.0, ["a", "b", "c"], {}, {}) == ["a", "b"]
    assert relays_to_ask(10.0, ["a", "b", "c"], {"a": 100.0}, {"b": 5.0}) == ["c"]
    assert relays_to_ask(200.0, ["a", "b", "c"], {"a": 100.0, "b": 300.0}, {}) == ["a"]
    assert relays_to_ask(5.0 + RELAY_BACKOFF_SECONDS, ["b"], {}, {"b": 5.0}) == ["b"]


def test_a_node_that_nobody_can_dial_says_what_would_help() -> None:
    nowhere = judged(1.0, reports(PUBLIC, False, False))
    assert "forward TCP port 4001" in in_words(nowhere, 0, 4001)
    assert "through 1 relay." in in_words(nowhere, 1, 4001)
    assert "can reach this node" in in_words(judged(1.0, reports(PUBLIC, True, True)), 0, 4001)


@pytest.mark.parametrize(
    ("heard", "relays", "words", "helps"),
    [
        ((False,), 1, "one peer has tried to reach this node, and could not; it is reached through 1 relay.", True),
        ((False,), 0, "one peer has tried to reach this node, and could not; no connected peer relays for it.", True),
        ((True, False, False), 2, "no peer can reach this node; it is reached through 2 relays.", True),
        ((), 1, "no peer has tried to reach this node yet; it is reached through 1 relay", False),
        ((True,), 1, "one peer has tried to reach this node, and did; it is reached through 1 relay", False),
        (
            (True, False),
            1,
            "1 of 2 peers that tried reached this node, which is too few to be sure; it is reached",
            False,
        ),
    ],
)
def test_one_peer_that_tried_is_enough_to_say_what_is_known_and_what_would_help(
    heard: tuple[bool, ...], relays: int, words: str, helps: bool
) -> None:
    said = in_words(judged(1.0, reports(PUBLIC, *heard), {PRIVATE}), relays, 4001)
    assert words in said
    assert ("forward TCP port 4001" in said) is helps
    assert said.startswith("not known yet") is not helps


def test_a_node_on_a_host_that_takes_no_places_is_told_of_the_one_that_does() -> None:
    said = in_words(judged(1.0, reports(PUBLIC, False)), 0, 4001, takes_places=False)
    assert 'swarm.host = "py"' in said
    assert "no connected peer relays" not in said


RELAYED = "/ip4/203.0.113.1/tcp/4001/p2p/Relay/p2p-circuit/p2p/Peer"


def test_a_relayed_address_is_tried_after_a_public_one_and_before_a_private_one() -> None:
    addresses = ["/ip4/192.168.1.2/tcp/4001/p2p/Peer", RELAYED, "/ip4/203.0.113.2/tcp/4001/p2p/Peer"]
    book = [Candidate(address, AddressSource.PEER) for address in addresses]
    tried = []
    for _ in addresses:
        (dial,) = next_dials(0.0, book, ourselves="Us", connected=(), dialling=(), refused=(), config=DiscoveryConfig())
        tried.append(dial.address)
        book = [candidate for candidate in book if candidate.address != dial.address]
    assert tried == [addresses[2], addresses[1], addresses[0]]


@pytest.mark.parametrize(
    ("address", "dialable"),
    [
        (RELAYED, True),
        (RELAYED.replace("/p2p/Peer", "/p2p-circuit/p2p/Peer"), False),
        (f"{RELAYED}/p2p-circuit/p2p/Other", False),
        ("/p2p-circuit/ip4/203.0.113.1/tcp/1/p2p/Peer", False),
    ],
)
def test_an_address_runs_through_one_relay_at_most(address: str, dialable: bool) -> None:
    assert is_dialable(address) is dialable


@pytest.mark.parametrize("relays", [(), ("relay",)])
@pytest.mark.parametrize(
    ("heard", "known"),
    [
        ((False, False), "no peer can reach this node"),
        ((False,), "one peer has tried to reach this node, and could not"),
    ],
)
def test_doctor_and_status_say_that_nobody_can_dial_the_node(
    relays: tuple[str, ...], heard: tuple[bool, ...], known: str
) -> None:
    verdict = judged(1.0, reports(PUBLIC, *heard))
    reach = ReachStatus(verdict.reach, in_words(verdict, len(relays), 4001), verdict.is_out_of_reach, relays, ("peer",))
    assert is_reach_known(reach)
    finding = judge_reach(reach)
    assert finding.severity is (Severity.OK if relays else Severity.WARNING)
    assert known in finding.message
    assert "forward TCP port 4001" in (finding.message if relays else finding.remedy or "")
    swarm = SwarmStatus("me", "test", "", (), 0.0, 1, None, 0, 0, 0, {}, {}, reach=reach)
    said, relayed = reach_lines(swarm)
    assert "forward TCP port 4001" in said
    assert relayed.startswith("1 peer connected through a relay only")
