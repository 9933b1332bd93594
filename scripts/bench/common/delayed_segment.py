"""A switch that passes every frame on after a delay, as distance does. Linux and root only; it runs by itself.

    python -m scripts.bench.common.delayed_segment SECONDS PORT PORT …

The kernel's own delay (``tc netem``) is in few kernels. Frames cross with what the kernel notes of them (their
checksum may be unfinished, and one may stand for many), so that neither has to be switched off.
"""

from __future__ import annotations

import heapq
import select
import socket
import sys
import time
from itertools import count
from typing import Final

ALL_PROTOCOLS: Final = 3
SOL_PACKET: Final = 263
PACKET_VNET_HDR: Final = 15
VNET_HEADER_BYTES: Final = 10
OUTGOING: Final = 4  # what we sent ourselves
FRAME_BYTES: Final = 1 << 17


def opened(port: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    opened.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    opened.bind((port, 0))
    return opened


def switch(delay_seconds: float, ports: list[socket.socket]) -> None:
    """Runs until it is ended."""
    at: dict[bytes, socket.socket] = {}  # MAC address → the port behind which it is
    under_way: list[tuple[float, int, bytes, socket.socket]] = []
    numbers = count()
    while True:
        wait_seconds = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for port in select.select(ports, [], [], wait_seconds)[0]:
            frame, origin = port.recvfrom(FRAME_BYTES)
            if origin[2] == OUTGOING:
                continue
            at[frame[VNET_HEADER_BYTES:][6:12]] = port
            heapq.heappush(under_way, (time.monotonic() + delay_seconds, next(numbers), frame, port))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, frame, origin_port = heapq.heappop(under_way)
            to = frame[VNET_HEADER_BYTES:][:6]
            for port in [at[to]] if to in at else ports:
                if port is not origin_port:
                    port.send(frame)


if __name__ == "__main__":
    switch(float(sys.argv[1]), [opened(port) for port in sys.argv[2:]])
