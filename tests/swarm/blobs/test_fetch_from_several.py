"""One large blob from several donors, in virtual time: their rates add up; the slowest does not decide."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import anyio
from trio.testing import MockClock

from protocol.blob_id import blob_id
from swarm.api import Wanted
from swarm.blobs.blob_server import BlobServer
from swarm.blobs.fetch import Fetcher
from swarm.blobs.store import ContentStore
from swarm.hosts.simulated.network import SimulatedNetwork
from swarm.peers.reputation import Conduct

CONTENT = Random(1).randbytes(24 << 20)
BLOB = blob_id(CONTENT)
LINK = 50e6 / 8  # bytes per second


def fetched_from(directory: Path, uploads: Sequence[float]) -> tuple[float, float, list[Conduct]]:
    """Fetches from donors with these upload limits; returns seconds, bytes received per byte of the blob, reports."""

    async def story() -> tuple[float, float, list[Conduct]]:
        network = SimulatedNetwork(seed=1, delay_seconds=(0.02, 0.02))
        reports: list[Conduct] = []
        donors = []
        async with AsyncExitStack() as stack:
            for number, upload in enumerate(uploads):
                host = network.host(f"donor {number}")
                store = ContentStore(directory / f"{len(uploads)}-{number}")
                store.put(CONTENT)
                BlobServer(host, store, upload_bytes_per_second=upload, report=lambda *_: None)
                await stack.enter_async_context(host.run())
                donors.append(host)
            here = network.host("here")
            await stack.enter_async_context(here.run())

            async def reach(peer: str, deadline_seconds: float) -> None:
                address = next(host.addresses()[0] for host in donors if host.peer_id == peer)
                await here.connect(address, deadline_seconds=deadline_seconds)

            store = ContentStore(directory / f"{len(uploads)}-here")
            fetcher = Fetcher(here, store, reach=reach, report=lambda peer, conduct, detail: reports.append(conduct))
            began = anyio.current_time()
            wanted = Wanted(BLOB, len(CONTENT), tuple(host.peer_id for host in donors))
            (outcome,) = await fetcher.fetch([wanted], deadline_seconds=1000.0)
            seconds = anyio.current_time() - began
            assert outcome.reason is None
            assert store.read(BLOB) == CONTENT
            return seconds, here.traffic().received_bytes / len(CONTENT), reports

    return anyio.run(story, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})


def test_three_donors_of_one_rate_bring_it_two_and_a_half_times_as_fast_as_one_and_hardly_anything_twice(
    tmp_path: Path,
) -> None:
    one, _, _ = fetched_from(tmp_path, [LINK])
    three, received, reports = fetched_from(tmp_path, [LINK] * 3)
    assert one / three >= 2.5
    assert received < 1.1
    assert reports == []


def test_a_donor_a_hundred_times_slower_costs_no_more_than_seconds_and_is_not_blamed(tmp_path: Path) -> None:
    two, _, _ = fetched_from(tmp_path / "two", [LINK, LINK])
    with_slow, _, reports = fetched_from(tmp_path / "three", [LINK, LINK, LINK / 100])
    assert with_slow < two + 4.0
    assert reports == []
