"""Sockets that never finish a handshake, against one listening host, while honest peers join.

An attacker without any key keeps ``--sockets`` connections to a host open, and opens a new one for each that the host
closes, at most ``--rate`` a second. They are *silent*, or *stalling*: they send the first bytes that a peer of an open
swarm sends, and then nothing. Everything comes from 127.0.0.1, so that the host cannot tell friend from foe by address;
with ``--elsewhere`` the attacker is at 127.0.1.1, in another network.
Meanwhile ``--joins`` honest peers, each with a key of its own, connect and have a message echoed.

    python -m scripts.attacks.sockets [--private] [--elsewhere] [--kind silent|stalling] [--sockets 1500] [--json]
    python -m scripts.attacks.sockets --rate 675    # 25,000 sockets in 37 s

The host is a process of its own: its CPU seconds and its memory are its own, and do not depend on a busy machine. So is
each honest peer, which otherwise waits for its turn among the attacker's tasks. Raise the limit of open files
(``ulimit -n``) above the number of sockets.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from contextlib import suppress

import anyio
import trio

from protocol.errors import StarlingError
from protocol.identity import NodeKey
from scripts.bench.common.processes import child, line_of
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.host import HandshakeReply, Stream
from swarm.hosts.libp2p.libp2p_host import Libp2pHost

ECHO = "/attack/echo/1"
JOIN_SECONDS = 60.0
ELSEWHERE = "127.0.1.1"
RETRY_SECONDS = 0.5
FIRST_BYTES = {"silent": b"", "stalling": b"\x13/multistream/1.0.0\n\x07/noise\n"}


class Friends:
    """A handshake that admits every peer that holds the key of the private cluster."""

    def keys(self) -> tuple[bytes, ...]:
        return (bytes(range(32)),)

    def greet(self, peer: str) -> bytes:
        return b"greeting"

    def answer(self, peer: str, greeting: bytes) -> HandshakeReply:
        return HandshakeReply(b"answer")

    def conclude(self, peer: str, answer: bytes) -> HandshakeReply:
        return HandshakeReply(b"conclusion")

    def confirm(self, peer: str, conclusion: bytes) -> None:
        return None

    def refusal(self, peer: str) -> None:
        return None


def host(*, private: bool) -> Libp2pHost:
    return Libp2pHost(NodeKey.generate(), ["/ip4/127.0.0.1/tcp/0"], handshake=Friends() if private else None)


async def echo(stream: Stream) -> None:
    await stream.send(await stream.receive(100))


async def listen(private: bool) -> None:
    """The attacked process: prints its address, and its use of CPU and memory once its standard input ends."""
    victim = host(private=private)
    victim.handle(ECHO, echo)
    async with victim.run():
        before_seconds = time.process_time()
        print(victim.addresses()[0], flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
        used = {"cpu": time.process_time() - before_seconds, "kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
        print(json.dumps(used), flush=True)


class Attacker:
    def __init__(self, port: int, kind: str, rate: float, source: str | None) -> None:
        self.opened = 0
        self.open = 0
        self._port = port
        self._greeting = FIRST_BYTES[kind]
        self._rate = rate
        self._source = source
        self._next_seconds = trio.current_time()

    async def hold(self) -> None:
        while True:
            self._next_seconds = max(self._next_seconds + 1 / self._rate, trio.current_time())
            await trio.sleep_until(self._next_seconds)
            with suppress(OSError, trio.BrokenResourceError):
                async with await trio.open_tcp_stream("127.0.0.1", self._port, local_address=self._source) as socket:
                    self.opened += 1
                    self.open += 1
                    try:
                        if self._greeting:
                            await socket.send_all(self._greeting)
                        while await socket.receive_some():
                            pass
                    finally:
                        self.open -= 1


async def join(address: str, private: bool) -> tuple[float | None, int]:
    """Returns the seconds until a message came back, or None if the peer, trying again and again, could not join; and
    the number of its tries."""
    tries = 0
    guest = host(private=private)
    async with guest.run():
        began_seconds = trio.current_time()
        with trio.move_on_after(JOIN_SECONDS):
            while True:
                tries += 1
                with suppress(StarlingError):
                    peer = await guest.connect(address, deadline_seconds=JOIN_SECONDS)
                    stream = await guest.open_stream(peer, ECHO, deadline_seconds=JOIN_SECONDS)
                    await stream.send(b"here")
                    if await stream.receive(100) == b"here":
                        return trio.current_time() - began_seconds, tries
                await trio.sleep(RETRY_SECONDS)
    return None, tries


def joined_in_a_process(address: str, private: bool) -> tuple[float | None, int]:
    with child("scripts.attacks.sockets", "--guest", address, *(["--private"] if private else [])) as guest:
        seconds, tries = json.loads(line_of(guest))
    return seconds, tries


async def attack(address: str, arguments: argparse.Namespace) -> tuple[list[tuple[float | None, int]], Attacker]:
    attacker = Attacker(
        int(address.split("/")[4]), arguments.kind, arguments.rate, ELSEWHERE if arguments.elsewhere else None
    )
    joined: list[tuple[float | None, int]] = []
    async with trio.open_nursery() as tasks:
        for _ in range(arguments.sockets):
            tasks.start_soon(attacker.hold)
        with trio.move_on_after(30):
            while attacker.opened < arguments.sockets:  # noqa: ASYNC110
                await trio.sleep(0.05)
        for _ in range(arguments.joins):
            joined.append(await anyio.to_thread.run_sync(joined_in_a_process, address, arguments.private))
        tasks.cancel_scope.cancel()
    return joined, attacker


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--victim", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--guest", help=argparse.SUPPRESS)
    parser.add_argument("--private", action="store_true", help="attack a host of a private cluster")
    parser.add_argument("--elsewhere", action="store_true", help=f"the attacker is at {ELSEWHERE}")
    parser.add_argument("--kind", choices=sorted(FIRST_BYTES), default="silent")
    parser.add_argument("--sockets", type=int, default=1500)
    parser.add_argument("--rate", type=float, default=500.0, help="connections that the attacker opens a second")
    parser.add_argument("--joins", type=int, default=20)
    arguments = parser.parse_args()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, 4 * arguments.sockets + 1024), files))
    if arguments.victim:
        trio.run(listen, arguments.private)
        return
    if arguments.guest:
        print(json.dumps(trio.run(join, arguments.guest, arguments.private)), flush=True)
        return
    with child("scripts.attacks.sockets", "--victim", *(["--private"] if arguments.private else [])) as victim:
        assert victim.stdin is not None
        began = time.monotonic()
        joined, attacker = trio.run(attack, line_of(victim), arguments)
        lasted_seconds = time.monotonic() - began
        victim.stdin.close()
        used = json.loads(line_of(victim))
    seconds = [s for s, _ in joined if s is not None]
    figures = [
        Figure("honest peers that joined", len(seconds) / max(1, len(joined)), "share", "higher", ">= .9"),
        Figure("connections that the attacker opened", attacker.opened, "", "lower"),
        Figure("of them a second", attacker.opened / lasted_seconds, "", "higher"),
        Figure("host's CPU, each of them", 1000 * used["cpu"] / max(1, attacker.opened), "ms", "lower"),
        Figure("host's CPU", used["cpu"], "s", "lower"),
        Figure("the attack lasted", lasted_seconds, "s", "lower"),
        Figure("host's peak memory", used["kb"] / 1024, "MiB", "lower"),
    ]
    if seconds:
        bar = "<= 2" if arguments.elsewhere else "<= 5"
        figures.append(Figure("honest peer, until its echo (median)", statistics.median(seconds), "s", "lower"))
        figures.append(Figure("honest peer, until its echo (longest)", max(seconds), "s", "lower", bar))
    figures.append(Figure("tries of an honest peer, most", max(tries for _, tries in joined), "", "lower"))
    where = "elsewhere" if arguments.elsewhere else "of the same address"
    name = f"sockets {where}, {arguments.kind}, {'private' if arguments.private else 'open'}"
    report(name, figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
