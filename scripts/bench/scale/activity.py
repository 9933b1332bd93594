"""What the nodes of the simulated swarm do: a random learner beside each honest one, and what sybils send."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final

import anyio
import numpy as np

from protocol.errors import StarlingError
from protocol.messages import GroupAdvert, PromptRef, RolloutAdvert
from protocol.streams.averaging_messages import Offer
from protocol.weights.dense_weights import ENCODING, encode_dense
from protocol.weights.tensor_layout import TensorLayout
from scripts.bench.scale.searches import Search
from scripts.bench.scale.swarm_node import FAMILY, HEARTBEAT_SECONDS, Node, heartbeat
from swarm import api
from swarm.announcements.pacing import heartbeat_seconds
from swarm.service import SwarmService

ROUND_SECONDS: Final = 10.0
ROUNDS_PER_FETCH: Final = 3
FETCH_SECONDS: Final = 10.0
AVERAGE_EVERY_SECONDS: Final = 120.0
PARTNER_SECONDS: Final = 30.0
SYBIL_SECONDS: Final = 1.0  # between two announcements of a sybil
GROUP_BYTES: Final = 2000
LAYOUT: Final = TensorLayout.of({"weights": (500,)})


class Activity:
    """``honest_peers`` returns the honest nodes that run, ``is_calm`` whether outcomes count now."""

    def __init__(
        self,
        nodes: int,
        *,
        now_seconds: Callable[[], float],
        honest_peers: Callable[[], set[str]],
        is_calm: Callable[[], bool],
    ) -> None:
        self._size, self._now_seconds, self._honest_peers, self._is_calm = nodes, now_seconds, honest_peers, is_calm
        self.searches: list[Search] = []

    async def live(self, node: Node) -> None:
        """Runs a node until it leaves or is cancelled."""
        with node.task, suppress(StarlingError):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(node.service.run)
                await node.service.started.wait()
                if not node.is_sybil:
                    tasks.start_soon(self._beat, node)
                    tasks.start_soon(self._average, node)
                await (self._attack if node.is_sybil else self._learn)(node)

    async def _beat(self, node: Node) -> None:
        if node.is_of_start:  # its regular heartbeats then come at any time
            random = Random(f"{node.host.peer_id} beats")
            await anyio.sleep(random.uniform(0.0, heartbeat_seconds(self._size, HEARTBEAT_SECONDS)))
        await node.service.answer(api.Beat(heartbeat(node.host.peer_id[-6:])))

    async def _learn(self, node: Node) -> None:
        random = Random(node.host.peer_id)
        await anyio.sleep(random.uniform(0.0, ROUND_SECONDS))
        for number in range(1 << 30):
            content = random.randbytes(GROUP_BYTES)
            blob = node.service.store.put(content)
            with suppress(StarlingError):
                await node.service.answer(api.Share(FAMILY, FAMILY, number, (group(blob, number),)))
                if number % ROUNDS_PER_FETCH == 0:
                    await self._fetch_one(node, random)
            await anyio.sleep(random.uniform(0.8, 1.2) * ROUND_SECONDS)

    async def _fetch_one(self, node: Node, random: Random) -> None:
        node.cursor, is_here = await fetch_one(node.service, node.cursor, self._honest_peers, random, FETCH_SECONDS)
        if is_here is not None and self._is_calm():
            node.fetched[is_here] += 1

    async def _average(self, node: Node) -> None:
        random = Random(f"{node.host.peer_id} averages")
        offer = offer_of(node.service, random.randrange(1 << 30))
        await anyio.sleep(random.uniform(0.0, AVERAGE_EVERY_SECONDS))
        while True:
            with suppress(StarlingError):
                began_seconds, was_calm = self._now_seconds(), self._is_calm()
                reply = await node.service.answer(api.Average(offer, LAYOUT.tensors, PARTNER_SECONDS))
                assert isinstance(reply, api.AverageReply)
                candidates = len(node.service._averaging_candidates(FAMILY))
                is_calm = was_calm and self._is_calm()
                self.searches.append(
                    Search(began_seconds, reply.seconds, is_calm, reply.partner is not None, reply.because, candidates)
                )
            await anyio.sleep(random.uniform(0.8, 1.2) * AVERAGE_EVERY_SECONDS)

    async def _attack(self, node: Node) -> None:
        random = Random(node.host.peer_id)
        for number in range(1 << 30):
            lie = RolloutAdvert(FAMILY, FAMILY, number, (group(random.randbytes(32), number),))
            with suppress(StarlingError):
                await node.service.gossip.announce(lie if number % 2 else heartbeat("sybil"))
            await anyio.sleep(SYBIL_SECONDS)


async def fetch_one(
    service: SwarmService, cursor: int, honest_peers: Callable[[], set[str]], random: Random, seconds: float
) -> tuple[int, bool | None]:
    """Fetches a group that an honest peer announced since ``cursor``, and judges it as used. Returns the newest cursor,
    and whether the blob came; None where there was none to fetch."""
    seen = await service.answer(api.AskSeenGroups(cursor, 1000))
    assert isinstance(seen, api.SeenGroups)
    there = honest_peers()
    honest = [group for group in seen.groups if group.peer in there]
    cursor = seen.groups[-1].cursor if seen.groups else cursor
    if not honest:
        return cursor, None
    chosen = random.choice(honest)
    wanted = (api.Wanted(chosen.advert.blob, chosen.advert.size, (chosen.peer,)),)
    outcome = await service.answer(api.Fetch(wanted, seconds))
    assert isinstance(outcome, api.FetchedList)
    is_here = outcome.fetched[0].is_here
    if is_here:
        await service.answer(api.Judge(chosen.peer, chosen.advert.blob, api.Judgement.USED, ""))
    return cursor, is_here


def offer_of(service: SwarmService, seed: int) -> Offer:
    """Stores weights drawn from ``seed``; returns the offer to average with them."""
    values = 1.0 + 0.1 * np.random.default_rng(seed).standard_normal(500)
    blob = encode_dense(LAYOUT, [(values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)])
    return Offer(FAMILY, LAYOUT.digest, ENCODING, 1, service.store.put(blob), len(blob))


def group(blob: bytes, seed: int) -> GroupAdvert:
    prompt = PromptRef("spell_backward", 1, bytes(16), seed)
    return GroupAdvert(blob, GROUP_BYTES, prompt, (1.0, 0.0, 0.0, 1.0), (5, 5, 6, 4), (-1.5, -0.5, -2.0, -1.0))
