"""Keeps a node reachable: carries out what ``reachability.py`` decides.

A node that peers can dial, or that does not know yet, relays for members of its swarm. One that they cannot dial takes
places at up to two peers that it dialled itself, renews them at half time, and looks for others when a relay leaves.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

import anyio
from anyio.abc import TaskGroup

from protocol.errors import StarlingError
from swarm import api
from swarm.host import Host, PeerId
from swarm.peers.dial_back import DialBack, listening_ports
from swarm.peers.discovery import CIRCUIT
from swarm.peers.reachability import DialReport, Reachability, in_words, judged, relays_to_ask, whom_to_ask

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 2.0
RESERVE_SECONDS: Final = 10.0  # for an answer of a relay


class Reaching:
    """Run ``run()`` beside the host. ``members`` are the connected peers of our swarm, ``is_dialled`` says whether we
    dialled one; ``on_place`` is called when this node has a new address through a relay."""

    def __init__(
        self,
        host: Host,
        *,
        members: Callable[[], Collection[PeerId]],
        is_dialled: Callable[[PeerId], bool],
        on_place: Callable[[], None] = lambda: None,
        relays: bool = True,
    ) -> None:
        """``relays``: whether this node relays for others while it can be dialled."""
        self.failures: Counter[str] = Counter()
        self._host = host
        self._members = members
        self._is_dialled = is_dialled
        self._on_place = on_place
        self._relays = relays
        self._dial_back = DialBack(host)
        self._reports: dict[PeerId, DialReport] = {}
        self._renew_at: dict[PeerId, float] = {}  # by relay
        self._refused: dict[PeerId, float] = {}
        self._asking: set[PeerId] = set()
        self._also_ip = ""
        self._ports: tuple[int, ...] = ()
        self._said = ""

    async def run(self) -> None:
        """Runs until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._tick(tasks)
                await anyio.sleep(TICK_SECONDS)

    def reachability(self) -> Reachability:
        own_ips = {a.split("/")[2] for a in self._host.addresses() if CIRCUIT not in a} - {self._also_ip}
        return judged(anyio.current_time(), self._reports.values(), own_ips)

    def is_relay(self, peer: PeerId) -> bool:
        """Whether this node is reached through ``peer``."""
        return peer in self._renew_at

    def status(self) -> api.ReachStatus:
        verdict, relaying = self.reachability(), self._host.relaying()
        port = (*listening_ports(self._host), 0)[0]
        return api.ReachStatus(
            reach=verdict.reach.value,
            in_words=in_words(verdict, len(relaying.relays), port),
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
        serves = self._relays and not verdict.needs_relay
        self._host.serve_as_relay(self._admits if serves else None)
        self._say(verdict)
        self._announce(verdict)
        if verdict.needs_relay:
            dialled = [p for p in direct if self._is_dialled(p) and p not in self._asking]
            for relay in relays_to_ask(now_seconds, dialled, self._renew_at, self._refused):
                if relay not in self._asking:
                    self._asking.add(relay)
                    tasks.start_soon(self._reserve, relay)

    def _announce(self, verdict: Reachability) -> None:
        """Announces the router's address for as long as peers reach this node there."""
        ip, port = verdict.also_at or ("", 0)
        if ip != self._also_ip:
            self._also_ip = ip
            kind = "ip6" if ":" in ip else "ip4"
            self._host.announce_also([f"/{kind}/{ip}/tcp/{port}/p2p/{self._host.peer_id}"] if ip else [])
            self._on_place()

    def _forget(self, connected: set[PeerId]) -> None:
        """Forgets relays that are gone, and all reports once this node listens elsewhere."""
        self._renew_at = {p: at for p, at in self._renew_at.items() if p in connected}
        self._refused = {p: at for p, at in self._refused.items() if p in connected}
        ports = listening_ports(self._host)
        if ports != self._ports:
            self._ports, self._reports = ports, {}
        while len(self._reports) > 64:
            oldest = min(self._reports.values(), key=lambda report: report.at_seconds)
            del self._reports[oldest.peer]

    def _admits(self, peer: PeerId) -> bool:
        return peer in self._members()

    async def _ask(self, peer: PeerId) -> None:
        try:
            self._reports[peer] = await self._dial_back.ask(peer)
        except StarlingError as error:
            self.failures[error.reason] += 1
            self._reports[peer] = DialReport(peer, anyio.current_time())
        finally:
            self._asking.discard(peer)

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
