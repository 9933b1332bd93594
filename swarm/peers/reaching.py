"""Keeps a node reachable: carries out what ``reachability.py`` decides.

A node that peers can dial, or that does not know yet, relays for members of its swarm. One that they cannot dial takes
places at up to two peers that it dialled itself, renews them at half time, and looks for others when a relay leaves.
A door relays whatever is reported: who asks it for a place has dialled it, and a few peers that lie, or that were slow
to dial, would otherwise end the places of all.
Where its router opens a port for it (``port_opening.py``), peers are asked to dial that.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from enum import Enum, auto
from typing import Final

import anyio
from anyio.abc import TaskGroup

from protocol.errors import StarlingError
from swarm import api
from swarm.host import Address, Host, PeerId, tcp_address
from swarm.peers.dial_back import DialBack, ports_of
from swarm.peers.discovery import CIRCUIT
from swarm.peers.port_opening import PortOpening
from swarm.peers.port_rules import private_listening
from swarm.peers.reachability import (
    REPORT_SECONDS,
    DialReport,
    Reach,
    Reachability,
    in_words,
    judged,
    relays_to_ask,
    whom_to_ask,
)
from swarm.router import Router

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 2.0
RESERVE_SECONDS: Final = 10.0  # for an answer of a relay


class Relays(Enum):
    """When a participant relays for others."""

    NEVER = auto()
    WHILE_DIALLED = auto()  # as far as it knows
    ALWAYS = auto()  # and is reached through no other relay


class Reaching:
    """Run ``run()`` beside the host. ``members`` are the connected peers of our swarm; ``on_place`` is called when this
    node has a new address through a relay."""

    def __init__(
        self,
        host: Host,
        *,
        members: Callable[[], Collection[PeerId]],
        on_place: Callable[[], None] = lambda: None,
        relays: Relays = Relays.WHILE_DIALLED,
        router: Router | None = None,
    ) -> None:
        """``router`` may open a port."""
        self.failures: Counter[str] = Counter()
        self._host = host
        self._members = members
        self._on_place = on_place
        self._relays = relays
        self._dial_back = DialBack(host)
        self._reports: dict[PeerId, DialReport] = {}
        self._renew_at: dict[PeerId, float] = {}  # by relay
        self._refused: dict[PeerId, float] = {}
        self._asking: set[PeerId] = set()
        self._also: list[tuple[str, int]] = []  # the router's addresses that are announced
        self._ports: tuple[int, ...] = ()
        self._said = ""
        self._opening = PortOpening(router, self.failures, on_asked=self._ask_soon) if router is not None else None

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    self._tick(tasks)
                    await anyio.sleep(TICK_SECONDS)
        finally:
            if self._opening is not None:
                await self._opening.close()

    def reachability(self) -> Reachability:
        own_ips = {a.split("/")[2] for a in self._own_addresses()}
        return judged(anyio.current_time(), self._reports.values(), own_ips)

    def _own_addresses(self) -> list[Address]:
        """Returns the addresses at which this machine listens itself."""
        announced = {self._announced(*where) for where in self._also}
        return [a for a in self._host.addresses() if CIRCUIT not in a and a not in announced]

    def _announced(self, ip: str, port: int) -> Address:
        return f"{tcp_address(ip, port)}/p2p/{self._host.peer_id}"

    def is_relay(self, peer: PeerId) -> bool:
        """Whether this node is reached through ``peer``."""
        return peer in self._renew_at

    def status(self) -> api.ReachStatus:
        verdict, relaying = self.reachability(), self._host.relaying()
        port = (*ports_of(self._own_addresses()), 0)[0]
        router = self._opening.in_words() if self._opening is not None else ""
        return api.ReachStatus(
            reach=verdict.reach.value,
            in_words=in_words(verdict, len(relaying.relays), port, router, takes_places=relaying.takes_places),
            is_out_of_reach=verdict.is_out_of_reach or (verdict.reach is Reach.UNKNOWN and bool(relaying.relays)),
            relays=tuple(relaying.relays),
            relayed_peers=tuple(p for p in self._host.peers() if self._host.is_relayed(p)),
            serves_as_relay=relaying.serves,
            reservations=relaying.reservations,
            circuits=relaying.circuits,
            relayed_bytes=relaying.relayed_bytes,
        )

    def _tick(self, tasks: TaskGroup) -> None:
        now_seconds = anyio.current_time()
        direct = [p for p in self._members() if not self._host.is_relayed(p)]
        connected = set(self._host.peers())
        self._forget(connected)
        for peer in whom_to_ask(now_seconds, [p for p in direct if p not in self._asking], self._reports):
            self._asking.add(peer)
            tasks.start_soon(self._ask, peer)
        verdict = self.reachability()
        is_door = self._relays is Relays.ALWAYS
        serves = is_door or (self._relays is Relays.WHILE_DIALLED and not verdict.needs_relay)
        self._host.serve_as_relay(self._admits if serves else None)
        self._say(verdict)
        if self._opening is not None:
            own = [(a.split("/")[2], int(a.split("/")[4])) for a in self._own_addresses() if "/tcp/" in a]
            self._opening.tick(tasks, verdict.reach, private_listening(own))
        self._announce(verdict)
        if (verdict.needs_relay or verdict.nobody_tried) and not is_door:
            dialled = set(self._host.relaying().dialled) - self._asking
            free = [peer for peer in direct if peer in dialled]
            for relay in relays_to_ask(now_seconds, free, self._renew_at, self._refused):
                if relay not in self._asking:
                    self._asking.add(relay)
                    tasks.start_soon(self._reserve, relay)

    def _announce(self, verdict: Reachability) -> None:
        """Announces the router's address for as long as peers reach this node there, and a port that the router opened
        unless peers that tried do not."""
        also = [verdict.also_at] if verdict.also_at is not None else []
        opened = self._opening.opened if self._opening is not None else None
        if opened is not None and verdict.reach is not Reach.NOWHERE:
            also.append((opened.external_ip, opened.external_port))
        also = list(dict.fromkeys(also))
        if also != self._also:
            self._also = also
            self._host.announce_also([self._announced(*where) for where in also])
            self._on_place()

    def _forget(self, connected: set[PeerId]) -> None:
        """Forgets relays at which the place was lost, and all reports once this node listens elsewhere."""
        held = set(self._host.relaying().relays)
        self._renew_at = {p: at for p, at in self._renew_at.items() if p in held}
        self._refused = {p: at for p, at in self._refused.items() if p in connected}
        ports = ports_of(self._own_addresses())
        if ports != self._ports:
            self._ports, self._reports = ports, {}
        while len(self._reports) > 64:
            oldest = min(self._reports.values(), key=lambda report: report.at_seconds)
            del self._reports[oldest.peer]

    def _admits(self, peer: PeerId) -> bool:
        return peer in self._members()

    async def _ask(self, peer: PeerId) -> None:
        try:
            self._reports[peer] = await self._dial_back.ask(peer, self._dialled_ports())
        except StarlingError as error:
            self.failures[error.reason] += 1
            self._reports[peer] = DialReport(peer, anyio.current_time())
        finally:
            self._asking.discard(peer)

    def _dialled_ports(self) -> tuple[int, ...]:
        """Returns the ports at which peers should dial: that of the router first, then this node's own."""
        opened = self._opening.opened if self._opening is not None else None
        first = (opened.external_port,) if opened is not None else ()
        return (*first, *ports_of(self._own_addresses()))

    def _ask_soon(self) -> None:
        """Has peers asked again; their reports count until they answer."""
        old_seconds = anyio.current_time() - REPORT_SECONDS
        for peer, report in self._reports.items():
            self._reports[peer] = replace(report, at_seconds=min(report.at_seconds, old_seconds))

    async def _reserve(self, relay: PeerId) -> None:
        is_new = relay not in self._renew_at
        try:
            seconds = await self._host.reserve(relay, deadline_seconds=RESERVE_SECONDS)
        except StarlingError as error:
            self.failures[error.reason] += 1
            self._refused[relay] = anyio.current_time()
            self._renew_at.pop(relay, None)
        else:
            self._renew_at[relay] = anyio.current_time() + seconds / 2
            if is_new:
                self._on_place()
        finally:
            self._asking.discard(relay)

    def _say(self, verdict: Reachability) -> None:
        if verdict.reach.value != self._said:
            self._said = verdict.reach.value
            log.info("can be dialled from: %s (%s)", self._said, verdict.because)
