"""Provider records in the DHT, which the daemon keeps and finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from protocol.errors import ProtocolError, UnreachableError
from swarm.deadlines import deadline
from swarm.host import Address, PeerId
from swarm.hosts.go import daemon_messages as messages
from swarm.hosts.go.control import one_line, rubbish, whole_seconds
from swarm.hosts.go.daemon_addresses import dialable_addresses
from swarm.hosts.go.daemon_process import Daemon

CID_PREFIX = bytes.fromhex("01 55 12 20")  # CID version 1, raw, a sha2-256 multihash of 32 bytes
NOBODY_TO_ASK = "failed to find any peer in table"  # the daemon's DHT, when it knows no other


class DaemonDht:
    """The DHT of the host ``ourselves``. ``daemon`` returns the daemon while it runs."""

    def __init__(self, ourselves: PeerId, daemon: Callable[[], Daemon]) -> None:
        self._ourselves = ourselves
        self._daemon = daemon

    async def provide(self, key: bytes, *, deadline_seconds: float) -> None:
        request = messages.provide(CID_PREFIX + key, timeout_seconds=whole_seconds(deadline_seconds))
        with deadline(deadline_seconds, f"providing {key.hex()[:16]}"):
            answer = await self._daemon().control.request(request)
        if answer.error is not None and NOBODY_TO_ASK not in answer.error:
            raise UnreachableError(f"providing {key.hex()[:16]}: {one_line(answer.error)}")

    async def find_providers(self, key: bytes, *, limit: int, deadline_seconds: float) -> Sequence[Address]:
        # One more than asked for, since this host may be one of them.
        timeout_seconds = max(1, math.floor(deadline_seconds) - 1)
        request = messages.find_providers(CID_PREFIX + key, count=limit + 1, timeout_seconds=timeout_seconds)
        found: dict[PeerId, list[Address]] = {}
        with deadline(deadline_seconds, f"looking for providers of {key.hex()[:16]}"):
            async with self._daemon().control.conversation(request) as (_, answer, frames):
                while answer.error is None and len(found) < limit:
                    try:
                        provider = messages.read_provider(await frames.next())
                    except ProtocolError as error:
                        raise rubbish(error) from error
                    if provider.is_end:
                        break
                    if provider.peer is not None and (addresses := dialable_addresses(provider.peer)):
                        found[addresses[0].rpartition("/")[2]] = addresses
        found.pop(self._ourselves, None)
        return [address for addresses in found.values() for address in addresses]
