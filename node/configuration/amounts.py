"""Amounts as people write them: "6 GB", "10 Mbit/s", "2h". Each function raises ``ValueError`` with an example."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_SIZES: Final[Mapping[str, int]] = {
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_BITS: Final[Mapping[str, int]] = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_SECONDS: Final[Mapping[str, int]] = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_SIZE: Final = re.compile(rf"{_NUMBER}\s*([KMGT]i?B?|B?)", re.IGNORECASE)
_BYTE_RATE: Final = re.compile(rf"{_NUMBER}\s*([KMG]i?B)(?:/s|ps)", re.IGNORECASE)
_BIT_RATE: Final = re.compile(rf"{_NUMBER}\s*([KMG]?bit)(?:/s|ps)", re.IGNORECASE)
_SPANS: Final = re.compile(rf"(?:{_NUMBER}\s*(?:sec|min|[smhd])\s*)+")
_SPAN: Final = re.compile(rf"{_NUMBER}\s*(sec|min|[smhd])")
_MBPS: Final = re.compile(r"([kmg])bps", re.IGNORECASE)  # always bits


def size_bytes(text: str) -> int:
    """Returns the bytes of "6 GB" (decimal), "6 GiB", or a number of bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'{text!r} is no amount of memory: write "6 GB" or "6 GiB"')
    unit = found[2].lower().removesuffix("b")
    return round(float(found[1]) * (_SIZES[f"{unit}b"] if unit else 1))


def bytes_per_second(text: str) -> float:
    """Returns the bytes a second of "10 Mbit/s", "10 Mbps" (bits both) or "1.5 MB/s" (bytes)."""
    stripped = _MBPS.sub(r"\1bit/s", text.strip())
    if found := _BIT_RATE.fullmatch(stripped):
        return _positive(text, float(found[1]) * _BITS[found[2].lower()] / 8)
    if found := _BYTE_RATE.fullmatch(stripped):
        return _positive(text, float(found[1]) * _SIZES[found[2].lower()])
    raise ValueError(f'{text!r} is no bandwidth: write "10 Mbit/s" or "1.5 MB/s"')


def span_seconds(text: str) -> float:
    """Returns the seconds of "2h", "90 min", "1h 30min", "1d"."""
    stripped = text.strip().lower()
    if not _SPANS.fullmatch(stripped):
        raise ValueError(f'{text!r} is no time span: write "2h", "90min" or "1h30min"')
    return _positive(text, sum(float(number) * _SECONDS[unit] for number, unit in _SPAN.findall(stripped)))


def _positive(text: str, amount: float) -> float:
    if amount <= 0:
        raise ValueError(f"{text!r} is nothing: write an amount above zero, or leave the key empty for no limit")
    return amount
