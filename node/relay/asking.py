"""What other verbs ask of a relay that runs in a data directory: its status, and to end."""

from __future__ import annotations

from collections.abc import Iterator

from node.home import Home, holder_of
from node.printable import one_line, printable
from node.quantities import counted, duration, size
from protocol.errors import StarlingError
from swarm.api import SwarmStatus
from swarm.client import SwarmClient

TIMEOUT_SECONDS = 4.0


def relay_status(home: Home) -> SwarmStatus | None:
    """Returns the status of the relay that runs in ``home``; None where none does, or a node that trains."""
    if not home.swarm_socket.exists() or holder_of(home) is None:
        return None
    try:
        with SwarmClient(home.swarm_socket, timeout_seconds=TIMEOUT_SECONDS) as client:
            status = client.status()
    except StarlingError:
        return None
    return None if status.has_learner else status


def ask_relay_to_end(home: Home) -> bool:
    """Returns whether a relay runs in ``home`` and was asked to say goodbye and end."""
    if relay_status(home) is None:
        return False
    with SwarmClient(home.swarm_socket, timeout_seconds=TIMEOUT_SECONDS) as client:
        client.leave("stopped by starling down")
    return True


def relay_lines(status: SwarmStatus) -> Iterator[str]:
    """Yields what ``starling status`` prints of a relay."""
    reach = status.reach
    yield f"relay     {printable(status.peer)}, for {duration(status.uptime_seconds)}; it trains nothing"
    yield (
        f"swarm     {printable(status.swarm)} ({status.swarm_id}), {counted(status.connected_peers, 'peer')} "
        f"connected, {size(status.sent_bytes)} sent, {size(status.received_bytes)} received"
    )
    if status.alone_because is not None:
        yield f"alone     {one_line(status.alone_because, 600)}"
    yield f"reach     {one_line(reach.in_words, 600)}"
    serves = "" if reach.serves_as_relay else "; it does not relay now, because peers cannot dial it"
    yield (
        f"relays    for {counted(reach.reservations, 'peer')}, {counted(reach.circuits, 'connection')} now, "
        f"{size(reach.relayed_bytes)} passed on{serves}"
    )
    for address in status.addresses:
        yield f"address   {printable(address)}"
