"""Exchanges of compressed weights: their result; a hostile blob is refused, costs reputation and changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest

from protocol.weights.compressed_weights import ENCODING, decode_compressed, encode_compressed
from protocol.weights.sparse_update import PLAIN, TensorSection, encode_update, join_update, pack_section
from protocol.weights.sparsify import SparseTensor, scatter_mean, sparsify
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_slice import WeightSlice, quantise_slice, slice_differences, slice_elements
from swarm.averaging.norm_history import FAR

LAYOUT = TensorLayout.of({"bias": (7,), "matrix": (500, 600)})
OUTER = [np.random.default_rng(0).standard_normal(size).astype(np.float32) for size in LAYOUT.sizes]  # φ of all
DEADLINE_SECONDS = 5.0


def digest(state: bytes) -> str:
    return hashlib.sha256(state).hexdigest()


def update_of(seed: int, scale: float = 0.1, kept: int = 64) -> list[SparseTensor]:
    random = np.random.default_rng(seed)
    learnt = [np.float32(scale) * random.standard_normal(size, np.float32) for size in LAYOUT.sizes]
    return [sparsify(np.zeros_like(change), change, decay=1.0, kept=kept) for change in learnt]


def slice_of(step: float = 0.05, stride: int = 18) -> WeightSlice:
    return quantise_slice(LAYOUT, OUTER, np.full(2, step, np.float32), stride=stride, phase=5, bits=3)


def offer(seed: int, scale: float = 0.1, kept: int = 64) -> bytes:
    return encode_compressed(LAYOUT, encode_update(LAYOUT, update_of(seed, scale, kept)), slice_of())


def averaged(ours: bytes, theirs: bytes, weight: float) -> bytes:
    """φ after an outer step with both blobs."""
    own, other = decode_compressed(ours, LAYOUT), decode_compressed(theirs, LAYOUT)
    away = slice_differences(LAYOUT, other.part, OUTER)
    where = slice_elements(LAYOUT, other.part.stride, other.part.phase)
    after = []
    for index, outer in enumerate(OUTER):
        moved = outer + scatter_mean([own.update[index], other.update[index]])
        moved[where[index]] += np.float32(weight / 2) * away[index]
        after.append(moved.tobytes())
    return b"".join(after)


def spoilt(change: Callable[[list[TensorSection]], list[TensorSection]]) -> bytes:
    sections = change([pack_section(tensor) for tensor in update_of(1)])
    return encode_compressed(LAYOUT, join_update(LAYOUT, 64, sections), slice_of())


def of_another_layout() -> bytes:
    other = TensorLayout.of({"bias": (9,), "matrix": (500, 600)})
    zeros = [np.zeros(size, np.float32) for size in other.sizes]
    update = [sparsify(tensor.copy(), tensor, decay=1.0, kept=64) for tensor in zeros]
    part = quantise_slice(other, zeros, np.full(2, 0.05, np.float32), stride=18, phase=5, bits=3)
    return encode_compressed(other, encode_update(other, update), part)


def with_codebook(value: float) -> bytes:
    book = np.array([0.0, value, 0.0, 0.0], np.float32)
    return spoilt(lambda s: [s[0], TensorSection(s[1].coding, s[1].index_bytes, book, s[1].content)])


def with_an_index_outside() -> bytes:
    """The last chunk of "matrix" has 992 elements; its last index says 4095."""

    def change(sections: list[TensorSection]) -> list[TensorSection]:
        sent = update_of(1)[1]
        indices = sent.indices.copy()
        indices[-1] = 4095
        pairs = indices.astype(np.uint32).reshape(-1, 2)
        low, high = pairs[:, 0], pairs[:, 1]
        packed = np.stack([low & 255, low >> 8 | (high & 15) << 4, high >> 4], axis=1).astype(np.uint8).tobytes()
        codes = bytes(sections[1].content[sections[1].index_bytes :])
        return [sections[0], TensorSection(PLAIN, len(packed), sections[1].codebook, packed + codes)]

    return spoilt(change)


def with_step(step: float) -> bytes:
    good = slice_of()
    steps = np.array([0.05, step], np.float32)
    part = WeightSlice(good.stride, good.phase, good.bits, steps, good.codes)
    return encode_compressed(LAYOUT, encode_update(LAYOUT, update_of(1)), part)


UNFIT: dict[str, tuple[Callable[[], bytes], str]] = {
    "another layout": (of_another_layout, "for tensors of layout"),
    "a codebook that is not a number": (lambda: with_codebook(float("nan")), "a codebook with a value that is not"),
    "an infinite codebook": (lambda: with_codebook(float("inf")), "a codebook with a value that is not"),
    "an enormous codebook": (lambda: with_codebook(70_000.0), "a codebook with a value that is not"),
    "an index out of range": (with_an_index_outside, "or lie outside it"),
    "a step of zero": (lambda: with_step(0.0), "a step outside"),
    "an infinite step": (lambda: with_step(float("inf")), "a step outside"),
    "a step that is not a number": (lambda: with_step(float("nan")), "a step outside"),
    "cut short": (lambda: offer(1)[:-1], "sections of"),
    "bytes behind": (lambda: offer(1) + b"\0", "sections of"),
    "everything sent": (lambda: offer(1, kept=4096), "bytes for a layout of"),
    "something else": (lambda: bytes(10_000), "begins with 00000000"),
}


def test_two_average_in_one_exchange_and_both_show_how(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2, averaged=averaged) as (one, other):
            one.blob, other.blob = offer(1), offer(2)
            ours, theirs = one.blob, other.blob
            one.averages(encoding=ENCODING)
            other.averages(encoding=ENCODING)
            await world.over(one, other)
            assert (one.reply.partner, other.reply.partner) == (other.peer, one.peer)
            assert one.blob == averaged(ours, theirs, 1.0) and other.blob == averaged(theirs, ours, 1.0)
            last = (await one.status()).last
            assert (last.encoding, last.committed) == (ENCODING, True)
            assert (last.sent_bytes, last.received_bytes) == (len(ours), len(theirs))
            assert (await one.sees(other)).last_exchange == last

    world.play(story)


@pytest.mark.parametrize("kind", UNFIT)
def test_an_unfit_blob_is_refused_leaves_ours_as_it_was_and_costs_its_sender(world: Any, kind: str) -> None:
    make, because = UNFIT[kind]

    async def story() -> None:
        async with world.nodes(2, dishonest=(1,), averaged=averaged) as (one, liar):
            one.blob, liar.blob = offer(3), make()
            before = digest(one.blob)
            liar.averages(encoding=ENCODING, deadline_seconds=DEADLINE_SECONDS)
            one.averages(encoding=ENCODING, deadline_seconds=DEADLINE_SECONDS)
            await world.over(one, liar)
            assert not one.averaged and not liar.averaged
            assert digest(one.blob) == before
            assert because in one.reply.because
            assert (await one.status()).exchanges == {"unfit": 1}
            assert (await one.sees(liar)).reputation < 0.2
            assert one.host.traffic().received_bytes < 100_000

    world.play(story)


def test_an_update_far_longer_than_ours_is_an_outlier(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2, dishonest=(1,), averaged=averaged) as (one, liar):
            one.blob, liar.blob = offer(3), offer(1, scale=0.2 * FAR)
            liar.averages(encoding=ENCODING, deadline_seconds=DEADLINE_SECONDS)
            one.averages(encoding=ENCODING, deadline_seconds=DEADLINE_SECONDS)
            await world.over(one, liar)
            assert not one.averaged
            assert (await one.status()).exchanges == {"outlier": 1}

    world.play(story)


def test_peers_with_unlike_encodings_decline_and_neither_is_blamed(world: Any) -> None:
    async def story() -> None:
        async with world.nodes(2, averaged=averaged) as (one, other):
            one.blob = offer(1)
            one.averages(encoding=ENCODING, deadline_seconds=DEADLINE_SECONDS)
            other.averages(deadline_seconds=DEADLINE_SECONDS)
            await world.over(one, other)
            assert not one.averaged and not other.averaged
            assert "other_encoding" in one.reply.because + other.reply.because
            assert (await one.sees(other)).reputation == (await other.sees(one)).reputation == 0.5

    world.play(story)


def test_a_partner_that_dies_at_any_moment_leaves_the_old_state_or_the_new(world: Any) -> None:
    committed = []

    async def story(world: Any, after_seconds: float) -> None:
        world.network.set_bandwidth(20_000.0)
        async with world.nodes(2, averaged=averaged) as (one, dying):
            one.blob, dying.blob = offer(1), offer(2)
            old, new = digest(one.blob), digest(averaged(one.blob, dying.blob, 1.0))
            dying.averages(encoding=ENCODING)
            one.averages(encoding=ENCODING, deadline_seconds=10.0)
            await anyio.sleep(after_seconds)
            world.network.crash(dying.host)
            await world.over(one)
            assert digest(one.blob) == (new if one.averaged else old)
            committed.append(one.averaged)

    for moment in range(10):

        async def at_moment(moment: int = moment) -> None:
            await story(world.again(str(moment)), 0.25 * moment)

        world.play(at_moment)
    assert not committed[0]
    assert committed[-1]
