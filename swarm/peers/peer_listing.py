"""The list of peers that clients are shown."""

from __future__ import annotations

from collections.abc import Mapping

from swarm import api
from swarm.host import Host, PeerId
from swarm.peers.discovery import AddressBook
from swarm.peers.peer_table import PeerTable
from swarm.peers.reputation import ReputationBook

MAX_PEERS_LISTED = 700  # even their longest heartbeats fit one frame of ``api.MAX_FRAME_BYTES``
MAX_BANNED_LISTED = 100  # so that bans hide no peer: anybody can cause any number of them


def listed_peers(
    host: Host,
    table: PeerTable,
    reputations: ReputationBook,
    book: AddressBook,
    *,
    refused_offsets: Mapping[PeerId, float],
    now_seconds: float,
) -> tuple[api.PeerStatus, ...]:
    """Returns connected, lately banned and other known peers, in this order, the latest heard first.

    At most ``MAX_PEERS_LISTED``, of these at most ``MAX_BANNED_LISTED`` only because they are banned. The offset of a
    peer's clock is that of its last heartbeat; where none was accepted, that of what was refused,
    ``Gossip.refused_offsets``.
    """
    connected = list(host.peers())
    heard = reversed(list(table))
    banned = reputations.banned(now_seconds)[-MAX_BANNED_LISTED:]
    known = list(dict.fromkeys([*connected, *banned, *heard]))[:MAX_PEERS_LISTED]
    statuses = []
    for peer in known:
        notes = table.known(peer)
        present = notes.heartbeat is not None and not notes.has_left
        age_seconds = now_seconds - notes.heartbeat_at_seconds if present else None
        offset_seconds = notes.clock_offset_seconds
        statuses.append(
            api.PeerStatus(
                peer=peer,
                connected=peer in connected,
                addresses=tuple(c.address for c in book.of(peer)),
                round_trip_seconds=host.round_trip_seconds(peer),
                heartbeat=notes.heartbeat,
                heartbeat_age_seconds=age_seconds,
                groups_announced=notes.groups_announced,
                groups_used=notes.groups_used,
                groups_rejected=notes.groups_rejected,
                reputation=reputations.of(peer, now_seconds),
                banned_because=reputations.banned_because(peer, now_seconds),
                clock_offset_seconds=refused_offsets.get(peer) if offset_seconds is None else offset_seconds,
                groups_fetched=notes.groups_fetched,
                relayed=host.is_relayed(peer),
                conduct=dict(notes.conduct),
                exchanges_committed=notes.exchanges_committed,
                exchanges_abandoned=notes.exchanges_abandoned,
                last_exchange=notes.last_exchange,
            )
        )
    return tuple(statuses)
