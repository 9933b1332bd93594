"""Limits on what all sockets of a host send and receive together, in bytes a second.

A write waits until its bytes may go; a read returns its bytes late, so that the sender's own flow control slows it
down. Both wait in the order in which they come.
"""

from __future__ import annotations

import trio

from swarm.token_bucket import TokenBucket

BURST_SECONDS = 0.25  # of the rate, at once
MIN_BURST_BYTES = 1 << 14


class Bandwidth:
    """0 bytes a second: no limit."""

    def __init__(self, upload_bytes_per_second: float = 0.0, download_bytes_per_second: float = 0.0) -> None:
        self._rates = upload_bytes_per_second, download_bytes_per_second
        self._buckets: list[TokenBucket | None] = [None, None]  # made in the loop whose clock they follow

    async def before_sending(self, size_bytes: int) -> None:
        await self._wait(0, size_bytes)

    async def after_receiving(self, size_bytes: int) -> None:
        await self._wait(1, size_bytes)

    async def _wait(self, direction: int, size_bytes: int) -> None:
        rate = self._rates[direction]
        if not rate:
            return
        now_seconds = trio.current_time()
        bucket = self._buckets[direction]
        if bucket is None:
            burst_bytes = max(float(MIN_BURST_BYTES), rate * BURST_SECONDS)
            bucket = self._buckets[direction] = TokenBucket(rate, burst_bytes, now_seconds=now_seconds)
        wait_seconds = bucket.reserve(size_bytes, now_seconds=now_seconds)
        if wait_seconds:
            await trio.sleep(wait_seconds)
