"""Who is connected to whom, and how a friend joins."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import msgspec
import pytest

from node.api.join import DEFAULT_SWARM, join_of, join_svg
from node.api.links import BOTH, CERTAIN, MAX_LINKS, MAX_NODES, ONE, links_answer
from node.api.types import ChildStatus, HeartbeatView, NodeState, NodeStatus, PeersAnswer, PeerView
from node.configuration import Config
from protocol import limits
from protocol.connections import PREFIX_BYTES, connection_prefix, connections_field
from swarm.api import SwarmStatus

LOOPBACK, LAN, PUBLIC = "/ip4/127.0.0.1/tcp/1/p2p/X", "/ip4/192.168.1.4/tcp/1/p2p/X", "/ip4/203.0.112.9/tcp/1/p2p/X"


def status() -> NodeStatus:
    child = ChildStatus(1, 0, None)
    return NodeStatus(
        "1", 1, "/h", "ann", "ann", "wren", NodeState.TRAINING, 1.0, child, child, None, None, None, None, None, None,
        (),
    )  # fmt: skip


def peer(name: str, *claims: str, connected: bool = False, age_seconds: float = 1.0) -> PeerView:
    beat = HeartbeatView(
        name, "s", "robin", "ab", "ab", 1, 1, "learning", 1.0, 0, 0, {}, connected=connections_field(claims).hex()
    )
    return PeerView(name, connected, (), None, beat, age_seconds, 0, 0, 0, 1.0, None)


def swarm(*addresses: str, name: str = DEFAULT_SWARM, private: bool = False) -> SwarmStatus:
    return SwarmStatus("ann", name, "00", addresses, 1.0, 0, None, 0, 0, 0, {}, {}, private=private)


def drawn(*peers: PeerView) -> dict[tuple[str, str], int]:
    answer = links_answer(status(), PeersAnswer(peers))
    names = [node.name for node in answer.nodes]
    return {(names[link.a], names[link.b]): link.known for link in answer.links}


def test_own_connections_are_certain_and_those_of_others_are_claims_of_one_or_of_both() -> None:
    peers = peer("bob", "ann", "eve", connected=True), peer("eve", "bob", "joe"), peer("joe")
    assert drawn(*peers) == {("ann", "bob"): CERTAIN, ("bob", "eve"): BOTH, ("eve", "joe"): ONE}


def test_a_stranger_that_claims_a_connection_to_us_gets_none() -> None:
    assert drawn(peer("eve", "ann")) == {}


def test_silent_and_banned_peers_are_not_in_the_picture() -> None:
    banned = msgspec.structs.replace(peer("eve", "bob", connected=True), banned_because="lies")
    answer = links_answer(status(), PeersAnswer((banned, peer("old", age_seconds=1e6), peer("bob"))))
    assert [node.name for node in answer.nodes] == ["ann", "bob"] and answer.silent == 1


def test_a_large_swarm_is_bounded_with_our_own_connections_first() -> None:
    names = [f"p{i}" for i in range(1000)]
    peers = [peer(name, *names[i : i + 40], connected=i >= 990) for i, name in enumerate(names)]
    answer = links_answer(status(), PeersAnswer(tuple(peers)))
    assert len(answer.nodes) == MAX_NODES and answer.nodes_left_out == 1001 - MAX_NODES
    assert [link.known for link in answer.links[:11]] == [CERTAIN] * 10 + [ONE]
    assert len(answer.links) <= MAX_LINKS and all(link.a < link.b < MAX_NODES for link in answer.links)


def test_the_field_of_a_heartbeat_is_bounded_and_sorted() -> None:
    field = connections_field(f"p{i}" for i in range(1000))
    prefixes = [field[at : at + PREFIX_BYTES] for at in range(0, len(field), PREFIX_BYTES)]
    assert len(prefixes) == limits.CONNECTION_PREFIXES and prefixes == sorted(prefixes)
    assert connections_field(["a", "a"]) == connection_prefix("a") and connections_field([]) == b""


@pytest.mark.parametrize(
    ("addresses", "first", "hint"),
    [
        ((LOOPBACK, LAN, PUBLIC), f"{PUBLIC} --peer {LAN}", None),
        ((LOOPBACK, LAN), LAN, "your own network"),
        ((LOOPBACK,), LOOPBACK, "--listen"),
        (("/dns4/example.org/tcp/1/p2p/X", LAN), f"/dns4/example.org/tcp/1/p2p/X --peer {LAN}", None),
    ],
)
def test_one_command_has_all_addresses_that_lead_beyond_this_machine_the_farthest_first(
    addresses: tuple[str, ...], first: str, hint: str | None
) -> None:
    join = join_of(swarm(*addresses))
    assert join.commands == (f"starling up --peer {first}",) and join.qr
    assert (join.hint is None) if hint is None else hint in (join.hint or "")


def test_a_swarm_of_another_name_is_named_and_a_private_one_needs_an_invite() -> None:
    assert join_of(swarm(PUBLIC, name="our swarm")).commands[0].endswith(" --set 'swarm.name=our swarm'")
    private = join_of(swarm(PUBLIC, private=True))
    assert private.commands == ("starling up --join INVITE",) and "starling invite" in (private.hint or "")
    assert not private.qr and not join_of(swarm()).qr
    assert Config().swarm.name == DEFAULT_SWARM


def test_the_code_is_an_svg_that_names_its_command_and_holds_no_script() -> None:
    root = ElementTree.fromstring(join_svg([f"starling up --peer {PUBLIC} <&>"]))
    tags = {each.tag.rpartition("}")[2] for each in root.iter()}
    assert root.tag.endswith("svg") and tags <= {"svg", "g", "path", "title"}
    assert any(each.text and PUBLIC in each.text for each in root.iter() if each.tag.endswith("title"))
