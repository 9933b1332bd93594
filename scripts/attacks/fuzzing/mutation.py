"""Sound bytes with damage: flips, cuts, splices, repeats, other lengths and other types, drawn from a seeded source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

MAX_BYTES = 256 * 1024  # repeats and splices make an input no longer than this
_MARKERS = bytes(
    [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, *range(0xC0, 0xE0), 0xFF]
)  # first bytes of MessagePack
_LENGTHS = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1)

Mutation = Callable[[bytearray, int, Random, Sequence[bytes]], None]


def mutated(random: Random, originals: Sequence[bytes]) -> bytes:
    """Returns one of ``originals`` after one to four mutations."""
    raw = bytearray(random.choice(originals))
    for _ in range(1 + (random.getrandbits(2) & random.getrandbits(2))):
        place = int(random.random() * (len(raw) + 1))
        _MUTATIONS[int(random.random() * len(_MUTATIONS))](raw, place, random, originals)
    return bytes(raw[:MAX_BYTES])


def _flip(raw: bytearray, place: int, random: Random, originals: Sequence[bytes]) -> None:
    if place < len(raw):
        raw[place] ^= 1 << random.getrandbits(3)


def _other_byte(raw: bytearray, place: int, random: Random, originals: Sequence[bytes]) -> None:
    if place < len(raw):
        raw[place] = random.getrandbits(8)


def _other_type(raw: bytearray, place: int, random: Random, originals: Sequence[bytes]) -> None:
    if place < len(raw):
        raw[place] = random.choice(_MARKERS)


def _other_length(raw: bytearray, place: int, random: Random, originals: Sequence[bytes]) -> None:
    width = random.choice((1, 2, 4, 8))
    length = random.choice(_LENGTHS) & (1 << 8 * width) - 1
    raw[place : place + width] = length.to_bytes(width, random.choice(("big", "little")))


def _cut(raw: bytearray, place: int, random: Random, originals: Sequence[bytes]) -> None:
    del raw[place:]


def _remove(raw: bytearray, place: int, random: Random, originals: Sequence[bytes]) -> None:
    del raw[place : place + 1 + random.getrandbits(4)]


def _insert(raw: bytearray, place: int, random: Random, originals: Sequence[bytes]) -> None:
    raw[place:place] = random.randbytes(1 + random.getrandbits(3))


def _splice(raw: bytearray, place: int, random: Random, originals: Sequence[bytes]) -> None:
    other = random.choice(originals)
    raw[place:] = other[int(random.random() * (len(other) + 1)) :]


def _repeat(raw: bytearray, place: int, random: Random, originals: Sequence[bytes]) -> None:
    section = raw[place : place + 1 + random.getrandbits(6)]
    raw[place:place] = section * (1 + random.getrandbits(random.choice((1, 3, 6, 10))))


_MUTATIONS: Sequence[Mutation] = (
    _flip, _flip, _other_byte, _other_type, _other_type, _other_length, _other_length, _cut, _remove, _insert, _splice,
    _repeat,
)  # fmt: skip
