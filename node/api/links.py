"""Who is connected to whom, as far as this node knows: a pure function of its status and its peers.

Its own connections are certain. Others say in their heartbeats to whom they are connected, in prefixes of hashes
(``protocol.connections``); such a link is a claim of one end or of both. Nobody's claim makes a connection of ours. A
prefix that fits two nodes is passed over. Nodes and links are bounded, our own connections first.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from node.api.types import Link, LinkNode, LinksAnswer, NodeStatus, PeersAnswer, PeerView
from protocol.connections import PREFIX_BYTES, connection_prefix
from protocol.messages import RELAYING

STALE_SECONDS: Final = 120.0  # of a heartbeat: its sender may be gone
MAX_NODES: Final = 256
MAX_LINKS: Final = 4096
CERTAIN, BOTH, ONE = 0, 1, 2  # ``Link.known``


def links_answer(status: NodeStatus, peers: PeersAnswer) -> LinksAnswer:
    """Returns this node, the peers that are connected or heard of lately, and the links between them."""
    present = [peer for peer in peers.peers if peer.is_present(STALE_SECONDS)]
    shown = sorted(present, key=lambda peer: not peer.connected)[: MAX_NODES - 1]
    nodes = (_own_node(status), *map(_node, shown))
    prefixes = Counter(connection_prefix(node.peer).hex() for node in nodes)
    index = {prefix: i for i, node in enumerate(nodes) if prefixes[prefix := connection_prefix(node.peer).hex()] == 1}
    claims: dict[tuple[int, int], set[int]] = {}
    for at, peer in enumerate(shown, 1):
        for prefix in _claimed(peer):
            other = index.get(prefix)
            if other is not None and other not in (0, at):  # we know our own connections
                claims.setdefault((min(at, other), max(at, other)), set()).add(at)
    own = [Link(0, at, CERTAIN) for at, node in enumerate(nodes) if node.connected]
    claimed = [Link(*pair, BOTH if len(ends) == 2 else ONE) for pair, ends in claims.items()]
    claimed.sort(key=lambda link: (link.known, link.a, link.b))
    links = own + claimed
    return LinksAnswer(
        nodes=nodes,
        links=tuple(links[:MAX_LINKS]),
        nodes_left_out=len(present) - len(shown),
        links_left_out=max(0, len(links) - MAX_LINKS),
        silent=sum(not node.claims for node in nodes),
    )


def _claimed(peer: PeerView) -> list[str]:
    text = peer.heartbeat.connected if peer.heartbeat is not None else ""
    width = 2 * PREFIX_BYTES
    return [text[start : start + width] for start in range(0, len(text), width)]


def _own_node(status: NodeStatus) -> LinkNode:
    ready = status.ready
    return LinkNode(
        peer=status.peer,
        name=status.name,
        model=status.model,
        family=ready.family if ready is not None else "",
        ours=True,
        connected=False,
        claims=True,
    )


def _node(peer: PeerView) -> LinkNode:
    beat = peer.heartbeat
    return LinkNode(
        peer=peer.peer,
        name=peer.shown_name,
        model=(RELAYING if beat.is_relay else beat.model) if beat is not None else "",
        family=beat.family if beat is not None else "",
        ours=False,
        connected=peer.connected,
        claims=beat is not None and bool(beat.connected),
    )
