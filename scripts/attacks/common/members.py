"""Whole members of a swarm on the simulated network that average their weights, and how strangers keep them waiting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

import anyio
from trio.testing import MockClock

from protocol.streams.averaging_messages import Accept, Have, Offer, Propose
from scripts.bench.scale.activity import LAYOUT, PARTNER_SECONDS, offer_of
from scripts.bench.scale.swarm_node import EPOCH
from swarm import api
from swarm.averaging.weight_exchange import Conversation
from swarm.host import Stream
from swarm.service import SwarmService

LEARNING_SECONDS: Final = (10.0, 30.0)  # between two searches for a partner
T = TypeVar("T")


def now_seconds() -> float:
    return EPOCH + anyio.current_time()


def in_virtual_time(story: Callable[..., Awaitable[T]], *arguments: object) -> T:
    """Runs ``story`` to its end, without waiting for time to pass."""
    clock = MockClock(autojump_threshold=0)
    return anyio.run(story, *arguments, backend="trio", backend_options={"clock": clock})


async def average_for_ever(service: SwarmService, random: Random, on_commit: Callable[[], None]) -> None:
    """Learns for a while and looks for a partner, again and again."""
    offer = offer_of(service, random.randrange(1 << 30))
    while True:
        await anyio.sleep(random.uniform(*LEARNING_SECONDS))
        reply = await service.answer(api.Average(offer, LAYOUT.tensors, PARTNER_SECONDS))
        if isinstance(reply, api.AverageReply) and reply.partner is not None:
            on_commit()


def accepting(offer: Offer) -> Callable[[Stream], Awaitable[None]]:
    """Returns a handler that accepts every proposal with ``offer`` and never says that it holds the partner's."""

    async def accept(stream: Stream) -> None:
        conversation = Conversation(stream)
        if isinstance(await conversation.receive(1e6, Propose, Have), Propose):
            await conversation.send(Accept(offer), 5.0)
        await anyio.sleep_forever()

    return accept
