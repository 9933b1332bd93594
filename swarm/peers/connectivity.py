"""A node must not be alone without saying so."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import anyio

from swarm.host import Host

log = logging.getLogger(__name__)

CONNECTIVITY_CHECK_SECONDS: Final = 2.0


async def watch_connectivity(
    host: Host, alone_because: Callable[[], str | None], emit: Callable[[str, Mapping[str, object]], None]
) -> None:
    """Reports every change between connected and alone, until it is cancelled. ``emit`` takes an event and its
    fields."""
    was_alone: bool | None = None
    while True:
        await anyio.sleep(CONNECTIVITY_CHECK_SECONDS)
        because = alone_because()
        if (because is not None) == was_alone:
            continue
        was_alone = because is not None
        if because is not None:
            log.warning("alone: %s", because)
            emit("alone", {"because": because})
        else:
            log.info("connected to %d peers", len(host.peers()))
            emit("connected", {"peers": list(host.peers())})
