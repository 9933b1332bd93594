"""Lists of swarms: one that every reader takes, and those that must be refused."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from protocol.cluster.signed_document import sign_document
from protocol.errors import ProtocolError
from protocol.manifest import Manifest
from protocol.swarm_list import SWARM_LIST_DOMAIN, ListedSwarm, SwarmList, open_swarm_list, sign_swarm_list
from scripts.vectors.cluster_vectors import CLUSTER_MADE, OWNER, PEER, STRANGER, example_cluster
from scripts.vectors.plain_values import Json, plain

NOW_SECONDS: Final = CLUSTER_MADE + 60
DOOR: Final = f"/ip4/192.0.2.7/tcp/4001/p2p/{PEER.peer_id}"
MANIFEST: Final = Manifest("lark", (("chain_sum", 1, b"\x01" * 16),))
OPEN: Final = ListedSwarm("open", MANIFEST.encode(), (DOOR, DOOR.replace("ip4/192.0.2.7", "dns4/door.example")), "")
PRIVATE: Final = ListedSwarm("private", example_cluster().document, (), "ask Wren for an invite")


def example_list(**changes: Any) -> SwarmList:
    until_seconds = CLUSTER_MADE + 2_592_000
    content = SwarmList(PEER.public_bytes, "Wren's list", CLUSTER_MADE, until_seconds, (OPEN, PRIVATE))
    return msgspec.structs.replace(content, **changes)


def swarm_lists() -> list[Json]:
    """Documents, the reader's clock, and the swarms in them, or why they are refused."""
    sound = sign_swarm_list(PEER, example_list())

    def entry(**changes: Any) -> bytes:
        body = example_list(swarms=(msgspec.structs.replace(OPEN, **changes),))
        payload = msgspec.msgpack.encode((1, 2, body))
        return msgspec.msgpack.encode((payload, PEER.sign(SWARM_LIST_DOMAIN, payload)))

    cases = {
        "an open swarm and a private cluster": (sound, NOW_SECONDS),
        "no swarms": (sign_swarm_list(PEER, example_list(name="", swarms=())), NOW_SECONDS),
        "truncated": (sound[:-1], NOW_SECONDS),
        "one bit of the signature changed": (sound[:-1] + bytes([sound[-1] ^ 1]), NOW_SECONDS),
        "signed by another key": (sign_document(STRANGER, SWARM_LIST_DOMAIN, example_list()), NOW_SECONDS),
        "signed for another purpose": (sign_document(PEER, b"starling/invitation/1", example_list()), NOW_SECONDS),
        "expired": (sound, CLUSTER_MADE + 2_592_000),
        "from the future": (sound, CLUSTER_MADE - 301),
        "another kind of swarm": (entry(kind="secret"), NOW_SECONDS),
        "a manifest that is none": (entry(manifest=b"\x93"), NOW_SECONDS),
        "a swarm without a name": (entry(manifest=Manifest("", ()).encode()), NOW_SECONDS),
        "a private cluster whose owner did not sign": (entry(kind="private"), NOW_SECONDS),
        "a door without a peer": (entry(doors=("/ip4/192.0.2.7/tcp/4001",)), NOW_SECONDS),
        "a door with a comma": (entry(doors=(f"/ip4/192.0.2.7,/tcp/4001/p2p/{OWNER.peer_id}",)), NOW_SECONDS),
    }
    return [
        {"name": name, "document": raw.hex(), "now_seconds": now, "answer": _answer(raw, now)}
        for name, (raw, now) in cases.items()
    ]


def _answer(raw: bytes, now_seconds: float) -> Any:
    try:
        opened = open_swarm_list(raw, now_seconds=now_seconds)
    except ProtocolError as error:
        return error.reason
    ids = [each.swarm_id.hex() for each in opened.swarms]
    return {"content": plain(opened.content), "swarm_ids": ids, "names": [each.name for each in opened.swarms]}
