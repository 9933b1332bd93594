"""The peers connected to the daemon, and where it can be dialled: the daemon is asked again and again."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import anyio

from protocol import base58
from protocol.errors import MalformedError
from protocol.identity import PEER_ID_BYTES
from swarm.host import Address, PeerId
from swarm.hosts.go import daemon_messages as messages
from swarm.hosts.go.control import rubbish
from swarm.hosts.go.daemon_addresses import dialable_addresses, ip_of
from swarm.hosts.go.daemon_process import Daemon

LOOK_SECONDS = 0.25  # between looks at who is connected
ADDRESSES_SECONDS = 10.0  # between looks at our own addresses


class DaemonView:
    """``daemon`` returns the daemon while it runs. A look raises ``HostEndedError`` if the daemon does not answer."""

    def __init__(self, daemon: Callable[[], Daemon]) -> None:
        self.connected: dict[PeerId, str] = {}  # peer → its IP address, empty if it is relayed; always the same dict
        self.addresses: list[Address] = []  # at which the daemon can be dialled
        self._daemon = daemon
        self._texts: dict[bytes, PeerId] = {}  # of connected peers
        self._since_seconds: dict[PeerId, float] = {}  # of connected peers: when they were first seen
        self._looks = self._look_taken = 0  # at who is connected: begun, and the number of the one that holds

    async def run(self, after_look: Callable[[], Awaitable[None]]) -> None:
        """Looks for ever; awaits ``after_look`` after each look at who is connected."""
        addresses_at_seconds = anyio.current_time()
        while True:
            await anyio.sleep(LOOK_SECONDS)
            await self.look_at_peers()
            await after_look()
            if anyio.current_time() - addresses_at_seconds >= ADDRESSES_SECONDS:
                addresses_at_seconds = anyio.current_time()
                await self.look_at_addresses()

    async def look_at_peers(self) -> None:
        self._looks += 1
        number = self._looks
        answer = await self._daemon().control.request(messages.list_peers())
        if number < self._look_taken:
            return  # one that began later has answered already
        self._look_taken = number
        texts: dict[bytes, PeerId] = {}
        connected: dict[PeerId, str] = {}
        for peer in answer.peers:
            text = self._texts.get(peer.id) or base58.to_text(peer.id[:PEER_ID_BYTES])
            texts[peer.id] = text
            connected[text] = connected.get(text) or ip_of(peer.addresses[0] if peer.addresses else b"")
        self._texts = texts
        now_seconds = anyio.current_time()
        self._since_seconds = {peer: self._since_seconds.get(peer, now_seconds) for peer in connected}
        self.connected.clear()
        self.connected.update(connected)

    async def look_at_addresses(self) -> None:
        answer = await self._daemon().control.request(messages.identify())
        if answer.identity is None:
            raise rubbish(MalformedError("an answer without our addresses"))
        self.addresses = dialable_addresses(answer.identity)

    def newest_at_seconds(self) -> float:
        """Returns when the newest of the connected peers was first seen."""
        return max(self._since_seconds.values(), default=-math.inf)

    def relays(self) -> tuple[PeerId, ...]:
        """Returns the relays at which the daemon has taken places, which it does by itself."""
        places = [address for address in self.addresses if "/p2p-circuit" in address]
        return tuple({place.partition("/p2p-circuit")[0].rpartition("/")[2]: None for place in places})
