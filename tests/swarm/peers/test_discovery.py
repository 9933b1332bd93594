"""Discovery: which peers are dialled and why; alone, partitioned, merged, in another swarm; what is kept."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random

import anyio
import msgspec
import pytest
from trio.testing import MockClock

from protocol.errors import ConfigurationError, ProtocolError, StorageError, UnreachableError
from protocol.limits import ADDRESSES_PER_PEER
from protocol.manifest import Manifest
from protocol.streams.peer_messages import PEER_PROTOCOL, PeerExchangeAnswer, PeerExchangeQuestion
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.peers import discovery
from swarm.peers.discovery import (
    AddressBook,
    AddressSource,
    Candidate,
    Dial,
    DiscoveryConfig,
    after_failure,
    after_success,
    is_dialable,
    next_dials,
    why_alone,
)
from swarm.peers.manifest_answers import ManifestAnswers
from swarm.peers.name_lookups import LOOKUP_EVERY_SECONDS as NAME_LOOKUP_EVERY_SECONDS
from swarm.peers.peer_exchange import QUESTIONS, PeerExchange
from swarm.peers.peering import Peering
from swarm.peers.remembered_addresses import REMEMBERED, to_remember

SWARM = bytes(range(16))
CONFIG = DiscoveryConfig(peers_wanted=4, dials_at_once=3)


def address(peer: str, port: int = 4001) -> str:
    return f"/ip4/10.0.0.1/tcp/{port}/p2p/{peer}"


def dials(candidates: list[Candidate], now_seconds: float = 0.0, **state: object) -> list[Dial]:
    defaults = {"ourselves": "us", "connected": (), "dialling": (), "refused": (), "config": CONFIG}
    return next_dials(now_seconds, candidates, **{**defaults, **state})  # type: ignore[arg-type]


def test_everybody_known_is_dialled_the_configured_first_while_peers_are_short() -> None:
    candidates = [Candidate(address("told"), AddressSource.PEER), Candidate(address("given"), AddressSource.CONFIGURED)]
    assert [d.address for d in dials(candidates)] == [address("given"), address("told")]
    assert "0 of 4" in dials(candidates)[1].why


def test_nobody_but_configured_peers_is_dialled_once_there_are_enough() -> None:
    candidates = [Candidate(address("told"), AddressSource.PEER), Candidate(address("given"), AddressSource.CONFIGURED)]
    assert [d.why for d in dials(candidates, connected=("a", "b", "c", "d"))] == ["configured"]


def test_ourselves_connected_dialled_and_refused_peers_are_not_dialled() -> None:
    candidates = [Candidate(address(peer), AddressSource.CONFIGURED) for peer in ("us", "friend", "soon", "liar")]
    assert dials(candidates, connected=("friend",), dialling=("soon",), refused=("liar",)) == []


def test_one_address_of_a_peer_is_dialled_at_a_time_the_least_failed_first() -> None:
    candidates = [
        Candidate(address("a", 1), AddressSource.REMEMBERED, failures=2),
        Candidate(address("a", 2), AddressSource.PEER),
        Candidate(address("a", 3), AddressSource.PEER, failures=1),
    ]
    assert [d.address for d in dials(candidates)] == [address("a", 2)]


def test_no_more_are_dialled_at_once_than_allowed() -> None:
    candidates = [Candidate(address(f"p{i}"), AddressSource.CONFIGURED) for i in range(10)]
    assert len(dials(candidates)) == 3
    assert len(dials(candidates, dialling=("x", "y"))) == 1


def test_a_failed_address_waits_longer_each_time_up_to_a_bound_and_no_two_nodes_alike() -> None:
    candidate = Candidate(address("a"), AddressSource.CONFIGURED)
    waits = []
    for _ in range(12):
        candidate = after_failure(candidate, 0.0, "refused", Random(1))
        waits.append(candidate.not_before_seconds)
        assert dials([candidate], now_seconds=candidate.not_before_seconds - 0.01) == []
        assert dials([candidate], now_seconds=candidate.not_before_seconds)
    assert waits[:8] == sorted(waits[:8])
    assert waits[0] <= 1.5
    assert max(waits) <= 1.5 * discovery.MAX_BACKOFF_SECONDS
    assert after_failure(candidate, 0.0, "", Random(2)) != after_failure(candidate, 0.0, "", Random(3))
    assert after_success(candidate, 100.0).not_before_seconds == 101.0


def test_a_lonely_node_says_what_was_tried_and_when_it_tries_next() -> None:
    assert "asking the local network" in why_alone(0.0, [], dialling=(), on_lan=True)
    said = why_alone(0.0, [], dialling=(), on_lan=False)
    assert "--peer" in said and "LAN discovery is off" in said
    failed = after_failure(Candidate(address("a"), AddressSource.CONFIGURED), 0.0, "connection refused", Random(1))
    failed = after_failure(failed, 0.0, "connection refused", Random(1))
    failed = after_failure(failed, 0.0, "connection refused", Random(1))
    said = why_alone(
        0.5, [failed, Candidate(address("b"), AddressSource.PEER, not_before_seconds=60.0)], dialling=(), on_lan=True
    )
    assert "1 of 2" in said
    assert address("a") in said and "connection refused" in said
    assert " 2 s" in said
    assert address("a") in why_alone(0.0, [failed], dialling=("a",), on_lan=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1:4001",
        "/ip4/10.0.0.1/tcp/4001",
        "/p2p/abc",
        "/dns4/a.example/tcp/1/p2p/abc",
        "/dnsaddr/a.example/p2p/abc",
        "/ip4/1.2.3.4/tcp/1/p2p/",
        "/ip4/1.2.3.4/tcp/1/p2p/a\nb",
        "/ip4/1.2.3.4/tcp/1/p2p/" + "a" * 300,
        "/ip4/1.2.3.4/tcp/1\x1b[2J/p2p/abc",
    ],
)
def test_what_is_no_address_of_a_peer_is_not_dialled(text: str) -> None:
    assert not is_dialable(text)
    assert not AddressBook().add(text, AddressSource.PEER)


def test_addresses_told_in_masses_push_out_neither_memory_nor_those_that_worked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "ADDRESSES", 100)
    book = AddressBook()
    book.add(address("given"), AddressSource.CONFIGURED)
    book.add(address("friend"), AddressSource.PEER)
    book.update(after_success(book.of("friend")[0], 1.0))
    for number in range(1000):
        book.add(address(f"p{number}"), AddressSource.PEER)
        book.add(address("victim", number + 1), AddressSource.PEER)
    assert len(book) <= 100
    assert len(book.of("victim")) <= ADDRESSES_PER_PEER
    assert book.of("given")
    assert book.of("friend")


def networked(peer: str, network: int, **facts: object) -> Candidate:
    return Candidate(f"/ip4/10.0.{network}.1/tcp/4001/p2p/{peer}", AddressSource.PEER, **facts)  # type: ignore[arg-type]


def test_networks_with_few_connections_are_dialled_before_crowded_ones() -> None:
    candidates = [networked("crowded", 1), networked("apart", 2)]
    assert [
        Candidate(d.address, AddressSource.PEER).peer for d in dials(candidates, networks=[("10.0.1.0/24", "")])
    ] == [
        "apart",
        "crowded",
    ]


def test_no_ip_address_is_dialled_many_times_at_once_whoever_is_said_to_live_there() -> None:
    candidates = [Candidate(address(f"p{i}"), AddressSource.PEER) for i in range(10)]
    assert len(dials(candidates)) == discovery.DIALS_PER_IP
    assert len(dials(candidates, dialling=("p0",))) == discovery.DIALS_PER_IP - 1


def test_strangers_that_dialled_us_do_not_keep_us_from_dialling_others() -> None:
    candidates = [networked(f"p{i}", i) for i in range(10)]
    sybils = ("a", "b", "c", "d")
    assert dials(candidates, connected=sybils) == []
    assert len(dials(candidates, connected=sybils, dialled_us=sybils)) == CONFIG.peers_wanted // 2


def test_a_promising_address_that_waits_for_its_peer_to_dial_keeps_its_place() -> None:
    told = [Candidate(address(f"p{n}"), AddressSource.PEER, not_before_seconds=3.0 * (n < 2)) for n in range(8)]
    assert [d.address for d in dials(told)] == [address("p2"), address("p3")]
    assert [d.address for d in dials(told, now_seconds=3.0, connected=("p2", "p3"))] == [address("p0"), address("p1")]
    failed = [after_failure(told[0], 0.0, "refused", Random(1)), *told[2:]]
    short = [d.address for d in dials(failed, connected=("a", "b", "c"))]
    assert short == [address("p2")]  # one that failed waits longer, and keeps no place


def test_peers_of_no_use_do_not_count_toward_those_wanted() -> None:
    told = [Candidate(address(f"p{n}"), AddressSource.PEER) for n in range(8)]
    assert dials(told, connected=("a", "b", "c", "d")) == []
    assert len(dials(told, connected=("a", "b", "c", "d"), not_counted=2)) == 2


def test_addresses_of_a_peer_that_sent_dead_ones_are_dialled_after_those_of_others_and_dropped_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "ADDRESSES", 40)
    book = AddressBook()
    for number in range(30):
        book.add(networked(f"dead {number}".replace(" ", ""), number).address, AddressSource.PEER, teller="liar")
    for candidate in book.candidates()[:20]:
        book.update(after_failure(candidate, 0.0, "nobody there", Random(1)))
    book.add(networked("honest", 77, failures=1).address, AddressSource.PEER, teller="friend")
    assert book.doubts == {"liar": 20}
    first = dials(book.candidates(), doubts=book.doubts)[0]
    assert first.address == book.of("honest")[0].address
    for number in range(100):
        book.add(networked(f"more{number}", number).address, AddressSource.PEER, teller=f"friend {number % 9}")
    assert len(book) == 40 and book.of("honest") and not any(c.teller == "liar" for c in book.candidates())


def test_one_peer_fills_no_more_of_the_address_book_than_its_share() -> None:
    book = AddressBook()
    taken = [book.add(networked(f"p{n}", n % 250).address, AddressSource.PEER, teller="liar") for n in range(1000)]
    assert sum(taken) == len(book) == discovery.ADDRESSES_PER_TELLER
    for candidate in book.candidates():
        book.drop(candidate.address)
    assert book.add(networked("again", 1).address, AddressSource.PEER, teller="liar")


def play(story: Callable[[], Awaitable[None]]) -> None:
    anyio.run(story, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


@asynccontextmanager
async def living(
    host: SimulatedHost, *configured: SimulatedHost | str, swarm_id: bytes = SWARM, remembered: Path | None = None,
    manifest: Manifest | None = None,
):  # fmt: skip
    addresses = [peer if isinstance(peer, str) else peer.addresses()[0] for peer in configured]
    peering = Peering(
        host, swarm_id, configured=addresses, remembered=remembered, random=Random(host.peer_id), manifest=manifest
    )
    async with host.run(), anyio.create_task_group() as tasks:
        tasks.start_soon(peering.run)
        yield peering
        tasks.cancel_scope.cancel()


def meshed(*hosts: SimulatedHost) -> bool:
    return all(set(h.peers()) == {o.peer_id for o in hosts} - {h.peer_id} for h in hosts)


def test_three_nodes_that_know_one_of_them_find_each_other_within_seconds() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, b, c = (network.host(name) for name in "abc")
        async with living(a) as alone, living(b, a), living(c, a):
            assert "--peer" in (alone.alone_because() or "")
            await anyio.sleep(5.0)
            assert meshed(a, b, c)
            assert alone.alone_because() is None

    play(story)


def test_a_node_that_reaches_nobody_says_so_and_joins_once_somebody_is_there() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, b = network.host("a"), network.host("b")
        async with living(b, a) as peering:
            await anyio.sleep(200.0)
            assert a.addresses()[0] in (peering.alone_because() or "")
            assert peering.failures["unreachable"] >= 6
            async with living(a):
                await anyio.sleep(1.5 * discovery.MAX_BACKOFF_SECONDS + 1)
                assert meshed(a, b)

    play(story)


NAME = "/dnsaddr/door.example"


def test_a_node_joins_by_a_name_and_follows_it_when_it_leads_elsewhere() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        newcomer, first, second = (network.host(name) for name in "abc")
        async with living(newcomer, NAME) as peering:
            assert "looking up" in (peering.alone_because() or "")
            await anyio.sleep(1.0)
            assert f"{NAME} leads to no address" in (peering.alone_because() or "")
            network.name(NAME, first.addresses())
            async with living(first):
                await anyio.sleep(30.0)
                assert meshed(newcomer, first)
                assert [c.address for c in peering.book.configured()] == first.addresses()
            network.name(NAME, second.addresses())
            async with living(second):
                await anyio.sleep(NAME_LOOKUP_EVERY_SECONDS + 30.0)
                assert meshed(newcomer, second)
                assert [c.address for c in peering.book.configured()] == second.addresses()

    play(story)


def test_a_node_whose_peers_died_redials_them_when_they_are_back() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, b = network.host("a"), network.host("b")
        async with living(b, a):
            async with AsyncExitStack() as first:
                await first.enter_async_context(living(a))
                await anyio.sleep(5.0)
                assert meshed(a, b)
            assert b.peers() == []
            await anyio.sleep(10.0)
            again = network.restart(a)
            async with living(again):
                await anyio.sleep(30.0)
                assert meshed(again, b)

    play(story)


@pytest.mark.parametrize("of_use", [2, 8])
def test_a_newcomer_replaces_peers_that_bring_nothing_until_it_found_others_and_nobody_who_brings_something(
    of_use: int,
) -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=2)
        newcomer, *others = (network.host(f"host {n}") for n in range(9))
        useful = {host.peer_id for host in others[-of_use:]}
        ever: set[str] = set()
        peering = Peering(
            newcomer, SWARM, configured=[], remembered=None, random=Random(1), config=CONFIG,
            is_of_use=lambda peer: peer in useful, trial_seconds=lambda: 10.0,
        )  # fmt: skip
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(anyio.create_task_group())
            for host in others:
                host.handle(PEER_PROTOCOL, PeerExchange(
                    host, SWARM, on_addresses=lambda *_: None, addresses_for=lambda *_: ()
                )._on_stream)  # fmt: skip
                await stack.enter_async_context(host.run())
                peering.book.add(host.addresses()[0], AddressSource.PEER)
            await stack.enter_async_context(newcomer.run())
            tasks.start_soon(peering.run)
            for _ in range(120):
                await anyio.sleep(0.5)
                assert len(newcomer.peers()) <= CONFIG.peers_wanted
                ever |= set(newcomer.peers())
            last = set(newcomer.peers())
            tasks.cancel_scope.cancel()
        if of_use == 8:
            assert len(ever) == CONFIG.peers_wanted
        else:
            assert useful <= last

    play(story)


def test_swarms_that_started_apart_merge_when_one_node_knows_both() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, b, c, d, bridge = (network.host(name) for name in "abcde")
        async with living(a), living(b, a), living(c), living(d, c):
            await anyio.sleep(30.0)
            assert meshed(a, b)
            assert meshed(c, d)
            async with living(bridge, b, d):
                await anyio.sleep(60.0)
                assert meshed(a, b, c, d, bridge)

    play(story)


def test_a_swarm_that_was_parted_is_whole_again_after_the_partition() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, b, c, d = (network.host(name) for name in "abcd")
        async with living(a), living(b, a), living(c, a), living(d, a):
            await anyio.sleep(30.0)
            assert meshed(a, b, c, d)
            network.partition([a, b], [c, d])
            await anyio.sleep(600.0)
            assert meshed(a, b)
            assert meshed(c, d)
            network.heal()
            await anyio.sleep(1.5 * discovery.MAX_BACKOFF_SECONDS + 30.0)
            assert meshed(a, b, c, d)

    play(story)


def test_peers_on_the_local_network_find_each_other_without_being_told() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, b = network.host("a"), network.host("b")
        network.join_lan(a, b)
        async with living(a), living(b):
            await anyio.sleep(5.0)
            assert meshed(a, b)

    play(story)


def test_peers_reached_are_remembered_and_dialled_by_the_next_start(tmp_path: Path) -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, b = network.host("a"), network.host("b")
        path = tmp_path / "peers.json"
        async with living(a):
            async with living(b, a, remembered=path) as peering:
                await anyio.sleep(5.0)
                peering.save()
            assert json.loads(path.read_bytes()) == [a.addresses()[0]]
            async with living(network.restart(b), remembered=path):
                await anyio.sleep(5.0)
                assert a.peers() == [b.peer_id]

    play(story)


def test_strangers_that_were_reached_push_no_useful_peer_out_of_what_is_remembered() -> None:
    reached = [networked(f"stranger{n}", n % 250, reached_at_seconds=100.0 + n) for n in range(2 * REMEMBERED)]
    friend = networked("friend", 1, reached_at_seconds=1.0)
    kept = to_remember([*reached, friend], lambda peer: peer == "friend")
    assert len(kept) == REMEMBERED and kept[:2] == [friend.address, reached[-1].address]


def test_provider_records_are_preferred_of_a_member_and_not_of_the_silent_crowd_that_dialled() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        asked, friend, *crowd = (network.host(f"host {n}") for n in range(26))
        preferred: list[Callable[[], Collection[str]]] = []
        asked.prefer = preferred.append  # type: ignore[method-assign, assignment]
        async with AsyncExitStack() as stack:
            for stranger in crowd:
                await stack.enter_async_context(stranger.run())
            await stack.enter_async_context(living(friend))
            await stack.enter_async_context(living(asked, friend))
            for stranger in crowd:
                await stranger.connect(asked.addresses()[0], deadline_seconds=5.0)
            await anyio.sleep(20.0)
            assert len(asked.peers()) == len(crowd) + 1
            assert [set(known()) for known in preferred] == [{friend.peer_id}]

    play(story)


def test_a_damaged_file_of_peers_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text("{")
    host = SimulatedNetwork(seed=1).host("a")
    with pytest.raises(StorageError, match="delete"):
        Peering(host, SWARM, configured=[], remembered=tmp_path / "peers.json", random=Random(1))


def test_a_configured_address_with_a_typo_is_refused_at_once() -> None:
    host = SimulatedNetwork(seed=1).host("a")
    with pytest.raises(ConfigurationError, match="/p2p/<peer id>"):
        Peering(host, SWARM, configured=["10.0.0.1:4001"], remembered=None, random=Random(1))


def test_a_node_of_another_swarm_is_disconnected_told_of_and_learns_no_addresses() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, b, stranger = (network.host(name) for name in ("a", "b", "stranger"))
        async with living(a) as ours, living(b, a), living(stranger, a, swarm_id=bytes(16)) as theirs:
            await anyio.sleep(20.0)
            assert meshed(a, b)
            assert stranger.peers() == []
            assert theirs.refusals["wrong_swarm"] >= 1
            assert not theirs.book.of(b.peer_id)
            assert not ours.book.of(stranger.peer_id)

    play(story)


def test_two_friends_with_other_releases_are_both_told_what_differs_though_only_one_dials() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        old, new = network.host("old"), network.host("new")
        before, now = (Manifest("starling", (("chain_sum", version, bytes(16)),)) for version in (1, 2))
        for host, manifest in ((old, before), (new, now)):
            ManifestAnswers(host, manifest)
        async with (
            living(new, swarm_id=now.swarm_id, manifest=now) as waiting,
            living(old, new, swarm_id=before.swarm_id, manifest=before) as dialling,
        ):
            await anyio.sleep(2.0)
            for peering, other in ((waiting, old), (dialling, new)):
                why = peering.alone_because() or ""
                assert other.peer_id in why
                assert "another version of 'chain_sum'" in why
            await anyio.sleep(30.0)
            assert old.peers() == new.peers() == []

    play(story)


def test_a_peer_of_another_swarm_that_has_no_manifest_to_show_is_named_all_the_same() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        old, new = network.host("old"), network.host("new")
        ours = Manifest("starling", ())
        async with living(old, swarm_id=SWARM), living(new, old, swarm_id=ours.swarm_id, manifest=ours) as peering:
            await anyio.sleep(2.0)
            assert f"{old.peer_id} is in another swarm" in (peering.alone_because() or "")

    play(story)


def test_a_peer_that_said_goodbye_is_not_dialled_again_at_once() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, b = network.host("a"), network.host("b")
        async with living(a) as peering, living(b, a):
            await anyio.sleep(5.0)
            await peering.depart(b.peer_id)
            with pytest.raises(UnreachableError, match=b.peer_id):
                await peering.reach(b.peer_id, 5.0)

    play(story)


def test_a_peer_beyond_the_neighbours_is_reached_through_what_they_know() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, b, c = (network.host(name) for name in "abc")
        config = DiscoveryConfig(peers_wanted=1)
        async with living(b), living(c, b):
            await anyio.sleep(5.0)
            far = Peering(a, SWARM, configured=b.addresses(), remembered=None, random=Random(1), config=config)
            async with a.run(), anyio.create_task_group() as tasks:
                tasks.start_soon(far.run)
                await anyio.sleep(3.0)
                await far.reach(c.peer_id, 5.0)
                assert c.peer_id in a.peers()
                with pytest.raises(UnreachableError, match="12D3KooWnobody"):
                    await far.reach("12D3KooWnobody", 5.0)
                tasks.cancel_scope.cancel()

    play(story)


def test_a_peer_that_asks_without_end_is_answered_up_to_a_bound() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, curious = network.host("a"), network.host("curious")
        async with living(a), curious.run():
            exchange = PeerExchange(curious, SWARM, on_addresses=lambda *_: None, addresses_for=lambda *_: ())
            await curious.connect(a.addresses()[0], deadline_seconds=5.0)
            answered = 0
            for _ in range(20 * QUESTIONS):
                with suppress(UnreachableError):
                    await exchange.ask(a.peer_id)
                    answered += 1
            assert QUESTIONS <= answered < 5 * QUESTIONS
            assert a.faults["unreachable"] == 20 * QUESTIONS - answered

    play(story)


def test_an_answer_full_of_addresses_has_a_full_book_ranked_a_few_times_and_not_for_each_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery, "ADDRESSES", 200)
    book, rated = AddressBook(), 0
    for number in range(200):
        assert book.add(address(f"known{number}"), AddressSource.PEER, teller=f"teller{number % 2}")
    rate = book._badness

    def counted(candidate: Candidate) -> tuple[bool, int, int, int]:
        nonlocal rated
        rated += 1
        return rate(candidate)

    monkeypatch.setattr(book, "_badness", counted)
    taken = sum(book.add(address(f"new{number}"), AddressSource.PEER, teller="stranger") for number in range(64))
    assert taken == 64
    assert len(book) == 200
    assert rated < 64 * 200 / 4


@pytest.mark.parametrize("frame", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x02\xc1\xc1", b"\x00\x00\x00\x01\x90"])
def test_a_hostile_question_is_counted_and_ends_nothing_but_its_stream(frame: bytes) -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, hostile = network.host("a"), network.host("hostile")
        async with living(a), hostile.run():
            await hostile.connect(a.addresses()[0], deadline_seconds=5.0)
            stream = await hostile.open_stream(a.peer_id, PEER_PROTOCOL, deadline_seconds=5.0)
            await stream.send(frame)
            with pytest.raises((UnreachableError, ProtocolError)):
                assert await stream.receive(1) != b""
            assert a.faults.total() == 1

    play(story)


def test_a_peer_that_lies_about_addresses_cannot_give_others_its_name_or_name_others_its_own() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, liar = network.host("a"), network.host("liar")
        async with living(a) as peering, liar.run():
            await liar.connect(a.addresses()[0], deadline_seconds=5.0)
            stream = await liar.open_stream(a.peer_id, PEER_PROTOCOL, deadline_seconds=5.0)
            body = msgspec.msgpack.encode(PeerExchangeQuestion(SWARM, (address("victim"), liar.addresses()[0]), ()))
            await stream.send(len(body).to_bytes(4, "big") + body)
            answer = await stream.receive(65536)
            assert msgspec.msgpack.decode(answer[4:], type=PeerExchangeAnswer).swarm_id == SWARM
            assert not peering.book.of("victim")
            assert peering.book.of(liar.peer_id)

    play(story)
