"""Connects to peers that a caller wants, to fetch from them, at the addresses that are known or said to be theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from protocol.errors import TransportError, UnreachableError
from swarm.host import Host, PeerId
from swarm.peers.claimed_addresses import ClaimDials
from swarm.peers.discovery import AddressBook
from swarm.peers.keeping import ConnectionLog
from swarm.peers.swarm_members import SwarmMembers


class RequestedDials:
    """``claimed`` returns the addresses that a peer claims in its announcements; ``on_address`` is called with
    (address, who told it), ``on_failure`` with (peer, address, error)."""

    def __init__(
        self,
        host: Host,
        book: AddressBook,
        members: SwarmMembers,
        log: ConnectionLog,
        *,
        claimed: Callable[[PeerId], Sequence[str]],
        on_address: Callable[[str, PeerId], None],
        on_failure: Callable[[PeerId, str, TransportError], None],
    ) -> None:
        self._host, self._book, self._members, self._log = host, book, members, log
        self._claimed, self._on_address, self._on_failure = claimed, on_address, on_failure
        self._claim_dials = ClaimDials()

    async def reach(self, peer: PeerId, deadline_seconds: float) -> None:
        """Connects to ``peer`` unless it is connected. Raises ``TransportError``."""
        if peer in self._host.peers():
            return
        if self._members.is_refused(peer):
            raise UnreachableError(f"{peer} is banned or has left")
        failure: TransportError = UnreachableError(f"no address of {peer} is known")
        with anyio.move_on_after(deadline_seconds):
            for address in self._claimed(peer):
                self._on_address(address, peer)
            if not self._book.of(peer):
                await self._members.seek(peer)
            for candidate in self._book.of(peer):
                try:
                    async with self._claim_dials.place(candidate):
                        await self._host.connect(candidate.address, deadline_seconds=deadline_seconds)
                    self._log.note_dialled(peer)
                    return
                except TransportError as error:
                    failure = error
                    self._on_failure(peer, candidate.address, error)
        raise failure
