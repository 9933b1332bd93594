"""A full node gives up newcomers of crowded addresses; whoever is here, of use, or dialled by us stays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random

import anyio
import pytest

from protocol.errors import StarlingError
from swarm.hosts.libp2p.libp2p_host import CONNECTIONS as HOST_CONNECTIONS
from swarm.hosts.simulated.network import SimulatedHost, SimulatedNetwork
from swarm.peers import keeping
from swarm.peers.keeping import (
    CONNECTIONS,
    HALF_LIFE_SECONDS,
    NEWCOMER_SECONDS,
    PASSING,
    Connection,
    ConnectionLog,
    recommended,
    superfluous,
    to_replace,
)
from swarm.peers.peer_exchange import PeerExchange
from swarm.relay_service import FURTHER_PLACES
from tests.swarm.peers.test_discovery import SWARM, living, play

NOW = 1000.0
STRANGERS = ("198.51.100.0/24", "198.51.100.7/32")


def connection(name: str, since_seconds: float = 0.0, network: str = "", **facts: object) -> Connection:
    groups = (network or name, name)
    return Connection(name, since_seconds, groups, **facts)  # type: ignore[arg-type]


def crowd(number: int, since_seconds: float = 100.0) -> list[Connection]:
    return [Connection(f"sybil {n}", since_seconds + n / 1000, STRANGERS) for n in range(number)]


def left(connections: Sequence[Connection], now_seconds: float = NOW) -> set[str]:
    return {c.peer for c in connections} - set(superfluous(now_seconds, connections))


def test_node_with_room_gives_up_nobody() -> None:
    assert superfluous(NOW, crowd(CONNECTIONS)) == []


def test_those_that_came_last_to_a_full_node_pass_and_whoever_passed_longest_leaves_first() -> None:
    friends = [connection(f"friend {n}", network="one network") for n in range(CONNECTIONS)]
    late = [connection(f"late {n}", 50.0 + n, network="one network", recent_seconds=900.0 - n) for n in range(PASSING)]
    assert superfluous(NOW, [*late, *friends]) == []
    again = [connection(f"again {n}", NOW, network="one network", recent_seconds=1000.0 + n) for n in range(2)]
    assert superfluous(NOW, [*again, *late, *friends]) == ["again 1", "again 0"]
    new = [connection(f"new {n}", NOW, network="one network") for n in range(2)]
    assert superfluous(NOW, [*new, *late, *friends]) == ["late 0", "late 1"]


def test_newcomer_from_an_address_of_its_own_finds_a_place_among_hundreds_from_one() -> None:
    newcomer = connection("newcomer", NOW - NEWCOMER_SECONDS, recent_seconds=5000.0)
    kept = left([*crowd(300), newcomer])
    assert newcomer.peer in kept and len(kept) == CONNECTIONS + PASSING


def test_a_relay_keeps_as_many_peers_more_as_it_has_further_places() -> None:
    lasting = [connection(f"friend {n}", n) for n in range(CONNECTIONS + FURTHER_PLACES)]
    assert len(superfluous(NOW, lasting)) > 0
    assert superfluous(NOW, lasting, FURTHER_PLACES) == []
    crowded = crowd(CONNECTIONS + PASSING + FURTHER_PLACES + 9)
    assert len(superfluous(NOW, crowded, FURTHER_PLACES)) == 9
    assert CONNECTIONS + PASSING + FURTHER_PLACES < HOST_CONNECTIONS, "a newcomer is heard before another leaves"


def test_newcomers_take_the_places_that_nobody_lasting_has_and_leave_where_all_are_taken() -> None:
    young = [connection(f"new {n}", NOW - 1.0, network="one network") for n in range(PASSING + 40)]
    assert superfluous(NOW, [*crowd(CONNECTIONS - 40), *young]) == []
    assert len(superfluous(NOW, [*crowd(CONNECTIONS - 39), *young])) == 1


def test_newcomers_are_told_first_of_useful_peers_then_of_the_oldest_and_those_that_we_dialled() -> None:
    ours = [connection("useful", 500.0, standing=0.9), connection("dialled", 501.0, is_dialled=True)]
    useful, first, later, others = recommended([*crowd(300), *ours])
    assert [c.peer for c in useful] == ["useful"]
    assert [c.peer for c in first] == [*(f"sybil {n}" for n in range(4)), "dialled"]
    assert [c.peer for c in later] == [f"sybil {n}" for n in range(4, 8)] and len(others) == 292


def test_peers_that_a_crowd_got_us_to_dial_are_told_after_those_that_were_here_before_it() -> None:
    here = [connection(f"friend {n}", n) for n in range(4)]
    dialled = [connection(f"sybil {n}", 50.0 + n, is_dialled=True) for n in range(20)]
    _, first, *_ = recommended([*dialled, *here])
    assert first[:4] == here and len(first) == 8


def test_peer_of_no_use_loses_its_place_and_the_oldest_that_we_dialled_is_replaced() -> None:
    friends = [connection(f"friend {n}", 100.0) for n in range(CONNECTIONS)]
    useless = [connection(f"mute {n}", float(n), is_useless=True, is_dialled=n > 0) for n in range(3)]
    assert left([*useless, *friends]) == {c.peer for c in friends}
    assert to_replace(useless) == "mute 1"
    assert to_replace([connection("ours", is_useless=True, is_dialled=True, is_configured=True), useless[0]]) is None


def test_useful_configured_and_dialled_peers_stay_whoever_else_comes_and_however_young_they_are() -> None:
    ours = [
        connection("useful", 500.0, network=STRANGERS[0], standing=0.9),
        connection("configured", 500.0, network=STRANGERS[0], is_configured=True),
        connection("dialled", 500.0, network=STRANGERS[0], is_dialled=True),
    ]
    assert {c.peer for c in ours} <= left([*crowd(300), *ours])


def test_peer_that_never_showed_its_swarm_has_no_passing_place() -> None:
    others = [connection(f"friend {n}", 100.0) for n in range(CONNECTIONS)]
    assert superfluous(NOW, [connection("mute", 0.0, is_unproven=True), *others]) == ["mute"]


def test_time_of_former_connections_counts_and_fades() -> None:
    log = ConnectionLog()
    log.observe({"peer"}, 0.0)
    log.observe(set(), 60.0)
    log.observe({"peer"}, 60.0 + HALF_LIFE_SECONDS)
    assert log.recent_seconds("peer", 70.0 + HALF_LIFE_SECONDS) == pytest.approx(40.0, rel=0.02)
    assert log.recent_seconds("stranger", 70.0) == 0.0


def test_connection_that_we_dialled_and_that_ends_at_once_is_told_from_one_that_lasted() -> None:
    log = ConnectionLog()
    for peer in ("brief", "lasting"):
        log.note_dialled(peer)
    assert log.observe({"lasting", "theirs"}, 0.0) == []
    log.note_dialled("brief")
    assert log.observe({"lasting", "brief", "theirs"}, 60.0) == []
    assert log.since_seconds("lasting", 60.0) == 0.0 and log.is_dialled("brief") and not log.is_dialled("theirs")
    assert log.observe(set(), 61.0) == ["brief"]


def test_honest_peers_keep_their_places_on_a_node_that_hundreds_of_identities_dial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, places in {"CONNECTIONS": 16, "PASSING": 4, "KEPT_OLDEST": 4, "KEPT_DIALLED": 2}.items():
        monkeypatch.setattr(keeping, name, places)

    async def besiege(sybil: SimulatedHost, victim: SimulatedHost, random: Random) -> None:
        exchange = PeerExchange(sybil, SWARM, on_addresses=lambda *_: None, addresses_for=lambda *_: ())
        async with sybil.run():
            while True:
                with suppress(StarlingError):
                    await sybil.connect(victim.addresses()[0], deadline_seconds=5.0)
                    await exchange.ask(victim.peer_id)
                await anyio.sleep(random.uniform(1.0, 3.0))

    async def story() -> None:
        network, random = SimulatedNetwork(seed=1), Random(1)
        victim, *honest = (network.host(f"honest {n}") for n in range(4))
        newcomer = network.host("newcomer", place=7 * 256)
        sybils = [network.host(f"sybil {n}") for n in range(40)]
        async with living(victim), living(honest[0], victim), living(honest[1], victim), living(honest[2], victim):
            await anyio.sleep(10.0)
            async with anyio.create_task_group() as tasks:
                for sybil in sybils:
                    tasks.start_soon(besiege, sybil, victim, random)
                await anyio.sleep(30.0)
                assert {host.peer_id for host in honest} <= set(victim.peers())
                assert len(victim.peers()) < 40
                async with living(newcomer, victim):
                    await anyio.sleep(30.0)
                    assert newcomer.peer_id in victim.peers()
                    assert {host.peer_id for host in honest} <= set(victim.peers())
                tasks.cancel_scope.cancel()

    play(story)
