"""The base of every event."""

from __future__ import annotations

from msgspec import Struct


class TimedEvent(Struct, frozen=True, kw_only=True, tag_field="event"):
    """What every event has."""

    time_seconds: float  # Unix time by our clock
