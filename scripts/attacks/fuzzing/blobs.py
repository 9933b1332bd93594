"""Blobs that a node decodes: rollout groups, and the forms in which weights are sent."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import zstandard

from protocol import limits
from protocol.conversations import Action
from protocol.messages import PromptRef
from protocol.rollouts import (
    GROUP_MAGIC,
    Completion,
    FinishReason,
    Group,
    advert_of,
    check_against_advert,
    content_hash,
    decode_group,
    encode_group,
)
from protocol.weights.compressed_weights import decode_compressed
from protocol.weights.dense_weights import open_dense
from protocol.weights.sparse_update import (
    PLAIN,
    TensorSection,
    decode_update,
    join_update,
    open_update,
    pack_plain,
    unpack_section,
)
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_diff import (
    DENSE,
    DiffSection,
    Patterns,
    apply_diff,
    compress_planes,
    encode_diff,
    join_diff,
    open_diff,
    weights_hash,
)
from protocol.weights.weight_slice import slice_differences
from scripts.attacks.decompression import blobs as dense_groups
from scripts.attacks.fuzzing.extremes import Extremes
from scripts.attacks.fuzzing.mutation import mutated
from scripts.attacks.fuzzing.targets import Target, direct
from scripts.vectors.announcement_vectors import example_groups, refused_groups
from scripts.vectors.plain_values import Json
from scripts.vectors.tensor_vectors import compressed_weights, dense_weights, sparse_updates, weight_diffs

LARGEST = dense_groups()  # of every kind of group that takes much time or memory
_LENGTH = struct.Struct("<I")


def blob_targets() -> list[Target]:
    return [*_groups(), *_weights()]


def _groups() -> list[Target]:
    groups = list(example_groups().values())
    sound = [encode_group(group) for group in groups]
    refused = [bytes.fromhex(each["blob"]) for each in refused_groups()]
    contents = [zstandard.decompress(blob[len(GROUP_MAGIC) :]) for blob in sound]
    adverts = [advert_of(group, blob) for group, blob in zip(groups, sound, strict=True)]

    def opened(raw: bytes) -> None:
        group = decode_group(raw)
        content_hash(group)
        check_against_advert(group, adverts[len(raw) % len(adverts)])

    def of_content(content: bytes) -> object:
        blob = GROUP_MAGIC + zstandard.compress(content, 1)
        return lambda: opened(blob)

    return [
        Target("group", direct(opened), sound + refused, 12, extreme_group, 12),
        Target("content of a group", of_content, contents, 12),  # type: ignore[arg-type]
    ]


def extreme_group(random: Random) -> bytes:
    """A group within every bound; one in five hundred is of the largest that there are."""
    if random.random() < 0.002:
        return random.choice(list(LARGEST.values()))
    draw = Extremes(random, 1.0 if random.random() < 0.01 else 0.05)
    count = random.choice((1, 2, max(1, int(limits.COMPLETIONS_PER_GROUP * draw.fullness))))
    tokens = random.choice((0, 1, 3, int(200 * draw.fullness)))
    completions = tuple(_completion(draw, random.choice((0, tokens))) for _ in range(count))
    beginning = b""
    if all(len(each.token_ids) for each in completions) and random.random() < 0.5:
        most = limits.ACTIONS_PER_GROUP // count
        completions = tuple(_cut_into_actions(draw, each, min(most, limits.TURNS)) for each in completions)
        beginning = draw.raw(16, 16)
    of_policy = draw.raw(16, 16), draw.raw(16, 16), draw.integer(0, 2**63 - 1)
    return encode_group(Group(draw.of(PromptRef), *of_policy, completions, beginning))


def _cut_into_actions(draw: Extremes, completion: Completion, most: int) -> Completion:
    tokens = len(completion.token_ids)
    turns = draw.random.choice((1, min(2, tokens), min(most, tokens)))
    ends = [*sorted(draw.random.sample(range(1, tokens), turns - 1)), tokens]
    stops = [completion.token_bytes[end - 1] == 0 and draw.random.random() < 0.5 for end in ends[:-1]]
    stops.append(completion.finish is FinishReason.STOP)
    lengths = np.diff([0, *ends]).tolist()
    actions = (Action(length, stop, draw.raw(16, 16)) for length, stop in zip(lengths, stops, strict=True))
    return replace(completion, actions=tuple(actions))


def _completion(draw: Extremes, tokens: int) -> Completion:
    random = draw.random
    sizes = np.array([random.choice((0, 1, limits.TOKEN_TEXT_BYTES)) for _ in range(tokens)], np.int64)
    finish = FinishReason.LENGTH
    if tokens and sizes[-1] == 0:
        finish = random.choice(list(FinishReason))
    text = random.choice((b"\0", b"\xff", b"7", "й".encode(), b" \n$")) * int(sizes.sum() + 1)
    ids = np.array([draw.integer(0, limits.TOKEN_ID) for _ in range(tokens)], np.int64)
    logps = np.array([random.choice((-0.0, 0.0, -32.0, -1e30, -1e-30, -1.0)) for _ in range(tokens)], np.float32)
    reward = draw.number(-limits.REWARD_MAGNITUDE, limits.REWARD_MAGNITUDE)
    return Completion(text[: int(sizes.sum())], ids, sizes, logps, finish, float(np.float32(reward)))


def _layout(vector: Json) -> TensorLayout:
    return TensorLayout.of(dict(vector["layout"]))


def _weights() -> list[Target]:
    updates, compressed, diffs, dense = (
        [bytes.fromhex(vector["blob"]) for vector in vectors]
        for vectors in (sparse_updates(), compressed_weights(), weight_diffs(), dense_weights())
    )
    layout, dense_layout, diff_layout = (_layout(v()[0]) for v in (sparse_updates, dense_weights, weight_diffs))
    slice_layout = _layout(compressed_weights()[0])
    own = [np.linspace(-1, 1, size, dtype=np.float32) for size in slice_layout.sizes]
    base = [np.frombuffer(bytes.fromhex(tensor), "<u2").astype(np.uint16) for tensor in weight_diffs()[0]["base"]]
    sections = _DamagedDiffs(diff_layout, base)

    def plain(update: bytes) -> bytes:
        """The same update with each index in 12 bits, a coding that the shortest one seldom is."""
        kept, sections = open_update(update, layout)
        indices = [
            pack_plain(unpack_section(s, size, kept).indices) for s, size in zip(sections, layout.sizes, strict=True)
        ]
        as_plain = [
            TensorSection(PLAIN, len(plainly), s.codebook, plainly + bytes(s.content[s.index_bytes :]))
            for s, plainly in zip(sections, indices, strict=True)
        ]
        return join_update(layout, kept, as_plain)

    def averaged(raw: bytes) -> None:
        slice_differences(slice_layout, decode_compressed(raw, slice_layout).part, own)

    def applied(raw: bytes) -> object:
        weights = [tensor.copy() for tensor in base]
        return lambda: apply_diff(raw, diff_layout, weights)

    return [
        Target("sparse update", direct(partial(decode_update, layout=layout)), [*updates, *map(plain, updates)], 6),
        Target("compressed weights", direct(averaged), compressed, 6),
        Target("dense weights", direct(partial(open_dense, layout=dense_layout)), dense, 8),
        Target("weight diff", applied, diffs, 4, sections.make, 8),  # type: ignore[arg-type]
    ]


class _DamagedDiffs:
    """Diffs whose sections match their digests: wrong counts, codings and frames reach the decoder of a section."""

    def __init__(self, layout: TensorLayout, base: list[Patterns]) -> None:
        self._layout, self._base = layout, base
        target = [tensor.copy() for tensor in base]
        for tensor in target:
            tensor[:: max(1, len(tensor) // 40)] ^= 3
        self._sections = open_diff(encode_diff(layout, base, target), layout).sections
        self._hash = weights_hash(layout, base)

    def make(self, random: Random) -> bytes:
        sections = [self._changed(random, s) if random.random() < 0.5 else s for s in self._sections]
        return join_diff(self._layout, self._hash, bytes(32), sections)

    def _changed(self, random: Random, section: DiffSection) -> DiffSection:
        content = mutated(random, [bytes(section.content)])
        size = random.choice((0, 1, section.count, 2 * section.count, 2**31))
        frames = (
            content,
            content[: section.gap_bytes] + compress_planes(bytes(2 * section.count)),
            content[: section.gap_bytes] + b"\x50\x2a\x4d\x18" + _LENGTH.pack(size) + bytes(min(size, 99)),  # skippable
            b"",
        )
        count = random.choice((section.count, section.count + 1, 0, 1, 2**32 - 1))
        coding = random.choice((section.coding, DENSE, 0, 31, 255))
        return DiffSection(coding, count, random.choice((section.gap_bytes, 0, 1)), random.choice(frames))
