"""What guessing a code that is read out costs: one by one at the member that holds its letter, and at home.

At the member: ``--guessers`` connections at a time, each with the first bytes of one guess, for ``--seconds``, against
a host of a private cluster that holds as many letters as it may, in a process of its own. At home: a machine that holds
the letter, or overheard its delivery, tries codes by deriving each, which is timed here on one core.

    python -m scripts.attacks.spoken_codes [--seconds 10] [--guessers 64] [--json]
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from contextlib import suppress

import anyio
import trio

from protocol.cluster.spoken_code import CODES, new_code, secrets_of
from protocol.identity import NodeKey
from protocol.limits import LETTER_SECONDS
from scripts.attacks.sockets import Friends
from scripts.bench.common.processes import child, line_of
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.cluster.letter_box import LETTERS
from swarm.hosts.libp2p.libp2p_host import Libp2pHost
from swarm.hosts.libp2p.private_network import GREETING

GUESS_BYTES = 8 + len(GREETING)  # a nonce, and the greeting under the guessed key
DERIVED = 4
YEAR_SECONDS = 365.25 * 86_400


class Holder(Friends):
    """A member with as many letters as it may hold, each under a key of its own."""

    def keys(self) -> tuple[bytes, ...]:
        return (*super().keys(), *(bytes([letter + 1]) * 32 for letter in range(LETTERS)))


async def hold() -> None:
    """The attacked process: prints its address, and its processor time once its standard input ends."""
    victim = Libp2pHost(NodeKey.generate(), ["/ip4/127.0.0.1/tcp/0"], handshake=Holder())
    async with victim.run():
        before_seconds = time.process_time()
        print(victim.addresses()[0], flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
        print(time.process_time() - before_seconds, flush=True)


async def guess(port: int, guessers: int, seconds: float) -> int:
    """Returns how many guesses were answered, each by the end of its connection."""
    answered = 0

    async def one_after_another() -> None:
        nonlocal answered
        while True:
            with suppress(OSError, trio.BrokenResourceError):
                async with await trio.open_tcp_stream("127.0.0.1", port) as socket:
                    await socket.send_all(os.urandom(GUESS_BYTES))
                    while await socket.receive_some():
                        pass
                answered += 1

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as tasks:
            for _ in range(guessers):
                tasks.start_soon(one_after_another)
    return answered


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--victim", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--guessers", type=int, default=64)
    arguments = parser.parse_args()
    if arguments.victim:
        trio.run(hold)
        return
    with child("scripts.attacks.spoken_codes", "--victim") as victim:
        assert victim.stdin is not None
        port = int(line_of(victim).split("/")[4])
        guessed = trio.run(guess, port, arguments.guessers, arguments.seconds)
        victim.stdin.close()
        used_seconds = float(line_of(victim))
    before_kb, began_seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    for number in range(DERIVED):
        secrets_of(new_code(lambda below, number=number: number))  # type: ignore[misc]
    derived_seconds = (time.process_time() - began_seconds) / DERIVED
    derived_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) * 1024 / 1e6
    rate = guessed / arguments.seconds
    figures = [
        Figure("guesses that a member answered", rate, "/s", "lower"),
        Figure("member's CPU, each of them", 1000 * used_seconds / max(1, guessed), "ms", "lower"),
        Figure(
            f"chance to open one of {LETTERS} letters in their longest life at that rate",
            rate * LETTER_SECONDS * LETTERS / CODES,
            "",
            "lower",
            "<= 1e-6",
        ),
        Figure("deriving one code: CPU", derived_seconds, "s", "higher", ">= .3"),
        Figure("deriving one code: memory", derived_mb, "MB", "higher", "<= 64"),
        Figure("deriving half of all codes", CODES / 2 * derived_seconds / YEAR_SECONDS, "core-years", "higher"),
    ]
    report("guessing codes that are read out", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
