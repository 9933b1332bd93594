"""Ethernet cables that take time: pairs of network devices between which a thread carries frames. Linux and root only.

``tc netem`` does the same where the kernel has it. Here each end is a TAP device, and a frame that one end sends comes
out of the other ``delay_seconds`` later, in order; none is lost.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

_TUNSETIFF: Final = 0x400454CA
_TAP_WITHOUT_HEADER: Final = 0x0002 | 0x1000
_FRAME_BYTES: Final = 65536


class DelayedCables:
    """Cables between pairs of new network devices, which a caller may move into namespaces and rename. ``close``
    removes them."""

    def __init__(self, pairs: Sequence[tuple[str, str]], delay_seconds: float) -> None:
        """Raises ``OSError`` where TAP devices cannot be made."""
        self._delay_seconds = delay_seconds
        self._other: dict[int, int] = {}
        for pair in pairs:
            one, other = map(_tap, pair)
            self._other |= {one: other, other: one}
        self._wakes, self._closes = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="cables", daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.close(self._closes)
        self._thread.join()
        for each in (*self._other, self._wakes):
            os.close(each)

    def _carry(self) -> None:
        """Until ``close``. All frames take equally long, so they leave in the order in which they came."""
        under_way = deque[tuple[float, int, bytes]]()
        poll = select.poll()
        for each in (*self._other, self._wakes):
            poll.register(each, select.POLLIN)
        while True:
            waits = None if not under_way else max(0.0, 1e3 * (under_way[0][0] - time.monotonic()))
            ready = [each for each, _ in poll.poll(waits)]
            if self._wakes in ready:
                return
            for each in ready:
                with suppress(OSError):  # the device is down
                    frame = os.read(each, _FRAME_BYTES)
                    under_way.append((time.monotonic() + self._delay_seconds, self._other[each], frame))
            while under_way and under_way[0][0] <= time.monotonic():
                _, to, frame = under_way.popleft()
                with suppress(OSError):
                    os.write(to, frame)


def _tap(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_HEADER))
    return device
