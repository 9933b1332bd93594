"""Deaths, cuts, silence and stops at any moment: both sides have the old weights or the new ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from swarm.peers.reputation import Conduct

MOMENTS, MOMENT_SECONDS = 60, 0.025


def at_every_moment(world: Any, story: Callable[[Any, float], Awaitable[None]], *, from_seconds: float = 0.0) -> None:
    """Plays the same story in worlds that differ in the moment of the fault."""
    for moment in range(MOMENTS):

        async def at_moment(moment: int = moment) -> None:
            await story(world.again(str(moment)), from_seconds + moment * MOMENT_SECONDS)

        world.play(at_moment)


def test_a_peer_that_is_dead_already_costs_time_only(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(3) as (one, dead, other):
            world.network.crash(dead.host)
            other.averages()
            outcome = await one.average(dead.peer, other.peer)
            assert outcome.partner == other.peer
            assert outcome.seconds < 4 * world.terms.answer_seconds

    world.play(story)


def test_a_partner_that_dies_during_the_exchange_is_replaced_by_another(world: Any) -> None:
    async def story() -> None:
        world.network.set_bandwidth(5_000.0)
        async with world.nodes(3) as (one, dying, other):
            before, others_before = one.weights, other.weights
            dying.averages()
            one.averages(dying.peer)
            await anyio.sleep(3.0)
            world.network.crash(dying.host)
            await anyio.sleep(1.0)
            assert one.weights == before
            other.averages(one.peer)
            await world.over(one, other)
            assert one.outcome.partner == other.peer
            assert one.weights == other.weights == world.formula(before, others_before)
            assert not any(conduct is Conduct.HOSTILE_REQUEST for _, conduct in one.reports)

    world.play(story)


def test_a_partner_that_dies_at_any_moment_leaves_the_old_weights_or_the_new(world: Any) -> None:
    committed = []

    async def story(world: Any, at_seconds: float) -> None:
        async with world.nodes(2) as (one, dying):
            old, new = one.weights, world.formula(one.weights, dying.weights)
            ours = one.offer().blob
            dying.averages()
            one.averages(dying.peer, deadline_seconds=20.0)
            await anyio.sleep(at_seconds)
            world.network.crash(dying.host)
            await world.over(one)
            assert one.weights == (new if one.committed else old)
            if one.committed:
                assert dying.store.has(ours)  # it could have committed as well
            if dying.committed and not one.committed:
                assert f"{world.terms.resolve_seconds:g} s" in one.outcome.because
            assert one.outcome.seconds < 20.0 + world.terms.resolve_seconds + 6 * world.terms.answer_seconds
            committed.append(one.committed)

    at_every_moment(world, story)
    assert not committed[0]
    assert committed[-1]


@pytest.mark.parametrize(("cut_seconds", "known"), [(2.0, True), (30.0, True), (2.0, False)])
def test_a_connection_cut_at_any_moment_and_healed_in_time_splits_no_pair(
    world: Any, cut_seconds: float, known: bool
) -> None:
    """Both commit or neither, at every moment of the cut. Some were in doubt, so that the rule was needed."""
    outcomes: list[tuple[bool, bool, float]] = []

    async def story(world: Any, at_seconds: float) -> None:
        async with world.nodes(2) as (one, other):
            one.is_known = other.is_known = lambda peer: known
            old, new = (one.weights, other.weights), world.formula(one.weights, other.weights)
            other.averages(deadline_seconds=5.0)
            one.averages(other.peer, deadline_seconds=5.0)
            await anyio.sleep(at_seconds)
            world.network.partition([one.host], [other.host])
            await anyio.sleep(cut_seconds)
            world.network.heal()
            await world.over(one, other)
            assert (one.weights, other.weights) in (old, (new, new))
            outcomes.append((one.committed, other.committed, one.outcome.seconds))

    at_every_moment(world, story)
    assert all(one == other for one, other, _ in outcomes)
    assert any(one and seconds > cut_seconds for one, _, seconds in outcomes)


@pytest.mark.parametrize("later_seconds", [0.0, 0.013])
def test_a_connection_broken_at_any_moment_splits_no_pair(world: Any, later_seconds: float) -> None:
    """Messages on the way are lost at once; both nodes live and can connect again."""
    outcomes: list[tuple[bool, bool, str]] = []

    async def story(world: Any, at_seconds: float) -> None:
        async with world.nodes(2) as (one, other):
            old, new = (one.weights, other.weights), world.formula(one.weights, other.weights)
            other.averages(deadline_seconds=5.0)
            one.averages(other.peer, deadline_seconds=5.0)
            await anyio.sleep(at_seconds)
            await one.host.disconnect(other.peer)
            await world.over(one, other)
            assert (one.weights, other.weights) in (old, (new, new))
            outcomes.append((one.committed, other.committed, one.outcome.because))

    at_every_moment(world, story, from_seconds=later_seconds)
    assert all(one == other for one, other, _ in outcomes)
    assert any(because == "1 × committed" for _, _, because in outcomes)
    assert any("disconnected" in because or "unreachable" in because for _, _, because in outcomes)


@pytest.mark.parametrize("cut_seconds", [0.0, 100.0])
@pytest.mark.parametrize("slow", [0, 1])
def test_a_connection_lost_while_the_slower_one_still_checks_ends_it_for_both(
    world: Any, slow: int, cut_seconds: float
) -> None:
    async def story() -> None:
        async with world.nodes(2) as nodes:
            old = [node.weights for node in nodes]
            nodes[slow].checking_seconds = 110.0  # longer than the other waits for a lost partner
            nodes[0].averages(deadline_seconds=5.0)
            nodes[1].averages(nodes[0].peer, deadline_seconds=5.0)
            await anyio.sleep(10.0)
            await nodes[0].host.disconnect(nodes[1].peer)
            world.network.partition([nodes[0].host], [nodes[1].host])
            await anyio.sleep(cut_seconds)
            world.network.heal()
            await world.over(*nodes)
            assert [node.weights for node in nodes] == old
            assert max(node.outcome.seconds for node in nodes) < 10.0 + world.terms.resolve_seconds + 30.0

    world.play(story)


def test_who_is_done_waits_for_the_slower_one(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, slow):
            slow.checking_seconds = world.terms.have_seconds - 1.0
            slow.averages(deadline_seconds=5.0)
            await one.average(slow.peer, deadline_seconds=5.0)
            await world.over(slow)
            assert one.committed
            assert one.weights == slow.weights

    world.play(story)


def test_one_that_is_slower_than_the_exchange_may_take_is_left_and_nobody_commits(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, slow):
            old = (one.weights, slow.weights)
            slow.checking_seconds = world.terms.exchange_seconds + 1.0
            slow.averages(deadline_seconds=5.0)
            await one.average(slow.peer, deadline_seconds=5.0)
            await world.over(slow)
            assert (one.weights, slow.weights) == old
            assert one.reports == [(slow.peer, Conduct.STALLED)]
            assert not slow.reports

    world.play(story)


def test_a_cut_that_does_not_heal_leaves_each_side_with_old_weights_or_new_and_the_split_one_knows_its_doubt(
    world: Any,
) -> None:
    split = []

    async def story(world: Any, at_seconds: float) -> None:
        async with world.nodes(2) as (one, other):
            old, new = (one.weights, other.weights), world.formula(one.weights, other.weights)
            other.averages(deadline_seconds=5.0)
            one.averages(other.peer, deadline_seconds=5.0)
            await anyio.sleep(at_seconds)
            world.network.partition([one.host], [other.host])
            await world.over(one, other)
            for node, before in zip((one, other), old, strict=True):
                assert node.weights == (new if node.committed else before)
                assert node.outcome.seconds < 5.0 + world.terms.exchange_seconds + world.terms.resolve_seconds + 30.0
            if one.committed != other.committed:
                split.append(other if one.committed else one)
                assert f"{world.terms.resolve_seconds:g} s" in split[-1].outcome.because

    at_every_moment(world, story)
    assert len(split) < 10  # only while one message is on its way


@pytest.mark.parametrize("at_seconds", [0.0, 0.3, 0.45, 1.0])
def test_a_partner_that_falls_silent_costs_time_only(world: Any, at_seconds: float) -> None:
    async def story() -> None:
        world.network.set_bandwidth(20_000.0)
        async with world.nodes(3) as (one, silent, other):
            before, others_before = one.weights, other.weights
            silent.averages()
            one.averages(silent.peer)
            await anyio.sleep(at_seconds)
            world.network.silence(silent.host)
            other.averages(deadline_seconds=600.0)
            await world.over(one)
            again = await one.average(other.peer) if not one.committed else one.outcome
            await world.over(other)
            assert again.partner == other.peer
            assert one.weights == other.weights == world.formula(before, others_before)

    world.play(story)


@pytest.mark.parametrize("proposes", [True, False])
def test_a_node_that_stops_in_the_middle_abandons_and_its_partner_looks_further(world: Any, proposes: bool) -> None:
    async def story() -> None:
        world.network.set_bandwidth(5_000.0)
        async with world.nodes(3) as (one, stopping, other):
            before = stopping.weights
            one.averages(*([other.peer] if proposes else [stopping.peer, other.peer]))
            with anyio.move_on_after(3.0):
                await stopping.average(*([one.peer] if proposes else []))
            assert stopping.weights == before
            other.averages()
            await world.over(one)
            assert one.outcome.partner == other.peer
            stopping.averages(deadline_seconds=1.0)  # and may average again
            await world.over(stopping)

    world.play(story)
