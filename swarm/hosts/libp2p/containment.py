"""Contains failures inside py-libp2p.

The library runs its work in service managers that cancel the whole service when one task raises; one malformed frame of
a stranger is enough for that. Here a failure of a library task is counted, logged at debug level, and ends that task
alone; a task that must continue (a heartbeat) is started again. Exceptions of our own code do not get here: they are
caught where the library calls us (see ``Libp2pHost``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import trio
from libp2p.exceptions import BaseLibp2pError
from libp2p.tools.anyio_service import Service
from libp2p.tools.anyio_service.trio_manager import TrioManager
from libp2p.tools.anyio_service.utils import get_task_name

log = logging.getLogger(__name__)

# What library calls raise when a peer or the network fails. EOFError and OSError come from the transport.
PEER_FAILURES = (BaseLibp2pError, OSError, EOFError, trio.BrokenResourceError, trio.ClosedResourceError)
RESTART_SECONDS = 1.0


def innermost_cause(error: BaseException) -> BaseException:
    """Returns the first cause of an error, which the library wraps in general messages."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


class Failures:
    """Counts the exceptions of library tasks by the place where they were raised, and logs each at debug level.

    A place is a name in our code or of a library's task. No name is a stranger's, so ``counts`` has few entries.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self, place: str, error: BaseException) -> None:
        self.counts[place] += 1
        log.debug("library task %s failed: %r", place, error, exc_info=error)


class ContainedManager(TrioManager):
    """A service manager in which a failure ends one task only."""

    def __init__(self, service: Service, failures: Failures) -> None:
        super().__init__(service)
        self._failures = failures

    def run_task(
        self,
        async_fn: Callable[..., Awaitable[Any]],
        *args: Any,
        daemon: bool = False,
        name: str | None = None,
        _internal: bool = False,
    ) -> None:
        task_name = get_task_name(async_fn, name)

        async def contained() -> None:
            while True:
                try:
                    await async_fn(*args)
                    return
                except Exception as error:  # noqa: BLE001  anything that the library raises in its own task
                    self._failures.note(task_name, error)
                if not daemon:
                    return
                await trio.sleep(RESTART_SECONDS)

        if _internal:  # the service itself: nothing works without it, so its failure is raised to the caller
            super().run_task(async_fn, *args, daemon=daemon, name=task_name, _internal=True)
        else:
            super().run_task(contained, daemon=daemon, name=task_name)


@asynccontextmanager
async def run_contained(service: Service, failures: Failures) -> AsyncIterator[None]:
    """Runs a library service from entry to exit."""
    async with trio.open_nursery() as nursery:
        manager = ContainedManager(service, failures)
        service._manager = manager
        nursery.start_soon(manager.run)
        await manager.wait_started()
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await manager.stop()


class _Demote(logging.Handler):
    """Logs the library's records at debug level: most of its errors are peers that left."""

    def emit(self, record: logging.LogRecord) -> None:
        log.debug("%s: %s", record.name, record.getMessage())


def quieten_library_logs() -> None:
    """Logs the library's records at debug level only. Without a handler Python would print them on stderr."""
    for name in ("libp2p", "multiaddr"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [_Demote()]
        logger.propagate = False
        logger.setLevel(logging.WARNING)
