"""Keeps a port of the router open for this node: carries out what ``port_rules.py`` decides.

An answer of the router proves nothing. A port counts only once peers have dialled this node through it; until then its
address is announced all the same, so that they can try.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import anyio
from anyio.abc import TaskGroup

from protocol.errors import StarlingError, UnreachableError
from swarm.address_groups import is_public
from swarm.peers.port_rules import LEASE_SECONDS, PortState, port_in_words, why_to_ask
from swarm.peers.reachability import Reach
from swarm.router import OpenedPort, Router

log = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 2.0
REASON_CHARACTERS: Final = 300


class PortOpening:
    """``failures`` counts failures by reason. ``on_asked`` is called when it is time for peers to dial this node again:
    the router opened a port, or opened it again in answer to a doubt."""

    def __init__(self, router: Router, failures: Counter[str], *, on_asked: Callable[[], None]) -> None:
        self._router = router
        self._failures = failures
        self._on_asked = on_asked
        self._state = PortState()
        self._started_at_seconds = anyio.current_time()
        self._is_asking = False

    @property
    def opened(self) -> OpenedPort | None:
        return self._state.opened

    def in_words(self) -> str:
        return port_in_words(self._state)

    def tick(self, tasks: TaskGroup, reach: Reach, listening: Mapping[str, int]) -> None:
        """Call about once a second. ``listening`` is what ``port_rules.private_listening`` returns."""
        now_seconds = anyio.current_time()
        if self._is_asking:
            return
        if self._state.opened is not None and now_seconds >= self._state.lease_ends_at():
            self._state = replace(self._state, opened=None)
        because = why_to_ask(now_seconds, self._started_at_seconds, self._state, reach, listening)
        if because is not None:
            self._is_asking = True
            tasks.start_soon(self._ask, because, dict(listening), reach is Reach.NOWHERE)

    async def close(self) -> None:
        """Gives the port back, within ``CLOSE_SECONDS``. A router that does not answer forgets it by itself."""
        opened, self._state = self._state.opened, PortState()
        if opened is not None:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await self._give_back(opened)

    async def _ask(self, because: str, listening: Mapping[str, int], is_doubted: bool) -> None:
        before = self._state.opened
        wanted = before.external_port if before is not None else 0
        try:
            opened = await self._router.open(listening, wanted_port=wanted, lease_seconds=LEASE_SECONDS)
            if not is_public(opened.external_ip):
                await self._give_back(opened)
                raise UnreachableError(
                    f"its own address, {opened.external_ip}, is not a public one, so that another router lies before it"
                )
        except StarlingError as error:
            self._failed(error, listening)
        else:
            self._succeeded(opened, because, is_doubted)
        finally:
            self._is_asking = False

    def _succeeded(self, opened: OpenedPort, because: str, is_doubted: bool) -> None:
        before = self._state.opened
        is_same = before is not None and str(before) == str(opened) and before.external_ip == opened.external_ip
        self._state = PortState(opened, anyio.current_time())
        if opened.router_restarted:
            self._failures["router_restarted"] += 1
        if not is_same:
            log.info("the router opened %s at %s, because %s", opened, opened.external_ip, because)
        if not is_same or is_doubted or opened.router_restarted:
            self._on_asked()

    def _failed(self, error: StarlingError, listening: Mapping[str, int]) -> None:
        why = str(error)[:REASON_CHARACTERS]
        self._failures[error.reason] += 1
        if why != self._state.why:
            log.info("the router opened no port: %s", why)
        self._state = replace(
            self._state,
            failures=self._state.failures + 1,
            failed_at_seconds=anyio.current_time(),
            failed_with=listening,
            why=why,
        )

    async def _give_back(self, opened: OpenedPort) -> None:
        try:
            await self._router.close(opened)
        except StarlingError as error:
            self._failures[error.reason] += 1
