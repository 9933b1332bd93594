"""Values at the bounds of their types: what msgspec's schema of a message allows, and seldom anybody sends.

``Extremes`` walks the schema of a message. It draws numbers at their bounds and beside them, the longest and the
emptiest texts, texts that do not show, tuples that are empty, full or of equal entries, and ids of one repeated byte.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

from protocol import limits
from protocol.messages import CATCHING_UP, GroupAdvert, PromptRef

Override = Callable[["Extremes"], Any]
_TEXTS = (
    "", "\0", "a", "\x1b[31m", "<script>alert(1)</script>", "\u202e", "\u200b", "𝕏", "e\u0301", "\U0010ffff", "ﷺ", "\n",
    '"', "\\", "'", "%s", "{}", "__proto__", "NaN", "\ufeff", "\ud7ff", "٣", "/p2p/", CATCHING_UP,
    "chain_sum", "others",
)  # fmt: skip
_FLOATS = (0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 1.0, 1 - 2**-53, 1 + 2**-52, 0.1, 1e-300, -1e-300)


class Extremes:
    """Draws values. ``fullness``, 0 to 1: the most entries of a tuple, and the length of a text, of what is legal."""

    def __init__(self, random: Random, fullness: float) -> None:
        self.random, self.fullness = random, fullness

    def of(self, kind: type) -> Any:
        """Returns a value that the schema of ``kind`` allows."""
        return self._value(_schema(kind))

    def text(self, most: int, least: int = 0) -> str:
        most = max(least, int(most * self.fullness))
        piece = self.random.choice(_TEXTS) or "x" * least
        if self.random.random() < 0.5 or not piece:
            return piece[:most]
        return (piece * (most // len(piece) + 1))[:most]

    def raw(self, least: int, most: int) -> bytes:
        most = max(least, int(most * self.fullness))
        length = self.random.choice((least, most))
        return self.random.choice((b"\0", b"\xff", b"\x01", self.random.randbytes(1))) * length

    def number(self, least: float, most: float) -> float:
        """Returns a bound, its neighbour, or a number that is hard to add up."""
        near = (least, most, math.nextafter(least, math.inf), math.nextafter(most, -math.inf))
        value = self.random.choice((*near, *_FLOATS))
        return float(value) if least <= value <= most else float(least)

    def integer(self, least: int, most: int) -> int:
        value = self.random.choice((least, most, least + 1, most - 1, 0, 1, 2**31, 2**53 + 1, (least + most) // 2))
        return value if least <= value <= most else most

    def entries(self, least: int, most: int, make: Callable[[], Any]) -> tuple[Any, ...]:
        """Returns a tuple of the least, of few or of many entries; they are equal in one case of three."""
        many = max(least, int(most * self.fullness))
        count = self.random.choice((least, min(least + 1, many), many))
        return (make(),) * count if self.random.random() < 0.34 else tuple(make() for _ in range(count))

    def _value(self, schema: inspect.Type) -> Any:
        random = self.random
        match schema:
            case inspect.StructType():
                if schema.cls in OVERRIDES:
                    return OVERRIDES[schema.cls](self)
                return schema.cls(*(self._value(field.type) for field in schema.fields))
            case inspect.UnionType():
                return self._value(random.choice(schema.types))
            case inspect.IntType():
                return self.integer(schema.ge if schema.ge is not None else 0, _most(schema))
            case inspect.FloatType():
                assert schema.ge is not None and schema.le is not None, "a number of a message has bounds"
                return self.number(schema.ge, schema.le)
            case inspect.BoolType():
                return random.random() < 0.5
            case inspect.NoneType():
                return None
            case inspect.StrType():
                assert schema.max_length is not None, "a text of a message has a bound"
                return self.text(schema.max_length, schema.min_length or 0)
            case inspect.BytesType():
                return self.raw(
                    schema.min_length or 0,
                    limits.TENSOR_HEADER_BYTES if schema.max_length is None else schema.max_length,
                )
            case inspect.VarTupleType():
                most = limits.RANGES_PER_REQUEST if schema.max_length is None else schema.max_length
                return self.entries(schema.min_length or 0, most, lambda: self._value(schema.item_type))
            case inspect.TupleType():
                return tuple(self._value(each) for each in schema.item_types)
            case inspect.EnumType():
                return random.choice(list(schema.cls))
            case inspect.LiteralType():
                return random.choice(schema.values)
        raise TypeError(f"nothing is known of {schema}")


def encoded(random: Random, kind: type, max_bytes: int) -> bytes:
    """Returns a message of at most ``max_bytes``, in MessagePack; one in sixteen is as full as that allows."""
    fullness = 1.0 if random.getrandbits(4) == 0 else 0.02
    while True:
        raw = msgspec.msgpack.encode(Extremes(random, fullness).of(kind))
        if len(raw) <= max_bytes:
            return raw
        fullness *= min(0.9, 0.95 * max_bytes / len(raw))


def _most(schema: inspect.IntType) -> int:
    if schema.lt is not None:
        return int(schema.lt) - 1
    return 2**63 - 1 if schema.le is None else int(schema.le)


@cache
def _schema(kind: type) -> Any:
    return inspect.type_info(kind)


def _group_advert(draw: Extremes) -> GroupAdvert:
    count = draw.random.choice((1, 2, max(1, int(limits.COMPLETIONS_PER_GROUP * draw.fullness))))
    columns: Sequence[tuple[Any, ...]] = [
        draw.entries(count, count, make)
        for make in (
            lambda: draw.number(-limits.REWARD_MAGNITUDE, limits.REWARD_MAGNITUDE),
            lambda: draw.integer(0, limits.COMPLETION_TOKENS),
            lambda: draw.number(-1e4, 0.0),
        )
    ]
    size = draw.integer(1, limits.GROUP_BLOB_BYTES)
    return GroupAdvert(draw.raw(32, 32), size, draw.of(PromptRef), *columns)


def _prompt_ref(draw: Extremes) -> PromptRef:
    name = "chain_sum" if draw.random.random() < 0.5 else draw.text(limits.NAME_BYTES)
    return PromptRef(name, draw.random.choice((1, draw.integer(0, 2**31 - 1))), bytes(16), draw.integer(0, 2**63 - 1))


OVERRIDES: dict[type, Override] = {GroupAdvert: _group_advert, PromptRef: _prompt_ref}
"""Types whose fields must agree with each other, or with what a receiver knows."""
