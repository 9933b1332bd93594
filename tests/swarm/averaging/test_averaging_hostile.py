"""Weights that must not be used are refused before anything is committed, and cost their sender reputation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest

from protocol.weights.dense_weights import dense_bytes, encode_dense
from protocol.weights.tensor_layout import TensorLayout
from swarm.averaging.norm_history import FAR, WARM_UP


def spoilt(world: Any, value: float) -> bytes:
    values = world.values(world.weights(1))
    values[12_345] = value
    return world.blob_of(values)


def of_another_layout(world: Any) -> bytes:
    layout = TensorLayout.of({"bias": (9,), "matrix": (500, 600)})
    return encode_dense(layout, [np.zeros(size, np.uint16) for size in layout.sizes])


def with_bytes_behind(world: Any) -> bytes:
    return world.weights(1) + bytes(1 << 20)


def with_few_bytes(world: Any) -> bytes:
    return world.weights(1)[:-2]


UNFIT: dict[str, tuple[Callable[[Any], bytes], str]] = {
    "not a number": (lambda world: spoilt(world, float("nan")), "matrix has a value that is not finite"),
    "infinite": (lambda world: spoilt(world, float("-inf")), "matrix has a value that is not finite"),
    "enormous": (lambda world: spoilt(world, 70_000.0), "not finite or above 65536"),
    "another layout": (of_another_layout, "bytes for a layout of"),
    "too long": (with_bytes_behind, "bytes for a layout of"),
    "too short": (with_few_bytes, "bytes in all"),
    "something else": (lambda world: bytes(1000), "begins with 00000000"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_unfit_weights_are_refused_leave_ours_as_they_were_and_cost_their_sender(world: Any, kind: str) -> None:
    make, because = UNFIT[kind]

    async def story() -> None:
        async with world.nodes(2, dishonest=(1,)) as (one, liar):
            before = one.blob
            liar.blob = make(world)
            liar.averages(deadline_seconds=5.0)
            one.averages(deadline_seconds=5.0)
            await world.over(one, liar)
            assert not one.averaged
            assert not liar.averaged
            assert one.blob == before
            assert because in one.reply.because
            assert (await one.status()).exchanges == {"unfit": 1}
            assert (await liar.status()).exchanges == {"by_the_partner": 1}
            seen = await one.sees(liar)
            assert seen.reputation < 0.2
            assert (seen.exchanges_committed, seen.exchanges_abandoned) == (0, 1)
            assert because in seen.last_exchange.because
            assert one.host.traffic().received_bytes < 1.5 * dense_bytes(world.layout)

    world.play(story)


def test_who_serves_unfit_weights_again_and_again_is_banned_and_asked_no_more(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2, dishonest=(1,)) as (one, liar):
            liar.blob = spoilt(world, float("nan"))
            for _ in range(3):
                liar.averages(deadline_seconds=5.0)
                one.averages(deadline_seconds=5.0)
                await world.over(one, liar)
                await anyio.sleep(100.0)  # a peer that failed is not asked again at once
            seen = await one.sees(liar)
            assert seen.banned_because is not None and seen.conduct["unfit_weights"] == 3
            one.averages(deadline_seconds=5.0)
            await world.over(one)
            assert "×" not in one.reply.because  # no peer was asked
            assert (await one.status()).exchanges == {"unfit": 3}

    world.play(story)


def test_bytes_that_do_not_match_their_hash_are_not_averaged_with(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, liar):
            before, theirs = one.blob, liar.blob
            stored = liar.service.store.put(theirs)
            liar.averages(deadline_seconds=5.0)
            await anyio.sleep(1.0)
            # Its own check has passed; from now on it serves something else.
            liar.service.store.path(stored).write_bytes(theirs[:-1] + bytes([theirs[-1] ^ 1]))
            one.averages(deadline_seconds=5.0)
            await world.over(one, liar)
            assert not one.averaged and not liar.averaged
            assert one.blob == before
            assert (await one.status()).exchanges == {"not_fetched": 1}
            assert (await one.sees(liar)).reputation < 0.5

    world.play(story)


def test_a_strangers_first_weights_may_not_be_of_any_size(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2, dishonest=(1,)) as (one, liar):
            before = one.blob
            liar.blob = world.blob_of(2.0 * FAR * world.values(liar.blob))
            liar.averages(deadline_seconds=5.0)
            one.averages(deadline_seconds=5.0)
            await world.over(one, liar)
            assert not one.averaged
            assert one.blob == before
            assert (await one.status()).exchanges == {"outlier": 1}
            assert 0.3 < (await one.sees(liar)).reputation < 0.5

    world.play(story)


def test_an_outlier_among_a_familys_differences_is_refused_before_the_commit_and_costs_reputation(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2, dishonest=(1,)) as (one, other):
            first = one.blob
            for number in range(WARM_UP):
                one.blob, other.blob = first, world.weights(100 + number)
                one.averages()
                other.averages()
                await world.over(one, other)
                assert one.averaged
            before = (await one.sees(other)).reputation
            one.blob, other.blob = first, world.weights(50, spread=0.5)
            one.averages(deadline_seconds=5.0)
            other.averages(deadline_seconds=5.0)
            await world.over(one, other)
            assert not one.averaged and not other.averaged
            assert one.blob == first
            assert (await one.status()).exchanges == {"committed": WARM_UP, "outlier": 1}
            assert (await one.sees(other)).reputation < before
            assert (await one.sees(other)).banned_because is None

    world.play(story)


def test_a_difference_longer_than_usual_counts_for_as_much_as_a_usual_one(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2, dishonest=(1,)) as (one, other):
            first = one.blob
            for number in range(WARM_UP):
                one.blob, other.blob = first, world.weights(100 + number)
                one.averages()
                other.averages()
                await world.over(one, other)
                assert one.reply.weight == 1.0
            usual = np.linalg.norm(world.values(world.weights(100)) - world.values(first))
            one.blob, other.blob = first, world.weights(50, spread=0.15)
            one.averages()
            other.averages()
            await world.over(one, other)
            length = np.linalg.norm(world.values(other_blob := world.weights(50, spread=0.15)) - world.values(first))
            assert one.averaged
            assert one.reply.weight * length == pytest.approx(1.25 * usual, rel=0.02)
            assert one.blob == world.formula(first, other_blob, one.reply.weight)

    world.play(story)


def test_a_peer_that_did_harm_is_neither_asked_nor_accepted(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, harmful):
            one.known = msgspec.structs.replace(one.known, avoided=(harmful.peer,))
            one.averages(deadline_seconds=20.0)
            harmful.averages(deadline_seconds=20.0)
            await world.over(one, harmful)
            assert not one.averaged and not harmful.averaged
            assert "×" not in one.reply.because

    world.play(story)


def test_before_distances_are_known_first_weights_count_as_far_as_we_have_learnt(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2) as (one, stranger):
            length = np.linalg.norm(world.values(stranger.blob) - world.values(one.blob))
            one.known = msgspec.structs.replace(one.known, learnt=length / 20.0)
            one.averages()
            stranger.averages()
            await world.over(one, stranger)
            assert one.reply.weight == pytest.approx(0.1, rel=0.01)
            assert len(one.reply.past.norms.norms) == 1

    world.play(story)


def test_nobody_else_is_asked_for_weights_that_their_owner_does_not_serve(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(6) as (one, silent, *others):
            stored = silent.service.store.put(silent.blob)
            silent.averages(deadline_seconds=5.0)
            await anyio.sleep(1.0)
            silent.service.store.path(stored).unlink()
            one.averages(deadline_seconds=5.0)
            await world.over(one, silent)
            assert not one.averaged
            assert "not_fetched" in one.reply.because and silent.peer in one.reply.because
            assert not any(other.peer in one.reply.because for other in others)

    world.play(story)
