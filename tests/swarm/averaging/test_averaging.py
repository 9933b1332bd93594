"""Averaging as a learner requests it: which peers are asked, the reply, and the status."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from protocol.errors import MalformedError, StorageError
from swarm import api


def test_two_that_propose_to_each_other_at_once_average_in_one_exchange_and_both_show_it(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, other):
            before = one.blob, other.blob
            one.averages()
            other.averages()
            await world.over(one, other)
            assert (one.reply.partner, other.reply.partner) == (other.peer, one.peer)
            assert one.reply.weight == 1.0
            assert "1 × committed" in one.reply.because
            assert one.blob == world.formula(*before)
            assert other.blob == world.formula(*reversed(before))
            for node, partner in ((one, other), (other, one)):
                status = await node.status()
                assert (status.running, status.exchanges) == (False, {"committed": 1})
                assert status.last.partner == partner.peer
                assert status.last.committed
                assert (status.last.sent_bytes, status.last.received_bytes) == (len(before[0]), len(before[1]))
                seen = await node.sees(partner)
                assert (seen.exchanges_committed, seen.exchanges_abandoned) == (1, 0)
                assert seen.last_exchange == status.last
                assert seen.reputation > 0.5

    world.play(story)


def test_without_anybody_of_the_family_the_answer_comes_at_the_deadline_and_says_so(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2, families=(world.family, world.other_family)) as (one, other):
            other.averages(family=world.other_family)
            reply = await one.average(deadline_seconds=20.0)
            assert (reply.partner, reply.theirs, reply.path) == (None, None, None)
            assert "×" not in reply.because  # no peer was asked
            assert reply.seconds == pytest.approx(20.0)
            assert (await one.status()) == api.AveragingStatus()
            assert (await one.sees(other)).reputation == 0.5

    world.play(story)


def test_a_peer_is_asked_no_more_once_its_heartbeats_fail_to_come(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, other):
            world.network.silence(other.host)
            await anyio.sleep(10.0)
            assert other.peer in one.host.peers()
            reply = await one.average(deadline_seconds=20.0)
            assert "×" not in reply.because  # no peer was asked

    world.play(story)


def test_one_whose_family_has_changed_since_its_heartbeat_is_declined_and_loses_a_little(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, other):
            one.averages(family=world.other_family, deadline_seconds=20.0)
            other.averages(deadline_seconds=20.0)
            await world.over(one, other)
            assert not one.averaged and not other.averaged
            assert "other_family" in other.reply.because
            assert 0.3 < (await one.sees(other)).reputation < 0.5

    world.play(story)


@pytest.mark.parametrize("count", [3, 5])
def test_of_an_odd_number_all_but_one_average_at_once_and_the_odd_one_out_keeps_its_weights(
    world: Any, count: int
) -> None:
    async def story() -> None:
        async with world.nodes(count) as nodes:
            before = {node.peer: node.blob for node in nodes}
            for node in nodes:
                node.averages()
            await world.over(*nodes)
            left = [node for node in nodes if not node.averaged]
            assert len(left) == 1
            assert left[0].blob == before[left[0].peer]
            for node in nodes:
                if node.averaged:
                    assert node.blob == world.formula(before[node.peer], before[node.reply.partner])
            spread = [world.values(node.blob).std() for node in nodes]
            assert max(spread) < 2.0

    world.play(story)


def test_replicas_that_average_again_and_again_come_closer(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(4) as nodes:

            def widest() -> float:
                mean = sum(world.values(node.blob) for node in nodes) / len(nodes)
                return max(float(abs(world.values(node.blob) - mean).max()) for node in nodes)

            before = widest()
            for _ in range(6):
                for node in nodes:
                    node.averages()
                await world.over(*nodes)
            assert widest() < 0.3 * before

    world.play(story)


def test_both_blobs_stay_for_a_minute_after_the_answer_and_may_go_then(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2, store_bytes=4 << 20) as (one, other):
            one.averages()
            other.averages()
            await world.over(one, other)
            store = one.service.store
            await anyio.sleep(59.0)
            with pytest.raises(StorageError, match=r"swarm\.store_bytes"):
                store.put(bytes(7 << 19))
            assert store.has(one.reply.theirs.blob)
            await anyio.sleep(2.0)
            store.put(bytes(7 << 19))
            assert not store.has(one.reply.theirs.blob)

    world.play(story)


def test_a_second_request_while_one_runs_is_refused_and_the_first_is_not_disturbed(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, other):
            one.averages()
            await anyio.sleep(1.0)
            assert (await one.status()).running
            refused = await one.service.answer(one.request())
            assert isinstance(refused, api.RequestRefused)
            assert refused.reason == "busy"
            other.averages()
            await world.over(one, other)
            assert one.averaged and other.averaged

    world.play(story)


def test_what_nobody_should_be_shown_is_refused_to_our_own_learner(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(1) as (one,):
            good = one.blob
            for changes, error, named in (
                ({"layout": bytes(16)}, MalformedError, bytes(16).hex()),
                ({"encoding": "morse"}, MalformedError, "morse"),
                ({"blob": bytes(32)}, StorageError, bytes(32).hex()),
                ({"size": 1 << 30}, StorageError, r"swarm\.store_bytes"),
            ):
                with pytest.raises(error, match=named):
                    await one.average(**changes)
            spoilt = world.values(good)
            spoilt[7] = float("nan")
            one.blob = world.blob_of(spoilt)
            with pytest.raises(MalformedError, match="matrix"):
                await one.average()
            one.blob = good
            assert not (await one.status()).running
            assert (await one.average(deadline_seconds=1.0)).partner is None

    world.play(story)


def test_a_learner_that_goes_away_leaves_its_partner_to_find_another_and_may_come_back(world: Any) -> None:
    async def story() -> None:
        world.network.set_bandwidth(100_000.0)
        async with world.nodes(3) as (one, leaving, other):
            before = leaving.blob
            one.averages()
            with anyio.move_on_after(3.0):
                await leaving.average()
            assert leaving.blob == before
            assert not (await leaving.status()).running
            other.averages()
            await world.over(one, other)
            assert one.reply.partner == other.peer
            leaving.averages(deadline_seconds=5.0)
            await world.over(leaving)
            assert leaving.reply.partner is None

    world.play(story)


def test_two_strangers_neither_of_which_would_ask_the_other_meet_at_a_third(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(8) as nodes:
            *_, one, other = nodes
            for node, stranger in ((one, other), (other, one)):
                averaging = node.service._averaging
                averaging._is_dialled = lambda peer, stranger=stranger: peer != stranger.peer
                averaging._connected_seconds = lambda peer: 0.0  # none is drawn by lot
            one.averages(deadline_seconds=20.0)
            other.averages(deadline_seconds=20.0)
            await world.over(one, other)
            assert one.averaged and other.averaged
            assert one.reply.partner == other.peer

    world.play(story)
