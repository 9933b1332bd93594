"""Deaths, cuts and full disks at any moment: a learner's weights are exactly the old ones or exactly the new."""

from __future__ import annotations

import errno
import hashlib
from typing import Any

import anyio
import pytest

from swarm.blobs.partial_blob import PartialBlob

SLOW_BYTES_PER_SECOND = 200_000.0  # a blob of 600 kB takes three seconds


def digest(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def test_a_partner_that_died_before_is_not_waited_for(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(3) as (one, dead, other):
            world.network.crash(dead.host)
            other.averages()
            one.averages()
            await world.over(one, other)
            assert one.reply.partner == other.peer
            assert one.reply.seconds < 30.0

    world.play(story)


def test_a_partner_that_dies_in_the_middle_is_replaced_by_another_that_comes_later(world: Any) -> None:
    async def story() -> None:
        world.network.set_bandwidth(SLOW_BYTES_PER_SECOND)
        async with world.nodes(3) as (one, dying, other):
            before, others = one.blob, other.blob
            dying.averages()
            one.averages()
            await anyio.sleep(2.0)
            world.network.crash(dying.host)
            await anyio.sleep(1.0)
            assert digest(one.blob) == digest(before)
            other.averages()
            await world.over(one, other)
            assert one.reply.partner == other.peer
            assert digest(one.blob) == digest(world.formula(before, others))
            status = await one.status()
            assert status.exchanges["committed"] == 1
            assert set(status.exchanges) <= {"committed", "lost", "not_fetched"}

    world.play(story)


def test_a_partner_that_dies_at_any_moment_leaves_the_old_weights_or_the_new(world: Any) -> None:
    committed = []

    async def story(world: Any, after_seconds: float) -> None:
        world.network.set_bandwidth(2 * SLOW_BYTES_PER_SECOND)
        async with world.nodes(2) as (one, dying):
            old, new = digest(one.blob), digest(world.formula(one.blob, dying.blob))
            dying.averages()
            one.averages(deadline_seconds=10.0)
            await anyio.sleep(after_seconds)
            world.network.crash(dying.host)
            await world.over(one)
            assert digest(one.blob) == (new if one.averaged else old)
            assert not (await one.status()).running
            committed.append(one.averaged)

    for moment in range(16):

        async def at_moment(moment: int = moment) -> None:
            await story(world.again(str(moment)), 0.25 * moment)

        world.play(at_moment)
    assert not committed[0]
    assert committed[-1]


def test_a_cut_that_heals_splits_no_pair(world: Any) -> None:
    async def story(world: Any, after_seconds: float) -> None:
        world.network.set_bandwidth(2 * SLOW_BYTES_PER_SECOND)
        async with world.nodes(2) as (one, other):
            old = digest(one.blob), digest(other.blob)
            new = digest(world.formula(one.blob, other.blob)), digest(world.formula(other.blob, one.blob))
            other.averages(deadline_seconds=10.0)
            one.averages(deadline_seconds=10.0)
            await anyio.sleep(after_seconds)
            world.network.partition([one.host], [other.host])
            await anyio.sleep(5.0)
            world.network.heal()
            await world.over(one, other)
            assert (digest(one.blob), digest(other.blob)) in (old, new)
            assert one.averaged == other.averaged

    for moment in range(12):

        async def at_moment(moment: int = moment) -> None:
            await story(world.again(str(moment)), 0.3 * moment)

        world.play(at_moment)


@pytest.mark.parametrize("moment", ["before the first chunk", "in the middle", "at the end"])
def test_a_disk_that_is_full_abandons_the_exchange_on_both_sides_and_the_next_one_may_succeed(
    world: Any, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_after_two(partial: PartialBlob, *arguments: Any) -> bool:
        nonlocal written
        written += 1
        if written > 2:
            full()
        return whole_write(partial, *arguments)

    whole_write = PartialBlob.write
    fault = {
        "before the first chunk": ("_make_files", full),
        "in the middle": ("write", full_after_two),
        "at the end": ("publish", full),
    }[moment]

    async def story() -> None:
        async with world.nodes(2) as (one, other):
            before = digest(one.blob), digest(other.blob)
            with monkeypatch.context() as disk:
                disk.setattr(PartialBlob, *fault)
                one.averages(deadline_seconds=5.0)
                other.averages(deadline_seconds=5.0)
                await world.over(one, other)
            assert not one.averaged and not other.averaged
            assert (digest(one.blob), digest(other.blob)) == before
            outcomes = (await one.status()).exchanges | (await other.status()).exchanges
            assert outcomes["not_fetched"] == 1
            assert "free space" in one.reply.because + other.reply.because
            assert min((await one.sees(other)).reputation, (await other.sees(one)).reputation) >= 0.5
            one.averages()
            other.averages()
            await world.over(one, other)
            assert one.averaged and other.averaged

    world.play(story)


def test_a_store_too_small_for_their_weights_abandons_and_says_what_to_raise(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2, store_bytes=3 << 20) as (one, other):
            one.service.store.put(bytes(2 << 20))
            one.averages(deadline_seconds=5.0)
            other.averages(deadline_seconds=5.0)
            await world.over(one, other)
            assert not one.averaged and not other.averaged
            assert "swarm.store_bytes" in one.reply.because

    world.play(story)
