"""Claims of addresses in heartbeats: which are made, and how little a crowd of invented ones makes a node dial."""

from __future__ import annotations

from collections import Counter
from random import Random

import anyio
import pytest
from trio.testing import MockClock

from protocol.errors import TransportError, UnreachableError
from protocol.limits import ADDRESSES_PER_HEARTBEAT
from protocol.messages import Heartbeat
from swarm.hosts.simulated.network import SimulatedNetwork
from swarm.peers.claimed_addresses import FAILURE_EVERY_SECONDS, FAILURES_AT_ONCE, claimed_addresses, claims_of
from swarm.peers.discovery import DIALS_PER_IP
from swarm.peers.peering import Peering

HOME, PUBLIC, SELF = "/ip4/192.168.1.7/tcp/4001", "/ip4/203.0.113.7/tcp/4001", "/ip4/127.0.0.1/tcp/4001"
RELAYED = "/ip4/203.0.113.9/tcp/4001/p2p/12D3relay/p2p-circuit"


@pytest.mark.parametrize(
    ("addresses", "claims"),
    [
        ([SELF, HOME, PUBLIC], (PUBLIC, HOME)),
        ([RELAYED, SELF, HOME], (HOME, RELAYED)),
        ([SELF], (SELF,)),
        ([PUBLIC + "/p2p/12D3other/p2p-circuit" + "0" * 256, HOME], (HOME,)),
    ],
)
def test_a_direct_address_and_one_through_a_relay_are_claimed_the_public_ones_first(
    addresses: list[str], claims: tuple[str, ...]
) -> None:
    assert claims_of([f"{address}/p2p/12D3us" for address in addresses], "12D3us") == claims
    assert len(claims) <= ADDRESSES_PER_HEARTBEAT


def test_claims_are_of_their_sender_whatever_they_say() -> None:
    heartbeat = Heartbeat("n", "s", "m", bytes(16), bytes(16), 0, 0, "p", 0.0, 0, 0, (), b"", (f"{PUBLIC}/p2p/12D3b",))
    assert claimed_addresses("12D3a", heartbeat) == [f"{PUBLIC}/p2p/12D3b/p2p/12D3a"]
    assert claimed_addresses("12D3a", None) == []


def test_a_crowd_of_identities_that_claim_one_address_makes_a_node_dial_it_a_few_times() -> None:
    async def story() -> None:
        host = SimulatedNetwork(seed=1).host("a")
        at_once: Counter[str] = Counter()
        dials, most = 0, 0

        async def connect(address: str, *, deadline_seconds: float) -> str:
            nonlocal dials, most
            dials += 1
            at_once[address.split("/")[2]] += 1
            most = max(most, *at_once.values())
            await anyio.sleep(0.5)
            at_once[address.split("/")[2]] -= 1
            raise UnreachableError("somebody else is there")

        host.connect = connect  # type: ignore[method-assign]
        peering = Peering(
            host, bytes(16), configured=[], remembered=None, random=Random(1),
            claimed=lambda peer: [f"{PUBLIC}/p2p/{peer}"],
        )  # fmt: skip

        async def reach(peer: str) -> None:
            with pytest.raises(TransportError):
                await peering.reach(peer, 10.0)

        async with host.run(), anyio.create_task_group() as tasks:
            for number in range(300):
                tasks.start_soon(reach, f"12D3invented{number}")
                await anyio.sleep(0.1)
        assert most == DIALS_PER_IP
        assert dials <= FAILURES_AT_ONCE + 40.0 / FAILURE_EVERY_SECONDS + DIALS_PER_IP

    anyio.run(story, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


def test_a_claim_that_holds_is_dialled_wherever_others_were_in_vain() -> None:
    async def story() -> None:
        network = SimulatedNetwork(seed=1)
        a, b = network.host("a"), network.host("b")
        peering = Peering(
            a, bytes(16), configured=[], remembered=None, random=Random(1), claimed=lambda peer: b.addresses()
        )
        async with a.run(), b.run():
            await peering.reach(b.peer_id, 10.0)
            assert a.peers() == [b.peer_id]

    anyio.run(story, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
