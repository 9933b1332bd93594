"""Nodes of a family find each other without agreeing on which nodes are alive."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import anyio
import pytest
import trio

from protocol.streams.averaging_messages import DeclineReason, Offer
from swarm.averaging.pairing import Pairing, PairingOutcome
from swarm.averaging.pairing_rules import Terms
from swarm.host import Host


def test_two_average_with_each_other_and_hold_the_same_afterwards(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, other):
            expected = world.formula(one.weights, other.weights)
            other.averages()
            outcome = await one.average(other.peer)
            await world.over(other)
            assert (outcome.partner, other.outcome.partner) == (other.peer, one.peer)
            assert one.weights == other.weights == expected
            assert outcome.seconds < 2.0
            assert outcome.because == "1 × committed"
            assert not one.reports
            assert not other.reports

    world.play(story)


@pytest.mark.parametrize("apart_seconds", [0.0, 0.02, 0.05, 0.06, 0.11, 0.15, 0.2, 0.3])
def test_two_that_propose_to_each_other_at_once_exchange_once(world: Any, apart_seconds: float) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, other):
            one.averages(other.peer)
            await anyio.sleep(apart_seconds)
            other.averages(one.peer)
            await world.over(one, other)
            assert one.committed
            assert other.committed
            assert one.weights == other.weights
            assert max(one.outcome.seconds, other.outcome.seconds) < 3.0
            assert one.host.traffic().sent_bytes < 1.5 * world.size

    world.play(story)


@pytest.mark.parametrize("count", [3, 4, 7])
def test_a_ring_of_proposals_comes_apart_into_pairs(world: Any, count: int) -> None:
    async def story() -> None:
        async with world.nodes(count) as nodes:
            for node, following in zip(nodes, nodes[1:] + nodes[:1], strict=True):
                node.averages(following.peer, deadline_seconds=30.0)
            await world.over(*nodes)
            paired = [node for node in nodes if node.committed]
            assert len(paired) >= 2
            assert len(paired) % 2 == 0
            by_peer = {node.peer: node for node in nodes}
            assert all(by_peer[node.outcome.partner].outcome.partner == node.peer for node in paired)

    world.play(story)


def test_of_nine_that_know_each_other_four_pairs_find_together_and_the_odd_one_keeps_its_weights(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(9) as nodes:
            before = {node.peer: node.weights for node in nodes}
            for node in nodes:
                node.averages(*before)
            await world.over(*nodes)
            (odd,) = [node for node in nodes if not node.committed]
            assert odd.weights == before[odd.peer]
            assert 60.0 <= odd.outcome.seconds < 60.0 + 4 * world.terms.answer_seconds
            assert "not_now" in odd.outcome.because
            for node in nodes:
                if node is not odd:
                    assert node.weights == world.formula(before[node.peer], before[node.outcome.partner])
                    assert node.outcome.seconds < 30.0

    world.play(story)


def test_alone_a_node_goes_on_with_its_own_weights_and_says_why(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(1) as (alone,):
            before = alone.weights
            outcome = await alone.average(alone.peer)
            assert (outcome.partner, outcome.because) == (None, "no peer of the family was there")
            assert outcome.seconds == pytest.approx(60.0)
            assert alone.weights == before

    world.play(story)


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        (DeclineReason.OTHER_FAMILY, {"family": b"g" * 16}),
        (DeclineReason.OTHER_LAYOUT, {"layout": b"m" * 16}),
        (DeclineReason.OTHER_ENCODING, {"encoding": "sparse"}),
        (DeclineReason.STEPS_APART, {"step": 16}),
        (DeclineReason.TOO_LARGE, {"size": (1 << 20) + 1}),
    ],
)
def test_an_unfit_peer_is_declined_for_what_is_wrong_and_another_is_found(
    world: Any, reason: DeclineReason, changes: dict[str, object]
) -> None:
    async def story() -> None:
        async with world.nodes(3) as (one, unfit, fit):
            unfit.averages(deadline_seconds=10.0, **changes)
            outcome = await one.average(unfit.peer, deadline_seconds=5.0)
            assert outcome.partner is None
            assert outcome.because == ("1 × too_large" if reason is DeclineReason.TOO_LARGE else f"1 × {reason}")
            fit.averages(deadline_seconds=10.0)
            assert (await one.average(unfit.peer, fit.peer)).partner == fit.peer
            await world.over(unfit)
            assert not unfit.committed
            assert not one.reports

    world.play(story)


def test_a_peer_between_its_outer_steps_declines_and_is_found_once_it_comes_to_one(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, later):
            one.averages(later.peer)
            await anyio.sleep(20.0)
            assert not one.ended.is_set()
            later.averages()
            await world.over(one, later)
            assert one.committed
            assert one.weights == later.weights
            assert one.outcome is not None and "not_now" in one.outcome.because

    world.play(story)


def test_on_any_host_two_pair_again_and_again_and_leave_no_stream_open(
    tell: Callable[[Callable[[Any, trio.Nursery], Awaitable[None]]], None],
) -> None:
    async def story(hosts: Any, tasks: trio.Nursery) -> None:
        one, other = await hosts.chain(tasks, 2)
        faults: list[str] = []

        async def reach(peer: str, deadline_seconds: float) -> None:
            await anyio.lowlevel.checkpoint()

        async def bring(peer: str, offer: Offer) -> str | None:
            await anyio.lowlevel.checkpoint()
            return None

        def member(host: Host) -> Pairing:
            terms = Terms(max_bytes=100, max_steps_apart=1)
            return Pairing(
                host,
                terms,
                reach=reach,
                fetch_weights=bring,
                report=lambda peer, conduct, detail: faults.append(detail),
                random=Random(host.peer_id),
            )

        members = {one.peer_id: member(one), other.peer_id: member(other)}
        for step in range(5):
            outcomes: dict[str, PairingOutcome] = {}

            async def average(peer: str, step: int = step, outcomes: dict[str, PairingOutcome] = outcomes) -> None:
                offer = Offer(bytes(16), bytes(16), "dense", step, bytes(32), 100)
                outcomes[peer] = await members[peer].average(
                    offer, lambda: list(members), accepts=lambda p: True, deadline_seconds=50.0
                )

            async with anyio.create_task_group() as both:
                both.start_soon(average, one.peer_id)
                both.start_soon(average, other.peer_id)
            assert outcomes[one.peer_id].partner == other.peer_id
            assert outcomes[other.peer_id].partner == one.peer_id
        assert not faults
        assert not members[one.peer_id].refused
        assert not members[other.peer_id].refused

    tell(story)


def test_two_that_seek_among_many_that_do_not_hear_of_each_other_from_one_that_both_asked(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(24) as nodes:
            everybody = [node.peer for node in nodes]
            declined = 0
            for one, other in zip(nodes[::2], nodes[1::2], strict=True):
                one.averages(*everybody)
                other.averages(*everybody)
                await world.over(one, other)
                assert one.outcome.partner == other.peer
                told = "; ".join((one.outcome.because, other.outcome.because))
                declined += sum(int(times) for times in re.findall(r"(\d+) × not_now", told))
            assert declined < 150  # 198 where nobody names another one

    world.play(story)
