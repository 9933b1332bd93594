"""A token bucket: ``rate`` per second on average, ``burst`` at once. The caller passes the time in."""

from __future__ import annotations


class TokenBucket:
    """Starts full. ``take`` never grants an amount above ``burst``; ``reserve`` grants any, later."""

    __slots__ = ("_at_seconds", "_level", "burst", "rate")

    def __init__(self, rate: float, burst: float, *, now_seconds: float) -> None:
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._at_seconds = now_seconds

    def take(self, amount: float, *, now_seconds: float) -> bool:
        """Takes ``amount`` if it is there; returns whether it was."""
        self._refill(now_seconds)
        if self._level < amount:
            return False
        self._level -= amount
        return True

    def has(self, amount: float, *, now_seconds: float) -> bool:
        """Whether ``amount`` could be taken."""
        self._refill(now_seconds)
        return self._level >= amount

    def reserve(self, amount: float, *, now_seconds: float) -> float:
        """Takes ``amount`` even if it is not there yet; returns the seconds until it will be."""
        self._refill(now_seconds)
        self._level -= amount
        return max(0.0, -self._level / self.rate)

    def _refill(self, now_seconds: float) -> None:
        elapsed_seconds = max(0.0, now_seconds - self._at_seconds)
        self._level = min(self.burst, self._level + elapsed_seconds * self.rate)
        self._at_seconds = max(self._at_seconds, now_seconds)
