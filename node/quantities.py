"""Sizes and times as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def size(amount_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if amount_bytes < 1000:
            return f"{amount_bytes:.0f} {unit}" if unit == "B" else f"{amount_bytes:.1f} {unit}"
        amount_bytes /= 1000
    return f"{amount_bytes:.1f} GB"
