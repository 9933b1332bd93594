"""Announces this node in the DHT and looks there for others, as long as a peer is connected to ask."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from protocol.errors import StarlingError
from swarm.host import Address, Host

DHT_FIRST_SECONDS = 3.0  # after the first connection; peer exchange, where it suffices, is quicker
DHT_DEADLINE_SECONDS = 20.0
FIND_EVERY_SECONDS = 300.0
FIND_WHEN_SHORT_SECONDS = 60.0
PROVIDE_EVERY_SECONDS = 600.0
PROVIDERS_WANTED = 32
CONNECTED_CHECK_SECONDS = 0.5


class DhtLookups:
    """``on_address`` receives every address found, ``on_failure`` every look-up or announcement that failed."""

    def __init__(
        self,
        host: Host,
        key: bytes,
        *,
        on_address: Callable[[Address], None],
        is_short: Callable[[], bool],
        on_failure: Callable[[StarlingError], None],
    ) -> None:
        """``is_short`` says whether peers are wanted, so that it looks more often."""
        self._host = host
        self._key = key
        self._on_address = on_address
        self._is_short = is_short
        self._on_failure = on_failure

    async def run(self) -> None:
        """Runs until cancelled."""
        provide_at_seconds = 0.0
        while True:
            while not self._host.peers():  # noqa: ASYNC110  the host has no event for it
                await anyio.sleep(CONNECTED_CHECK_SECONDS)
            await anyio.sleep(DHT_FIRST_SECONDS)
            try:
                if anyio.current_time() >= provide_at_seconds:
                    await self._host.provide(self._key, deadline_seconds=DHT_DEADLINE_SECONDS)
                    provide_at_seconds = anyio.current_time() + PROVIDE_EVERY_SECONDS
                for address in await self._host.find_providers(
                    self._key, limit=PROVIDERS_WANTED, deadline_seconds=DHT_DEADLINE_SECONDS
                ):
                    self._on_address(address)
            except StarlingError as error:
                self._on_failure(error)
            await anyio.sleep(FIND_WHEN_SHORT_SECONDS if self._is_short() else FIND_EVERY_SECONDS)
