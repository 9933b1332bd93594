"""Bytes that each of 16 peers sends in a round of sharing, over real libp2p hosts on loopback.

A round: every peer shares 4 groups of 8 completions of 256 characters (one token a character, as the tokenizers of the
built-in models have it at worst), and fetches 4 groups of others once all peers have seen all adverts. Bytes are those
of the sockets, everything included: Noise, Yamux, gossip, heartbeats, DHT, peer exchange. They are told apart by phase:
what an idle swarm sends in the same time is taken off the phases of adverts and of blobs.

The bar is a tenth of genrl 0.3.0 on a hivemind DHT: 1,293 kB a peer and round for the same load. Then groups of about
1 MB and close to ``limits.GROUP_BLOB_BYTES`` cross once, from every peer to another. Nothing may be lost at any size.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import anyio
import anyio.to_thread
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs from a checkout, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Figure, add_json_flag, report

from protocol import limits
from protocol.identity import NodeKey
from protocol.messages import PromptRef
from protocol.rollouts import Completion, FinishReason, Group, advert_of, encode_group
from swarm import api
from swarm.composition import SwarmService
from swarm.hosts.libp2p import Libp2pHost
from swarm.settings import ServiceSettings

GENRL_BYTES = 1_293_000  # sent by each peer in a round, genrl 0.3.0 with hivemind 1.1.12
LOST_SECONDS = 120.0  # an advert that is not seen by then counts as lost
SETTLE_SECONDS = 2.0  # for what gossip sends after everybody has it
WORDS = ("the", "of", "and", "to", "in", "is", "that", "it", "for", "so", "we", "get", "times", "plus", "answer")


def text(random: Random, characters: int) -> bytes:
    words = [random.choice(WORDS) if random.random() < 0.7 else str(random.randrange(1000)) for _ in range(characters)]
    return " ".join(words)[:characters].encode()


def group(random: Random, characters: int, completions: int) -> Group:
    """Log-probabilities are drawn as a trained policy has them: most tokens near 0, some far below."""
    numbers = np.random.default_rng(random.randrange(2**32))
    written = tuple(
        Completion(
            text=answer,
            token_ids=np.frombuffer(answer, dtype=np.uint8).astype(np.int64),
            token_bytes=np.ones(characters, dtype=np.int64),
            logps=-numbers.gamma(0.3, 1.5, characters).astype(np.float32),
            finish=FinishReason.LENGTH,
            reward=float(random.random() < 0.5),
        )
        for answer in (text(random, characters) for _ in range(completions))
    )
    prompt = PromptRef("fraction_simplification", 1, bytes(16), random.randrange(2**31))
    return Group(prompt, bytes(16), bytes(16), random.randrange(10_000), written)


@asynccontextmanager
async def peers(count: int, directory: Path, heartbeat_seconds: float) -> AsyncIterator[list[SwarmService]]:
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(anyio.create_task_group())
        services: list[SwarmService] = []
        for number in range(count):
            home = directory / f"{number}"
            home.mkdir()
            key = NodeKey.generate()
            settings = ServiceSettings(
                home=str(home),
                swarm_name="bench",
                swarm_id="00" * 16,
                name=f"node-{number}",
                listen="/ip4/127.0.0.1/tcp/0",
                peers=tuple(services[0].host.addresses()) if services else (),
                lan_discovery=False,
                heartbeat_seconds=heartbeat_seconds,
            )
            host = Libp2pHost(key, [settings.listen], mesh_degree=settings.mesh_degree)
            service = SwarmService(host, key, settings, wall_clock=time.time, random=Random(number))
            tasks.start_soon(service.run)
            await service.started.wait()
            services.append(service)
        yield services
        tasks.cancel_scope.cancel()


def sent(services: Sequence[SwarmService]) -> float:
    """Bytes a peer, on average."""
    return sum(s.host.traffic().sent_bytes for s in services) / len(services)


async def seen(service: SwarmService) -> list[api.SeenGroup]:
    reply = await service.answer(api.AskSeenGroups(0, 4096))
    assert isinstance(reply, api.SeenGroups)
    return list(reply.groups)


@dataclass(frozen=True)
class Load:
    """What each peer does in a round."""

    characters: int
    completions: int
    shared: int
    used: int


SMALL = Load(characters=256, completions=8, shared=4, used=4)
MEGABYTE = Load(characters=limits.COMPLETION_TOKENS, completions=8, shared=1, used=1)
LARGEST = Load(characters=limits.COMPLETION_TOKENS, completions=60, shared=1, used=1)


@dataclass(frozen=True)
class Phases:
    """Bytes a peer sent, and seconds, of one round."""

    adverts_bytes: float
    blobs_bytes: float
    seconds: float
    seen_share: float  # of the groups that it should have seen
    fetched_share: float
    blob_bytes: float  # mean size of the groups


async def counts(services: Sequence[SwarmService]) -> list[int]:
    return [len(await seen(service)) for service in services]


def made(random: Random, load: Load) -> list[tuple[Group, bytes]]:
    groups = [group(random, load.characters, load.completions) for _ in range(load.shared)]
    return [(each, encode_group(each)) for each in groups]


async def round_of(services: Sequence[SwarmService], random: Random, load: Load) -> Phases:
    of_peer = [await anyio.to_thread.run_sync(made, random, load) for _ in services]
    began, before_bytes, known = time.monotonic(), sent(services), await counts(services)
    for service, groups in zip(services, of_peer, strict=True):
        for _, blob in groups:
            service.store.put(blob)
        adverts = tuple(advert_of(each, blob) for each, blob in groups)
        await service.answer(api.Share(bytes(16), bytes(16), 1, adverts))
    expected = load.shared * (len(services) - 1)
    with anyio.move_on_after(LOST_SECONDS):
        while min(now - k for now, k in zip(await counts(services), known, strict=True)) < expected:  # noqa: ASYNC110
            await anyio.sleep(0.1)
    await anyio.sleep(SETTLE_SECONDS)
    adverts_bytes, outcomes = sent(services) - before_bytes, []
    arrived = [(await seen(s))[k:] for s, k in zip(services, known, strict=True)]

    async def use(service: SwarmService, groups: list[api.SeenGroup]) -> None:
        wanted = tuple(
            api.Wanted(g.advert.blob, g.advert.size, (g.peer,))
            for g in random.sample(groups, min(load.used, len(groups)))
        )
        reply = await service.answer(api.Fetch(wanted, 300.0))
        assert isinstance(reply, api.FetchedList)
        outcomes.extend(f.path is not None for f in reply.fetched)

    async with anyio.create_task_group() as tasks:
        for service, groups in zip(services, arrived, strict=True):
            tasks.start_soon(use, service, groups)
    return Phases(
        adverts_bytes=adverts_bytes,
        blobs_bytes=sent(services) - before_bytes - adverts_bytes,
        seconds=time.monotonic() - began,
        seen_share=sum(map(len, arrived)) / (expected * len(services)),
        fetched_share=sum(outcomes) / (load.used * len(services)),
        blob_bytes=sum(len(blob) for groups in of_peer for _, blob in groups) / (load.shared * len(services)),
    )


async def measure(count: int, rounds: int, directory: Path) -> list[Figure]:
    random = Random(1)
    async with peers(count, directory, heartbeat_seconds=5.0) as services:
        with anyio.move_on_after(120.0):
            while min(len(s.host.peers()) for s in services) < min(count - 1, 8):  # noqa: ASYNC110
                await anyio.sleep(0.2)
        await anyio.sleep(15.0)  # for the mesh and the DHT to come to rest
        idle_began, idle_bytes = time.monotonic(), sent(services)
        await anyio.sleep(15.0)
        idle_rate = (sent(services) - idle_bytes) / (time.monotonic() - idle_began)

        small = [await round_of(services, random, SMALL) for _ in range(rounds)]
        large = await round_of(services, random, MEGABYTE)
        largest = await round_of(services, random, LARGEST)
    total = sum(r.adverts_bytes + r.blobs_bytes for r in small) / rounds
    seconds = sum(r.seconds for r in small) / rounds
    blobs = sum(r.blobs_bytes for r in small) / rounds
    lost = 1.0 - min(min(r.seen_share, r.fetched_share) for r in (*small, large, largest))
    bar = f"≤ {GENRL_BYTES / 10 / 1e3:.0f}, a tenth of genrl's {GENRL_BYTES / 1e3:,.0f}"
    return [
        Figure("sent by each peer in a round", total / 1e3, "kB", "lower", bar),
        Figure("of it idle traffic (heartbeats, mesh, DHT) of that time", idle_rate * seconds / 1e3, "kB", "lower"),
        Figure("of it blobs", blobs / 1e3, "kB", "lower"),
        Figure("of it adverts", (total - blobs - idle_rate * seconds) / 1e3, "kB", "lower"),
        Figure("length of a round", seconds, "s", "lower"),
        Figure("one group", sum(r.blob_bytes for r in small) / rounds / 1e3, "kB", "lower"),
        Figure(
            "sent for one large group shared and one used",
            (large.adverts_bytes + large.blobs_bytes) / 1e3,
            "kB",
            "lower",
        ),
        Figure("… of this size", large.blob_bytes / 1e3, "kB", "lower"),
        Figure("sent for one of the largest", (largest.adverts_bytes + largest.blobs_bytes) / 1e3, "kB", "lower"),
        Figure("… of this size", largest.blob_bytes / 1e3, "kB", "lower"),
        Figure("adverts or groups lost, any size", lost, "share", "lower", "0"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    add_json_flag(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = anyio.run(measure, arguments.peers, arguments.rounds, Path(directory), backend="trio")
    report("sharing_traffic", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
