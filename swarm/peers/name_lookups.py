"""Looks up the names among the configured peers, again and again: what one leads to changes, as a home's IP does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import anyio

from protocol.errors import StarlingError
from swarm.host import Address, Host

LOOKUP_SECONDS = 10.0
LOOKUP_EVERY_SECONDS = 300.0
FIRST_BACKOFF_SECONDS = 5.0  # doubles up to the above, while a name fails or none of its peers is connected
_NAMES = ("/dns/", "/dns4/", "/dns6/", "/dnsaddr/")


def is_name(address: str) -> bool:
    """Whether an address names a machine by /dns, /dns4, /dns6 or /dnsaddr."""
    return address.startswith(_NAMES)


class NameLookups:
    """``on_addresses`` receives what a name leads to, each time that it was looked up; ``on_failure`` each failure.

    ``failures`` has the latest failure of each name that has led to nothing since.
    """

    def __init__(
        self,
        host: Host,
        names: Iterable[Address],
        *,
        on_addresses: Callable[[Address, Sequence[Address]], None],
        on_failure: Callable[[StarlingError], None],
    ) -> None:
        self.names = tuple(names)
        self.failures: dict[Address, str] = {}
        self._host = host
        self._on_addresses = on_addresses
        self._on_failure = on_failure

    async def run(self) -> None:
        """Runs until cancelled."""
        async with anyio.create_task_group() as tasks:
            for name in self.names:
                tasks.start_soon(partial(self._look_up_regularly, name))

    async def _look_up_regularly(self, name: Address) -> None:
        backoff_seconds = FIRST_BACKOFF_SECONDS
        while True:
            peers: set[str] = set()
            try:
                addresses = await self._host.resolve(name, deadline_seconds=LOOKUP_SECONDS)
            except StarlingError as error:
                self.failures[name] = str(error)
                self._on_failure(error)
            else:
                self.failures.pop(name, None)
                self._on_addresses(name, addresses)
                peers = {address.rpartition("/p2p/")[2] for address in addresses}
            await anyio.sleep(backoff_seconds)
            while peers & set(self._host.peers()):
                backoff_seconds = FIRST_BACKOFF_SECONDS
                await anyio.sleep(LOOKUP_EVERY_SECONDS)
            backoff_seconds = min(2 * backoff_seconds, LOOKUP_EVERY_SECONDS)
