"""Where a host listens, and the addresses at which it can be dialled.

What the library's listener lacks:

- A port that is taken is an error. The library listens with SO_REUSEPORT, with which a second node on the same port
  would silently receive half of the first node's connections.
- An incoming connection releases its slot when it ends. The library holds the slot as long as the host runs, and so
  would accept no more connections after the first three hundred.
- A socket that says nothing is dropped before the library hears of it (``Doorway``). trio starts a task for every
  socket that is accepted, ten times as long as it takes to accept and close one.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import trio
from anyio.abc import TaskGroup
from libp2p.abc import IListener
from libp2p.io.trio import TrioTCPStream
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.errors import TransportError
from swarm.address_groups import is_public
from swarm.host import Address, tcp_address
from swarm.hosts.libp2p.connecting.network import DoorwayNetwork
from swarm.hosts.libp2p.containment import Failures
from swarm.hosts.libp2p.doorway import Doorway
from swarm.hosts.libp2p.relaying.circuit_messages import SocketAddress
from swarm.hosts.libp2p.transport import Meter, MeteredSocket, ip_of, share_port, tcp_port_of
from swarm.hosts.network_interfaces import NetworkInterfaces, dialable

BACKLOG = 65_535  # cut by the system to what it allows
ACCEPTED_AT_ONCE = 64  # before other tasks have their turn
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
NO_ROOM_SECONDS = 0.1  # for descriptors to become free
CLOSE_SECONDS = 0.3  # for the library to clean up after a connection, before its task is cancelled
_EVERY_IP4_INTERFACE = "/ip4/0.0.0.0/"

OnSocket = Callable[[TrioTCPStream], Awaitable[None]]


class Listening:
    """The addresses of one host. Port 0 takes a free port; 0.0.0.0 takes the same port over IPv6 too, if it can."""

    def __init__(self, addresses: Sequence[str], meter: Meter, doorway: Doorway, failures: Failures) -> None:
        self._asked = [Multiaddr(address) for address in addresses]
        self._meter = meter
        self._doorway = doorway
        self._failures = failures
        self._listeners: list[Listener] = []
        self._interfaces = NetworkInterfaces()
        self._also_at: list[Address] = []  # addresses of a router

    async def take(self, network: DoorwayNetwork) -> None:
        """Takes all addresses for ``network``, or none. Raises ``TransportError``, which names the address."""
        for address in self._asked:
            try:
                await self._take_one(address, network)
            except OSError as error:
                for earlier in self._listeners:
                    await earlier.close()
                raise TransportError(
                    f"cannot listen on {address}: {error.strerror or error}. If another node runs here, "
                    f"stop it or listen on another port; port 0 takes a free one"
                ) from error
            if str(address).startswith(_EVERY_IP4_INTERFACE):
                port = tcp_port_of(self._listeners[-1].get_addrs()[0])
                with suppress(OSError):
                    await self._take_one(Multiaddr(f"/ip6/::/tcp/{port}"), network)

    async def _take_one(self, address: Multiaddr, network: DoorwayNetwork) -> None:
        async def on_socket(socket: TrioTCPStream) -> None:
            await network._handle_inbound_connection(socket, self._asked[0])

        listener = Listener(on_socket, self._meter, self._doorway, self._failures)
        await listener.listen(address)
        self._listeners.append(listener)
        network.listeners[str(address)] = listener

    def serve(self, tasks: TaskGroup) -> None:
        tasks.start_soon(self._doorway.silent.run)
        for listener in self._listeners:
            tasks.start_soon(listener.serve)

    def announce_also(self, addresses: Sequence[Address]) -> None:
        self._also_at = list(addresses)

    def advertised(self, _candidates: object = None) -> list[Multiaddr]:
        """Returns where this machine can be dialled; the library calls it with what it would have said itself."""
        return [Multiaddr(tcp_address(ip, port)) for ip, port in dialable(self._sockets(), self._interfaces.ips)]

    def addresses(self, peer_id: str, places: Sequence[Address]) -> list[Address]:
        """Returns the addresses to tell others: of a router, of ``places`` at relays, then of this machine."""
        return [*self._also_at, *(f"{address}/p2p/{peer_id}" for address in [*places, *self.advertised()])]

    def listening_at(self, ip: str) -> SocketAddress | None:
        """Returns the listening address of the same family as ``ip``."""
        of_family = [(host, port) for host, port in self._sockets() if (":" in host) == (":" in ip)]
        return of_family[0] if of_family else None

    def source_of(self, ip: str) -> SocketAddress | None:
        """Beyond our own network we dial from the listening port: routers then show where we could be met."""
        return self.listening_at(ip) if is_public(ip) else None

    def _sockets(self) -> list[SocketAddress]:
        return [(ip_of(a), tcp_port_of(a)) for listener in self._listeners for a in listener.get_addrs()]


class Listener(IListener):
    """Accepts connections on one address. ``listen`` takes the address, ``serve`` accepts until cancelled or closed."""

    def __init__(self, handler: OnSocket, meter: Meter, doorway: Doorway, failures: Failures) -> None:
        self._handler = handler
        self._meter = meter
        self._doorway = doorway
        self._failures = failures
        self._scope = trio.CancelScope()
        self._socket: socket.socket | None = None
        self._addresses: tuple[Multiaddr, ...] = ()

    async def listen(self, maddr: Multiaddr) -> None:
        """Raises ``OSError`` if the address cannot be taken."""
        ip = ip_of(maddr)
        self._socket = taking = socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET)
        try:
            taking.setblocking(False)
            taking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if ":" in ip:
                taking.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            taking.bind((ip, tcp_port_of(maddr)))
            taking.listen(BACKLOG)
        except BaseException:
            taking.close()
            raise
        share_port(taking)
        ip, port = taking.getsockname()[:2]
        self._addresses = (Multiaddr(f"/ip{ipaddress.ip_address(ip).version}/{ip}/tcp/{port}"),)

    async def serve(self) -> None:
        assert self._socket is not None
        with self._scope, self._socket as taken:
            async with trio.open_nursery() as connections:

                def on_spoken(spoken: socket.socket) -> None:
                    connections.start_soon(self._on_socket, trio.SocketStream(trio.socket.from_stdlib_socket(spoken)))

                await self._accept(taken, on_spoken)

    async def _accept(self, taken: socket.socket, on_spoken: Callable[[socket.socket], None]) -> None:
        while True:
            await trio.lowlevel.wait_readable(taken.fileno())
            for _ in range(ACCEPTED_AT_ONCE):
                try:
                    accepted, remote = taken.accept()
                except BlockingIOError:
                    break
                except OSError as error:  # of that connection, or no room for any
                    if error.errno in NO_ROOM:
                        await trio.sleep(NO_ROOM_SECONDS)
                    break
                accepted.setblocking(False)
                self._doorway.silent.enter(accepted, remote[0], on_spoken)

    async def _on_socket(self, stream: trio.SocketStream) -> None:
        metered = MeteredSocket(stream, self._meter)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._handle, metered, nursery.cancel_scope)
            await metered.closed.wait()
            await trio.sleep(CLOSE_SECONDS)
            nursery.cancel_scope.cancel()

    async def _handle(self, socket: MeteredSocket, accepted: trio.CancelScope) -> None:
        try:
            with self._doorway.handshaking.place_for(
                socket
            ):  # given back in ``DoorwayNetwork``, once the handshake is over
                await self._handler(socket)
        except Exception as error:  # noqa: BLE001  the library's handshake with a stranger
            self._failures.note("incoming connection", error)
        accepted.cancel()
        await socket.close()

    def get_addrs(self) -> tuple[Multiaddr, ...]:
        return self._addresses

    async def close(self) -> None:
        self._scope.cancel()
        if self._socket is not None:
            self._socket.close()
