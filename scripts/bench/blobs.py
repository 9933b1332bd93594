"""The rate of a blob over loopback: our exchange against a raw stream of py-libp2p, in turn, in the same run.

    python -m scripts.bench.blobs [--rounds 9] [--json]

Two processes. The serving one holds a blob in a content store and serves it by ``swarm.blobs.blob_server`` on
``Libp2pHost``, and serves equally many bytes on a plain ``libp2p.new_host`` (TCP, Noise, Yamux, the library's
defaults), which writes chunks of the same size into a stream. The measuring one fetches into a content store (verified,
on disk), then reads the raw stream and discards it, ``--rounds`` times. The figure is the ratio of the medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio
from libp2p import new_host
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.peer.peerinfo import info_from_p2p_addr
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from protocol.identity import NodeKey
from protocol.limits import CHUNK_BYTES
from scripts.bench.common.processes import child, line_of
from scripts.bench.common.reporting import Figure, figures_parser, report
from swarm.api import Wanted
from swarm.blobs.blob_server import BlobServer
from swarm.blobs.fetch import Fetcher
from swarm.blobs.store import ContentStore
from swarm.hosts.libp2p.libp2p_host import Libp2pHost

RAW = TProtocol("/bench/raw/1")
LISTEN = "/ip4/127.0.0.1/tcp/0"


def ignore(*_: object) -> None:
    """Ignores reports on peers: both are ours."""


@asynccontextmanager
async def raw_host() -> AsyncIterator[IHost]:
    host = new_host()
    async with host.run(listen_addrs=[Multiaddr(LISTEN)]):
        yield host


async def serve(size: int, directory: Path) -> None:
    """The serving process: prints its addresses and the blob on one line, ends when its standard input does."""
    content = Random(0).randbytes(size)
    store = ContentStore(directory)
    blob = store.put(content)
    host = Libp2pHost(NodeKey.generate(), [LISTEN])
    BlobServer(host, store, report=ignore)

    async def send_raw(stream: INetStream) -> None:
        await stream.read(1)
        for start in range(0, size, CHUNK_BYTES):
            await stream.write(content[start : start + CHUNK_BYTES])
        await stream.close()

    async with host.run(), raw_host() as raw:
        raw.set_stream_handler(RAW, send_raw)
        there = {"blob": blob.hex(), "ours": host.addresses()[0], "raw": str(raw.get_addrs()[0])}
        print(json.dumps(there), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


async def measure(there: dict[str, str], size: int, rounds: int, directory: Path) -> tuple[list[float], list[float]]:
    """Returns the seconds of each round: ours, raw."""
    host = Libp2pHost(NodeKey.generate(), [LISTEN])
    blob = bytes.fromhex(there["blob"])
    ours: list[float] = []
    raws: list[float] = []

    async def reach(peer: str, deadline_seconds: float) -> None:
        await host.connect(there["ours"], deadline_seconds=deadline_seconds)

    async with host.run(), raw_host() as raw:
        peer = await host.connect(there["ours"], deadline_seconds=10.0)
        info = info_from_p2p_addr(Multiaddr(there["raw"]))
        await raw.connect(info)
        for number in range(rounds):
            store = ContentStore(directory / str(number))
            fetcher = Fetcher(host, store, reach=reach, report=ignore)
            began = time.perf_counter()
            (fetched,) = await fetcher.fetch([Wanted(blob, size, (peer,))], deadline_seconds=300.0)
            ours.append(time.perf_counter() - began)
            assert fetched.reason is None, fetched.reason
            store.path(blob).unlink()

            began = time.perf_counter()
            stream = await raw.new_stream(info.peer_id, [RAW])
            await stream.write(b"x")
            received = 0
            while received < size:
                part = await stream.read(CHUNK_BYTES)
                assert part, f"the raw stream ended after {received} bytes"
                received += len(part)
            raws.append(time.perf_counter() - began)
            await stream.close()
    return ours, raws


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--mib", type=int, default=64, help="size of the blob")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = arguments.mib << 20
    if arguments.serve:
        anyio.run(serve, size, arguments.serve, backend="trio")
        return
    with tempfile.TemporaryDirectory() as directory:
        served = ["--mib", str(arguments.mib), "--serve", f"{directory}/there"]
        with child("scripts.bench.blobs", *served) as server:
            there = json.loads(line_of(server))
            ours, raws = anyio.run(measure, there, size, arguments.rounds, Path(directory) / "here", backend="trio")
    our_rate, raw_rate = (size / 1e6 / statistics.median(seconds) for seconds in (ours, raws))
    report(
        "blobs",
        [
            Figure("blob exchange against a raw stream", our_rate / raw_rate, "ratio", "higher", "≥ 0.6"),
            Figure("blob exchange, verified and on disk", our_rate, "MB/s", "higher"),
            Figure("raw py-libp2p stream, discarded", raw_rate, "MB/s", "higher"),
        ],
        as_json=arguments.json,
    )


if __name__ == "__main__":
    main()
