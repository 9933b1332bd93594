"""Durations, sizes and counts as text for people."""

from __future__ import annotations

from datetime import datetime


def duration(seconds: float) -> str:
    """Returns hours and minutes, minutes and seconds, or seconds."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def size(amount_bytes: float) -> str:
    """Returns bytes in the largest decimal unit up to GB."""
    for unit in ("B", "kB", "MB"):
        if amount_bytes < 1000:
            return f"{amount_bytes:.0f} {unit}" if unit == "B" else f"{amount_bytes:.1f} {unit}"
        amount_bytes /= 1000
    return f"{amount_bytes:.1f} GB"


def local_time(at_seconds: float, now_seconds: float) -> str:
    """Returns a Unix time on this machine's clock, such as "07:00"; with the day where it is not within 20 hours."""
    at = datetime.fromtimestamp(at_seconds)
    is_near = abs(at_seconds - now_seconds) < 20 * 3600
    return f"{at:%H:%M}" if is_near else f"{at:%H:%M} on {at:%A, %Y-%m-%d}"


def weekday_time(at_seconds: float) -> str:
    """Returns a Unix time on this machine's clock, such as "Mon 21:04"."""
    return f"{datetime.fromtimestamp(at_seconds):%a %H:%M}"


def day_time(at_seconds: float) -> str:
    """Returns a Unix time on this machine's clock, such as "2026-11-23 21:04"."""
    return f"{datetime.fromtimestamp(at_seconds):%Y-%m-%d %H:%M}"


def times(count: int) -> str:
    """Returns "once" for 1, otherwise the count and "times"."""
    return "once" if count == 1 else f"{count:,} times"


def counted(count: int, noun: str) -> str:
    """Returns the count with its noun, such as "1 peer" or "2 peers"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def layer_span(first: int, last: int) -> str:
    """Returns the layers from ``first``, counted from 0, to before ``last`` as people count them: "layers 3 to 13"."""
    return f"layer {last}" if last == first + 1 else f"layers {first + 1} to {last}"
