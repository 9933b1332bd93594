"""A token bucket: ``rate`` per second on average, ``burst`` at once. The caller passes the time in."""

from __future__ import annotations

from typing import Generic, TypeVar

from swarm.recent import Recent

Key = TypeVar("Key")


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


class TokenBuckets(Generic[Key]):
    """One bucket for each key, all alike. Of more than ``most``, the one used longest ago is forgotten."""

    def __init__(self, rate: float, burst: float, most: int) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: Recent[Key, TokenBucket] = Recent(most)

    def __len__(self) -> int:
        return len(self._buckets)

    def has(self, key: Key, amount: float = 1.0, *, now_seconds: float) -> bool:
        """Returns whether ``take`` would succeed now."""
        bucket = self._buckets.get(key)
        return bucket is None or bucket.has(amount, now_seconds=now_seconds)

    def take(self, key: Key, amount: float = 1.0, *, now_seconds: float) -> bool:
        """Takes ``amount`` from the bucket of ``key`` if it is there; returns whether it was."""
        bucket = self._buckets.get(key) or TokenBucket(self._rate, self._burst, now_seconds=now_seconds)
        self._buckets[key] = bucket
        return bucket.take(amount, now_seconds=now_seconds)
