"""Which swarm a name means, and which addresses a friend's name."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from node.swarms.choosing import chosen_swarm, friend_doors
from node.swarms.known import ASK_OWNER, KnownSwarm, Voucher, swarms_on_network
from node.tasks.registry import default_manifest_tasks
from protocol.errors import ConfigurationError
from protocol.identity import NodeKey
from protocol.manifest import Manifest
from swarm.host import LanSwarm
from swarm.hosts.lan import HeardHost

ADA, BOB = (NodeKey(seed * 32).peer_id for seed in (b"a", b"b"))
DOOR, OTHER = f"/ip4/192.0.2.7/tcp/4001/p2p/{ADA}", f"/ip4/192.0.2.8/tcp/4001/p2p/{BOB}"
OWN: Final = KnownSwarm("starling", "00", "open", "this directory", (), (), "", None, None)
CLUSTER: Final = msgspec.structs.replace(OWN, name="lab", kind="private")


def listed(signer: str = ADA, **changes: Any) -> KnownSwarm:
    voucher = Voucher(signer, "a list", 0, 1, False, f"lists/{signer}")
    swarm = KnownSwarm("lark", "11", "open", "list", (DOOR,), (), "", voucher, None)
    return msgspec.structs.replace(swarm, **changes)


def refusal(named: str, *known: KnownSwarm) -> str:
    with pytest.raises(ConfigurationError) as refused:
        chosen_swarm(named, known)
    return str(refused.value)


def test_a_name_in_one_list_gives_its_doors() -> None:
    choice = chosen_swarm("lark", [OWN, listed()])
    assert (choice.name, choice.doors) == ("lark", (DOOR,))
    assert ADA in choice.because and "new" in choice.because


def test_lists_of_two_signers_are_not_mixed_and_two_entries_of_one_are() -> None:
    said = refusal("lark", OWN, listed(), listed(BOB, doors=(OTHER,)))
    assert f"lists/{ADA}" in said and f"lists/{BOB}" in said and "--list" in said
    assert chosen_swarm("lark", [listed(), listed(doors=(OTHER, DOOR))]).doors == (DOOR, OTHER)


def test_the_directorys_own_swarm_takes_its_doors_from_a_list_that_names_it() -> None:
    assert chosen_swarm("starling", [OWN, listed(name="starling")]).doors == (DOOR,)
    met = msgspec.structs.replace(OWN, doors=(OTHER,))  # the node dials them anyway
    assert chosen_swarm("starling", [met]).doors == ()
    assert chosen_swarm("starling", [met, listed(name="starling")]).doors == (DOOR,)


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    assert "starling, lark" in refusal("larx", OWN, listed())
    assert refusal("", listed(name=""))


def test_what_cannot_be_joined_by_its_name_says_why() -> None:
    assert ASK_OWNER in refusal("lark", OWN, listed(kind="private", obstacle=ASK_OWNER))
    assert "quic" in refusal("lark", OWN, listed(doors=(f"/ip4/192.0.2.7/udp/4001/quic-v1/p2p/{ADA}",)))
    mixed = chosen_swarm("lark", [listed(BOB, obstacle="its tasks are other ones"), listed()])
    assert mixed.doors == (DOOR,)


def test_a_member_of_a_private_cluster_stays_in_it() -> None:
    assert chosen_swarm("lab", [CLUSTER, listed(name="lab")]).name is None
    assert "--home" in refusal("lark", CLUSTER, listed())


def test_hosts_of_one_swarm_on_the_network_are_its_doors_and_a_false_id_cannot_be_joined() -> None:
    swarm_id = Manifest("lark", default_manifest_tasks()).swarm_id.hex()
    ours, hostile = LanSwarm(swarm_id, "lark"), LanSwarm("0f" * 16, "wr\x1b[2Jen")
    heard = [
        HeardHost((DOOR,), ours),
        HeardHost((OTHER,), ours),
        HeardHost((OTHER,), hostile),
        HeardHost((DOOR,), None),
    ]
    lark, wren = swarms_on_network(heard)
    assert chosen_swarm("lark", [OWN, lark, wren]).doors == (DOOR, OTHER)
    assert wren.name.isprintable() and wren.obstacle is not None
    (false,) = swarms_on_network([HeardHost((DOOR,), LanSwarm("0f" * 16, "lark"))])
    assert false.obstacle is not None


def test_a_friend_is_dialled_where_it_was_reached_or_at_the_relay_before_it() -> None:
    through = f"{OTHER}/p2p-circuit/p2p/{ADA}"
    assert friend_doors("robin", ADA, [OTHER, DOOR, through, DOOR]) == (DOOR, OTHER)
    with pytest.raises(ConfigurationError) as refused:
        friend_doors("robin", ADA, [OTHER])
    assert "robin" in str(refused.value) and "--peer" in str(refused.value)
