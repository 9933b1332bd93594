"""What waits to be sent to one peer by gossip, bounded in number and bytes, in the place of the library's queue.

The library counts RPCs only: with room for a burst of small ones, a peer that reads nothing could make us keep 32 MiB.
A full queue takes no more. What is pushed is shared, not copied: one message that waits for many peers is kept once.
"""

from __future__ import annotations

from collections import deque

from libp2p.pubsub.pb import rpc_pb2

QUEUED_RPCS = 512  # the library's 32 lose bursts, which are repaired only at a heartbeat
QUEUED_BYTES = 2 * 1024 * 1024
RESERVED_RPCS = 64  # for control messages beyond ``QUEUED_RPCS``: a mesh needs its GRAFTs most when it is busy


class SendQueue:
    """``push`` returns whether there was room. Control messages, which are pushed with priority, go first."""

    def __init__(self) -> None:
        self._messages: deque[rpc_pb2.RPC] = deque()
        self._controls: deque[rpc_pb2.RPC] = deque()
        self.queued_bytes = 0

    def __len__(self) -> int:
        return len(self._messages) + len(self._controls)

    def push(self, rpc: rpc_pb2.RPC, priority: bool = False) -> bool:
        size = rpc.ByteSize()
        places = QUEUED_RPCS + (RESERVED_RPCS if priority else 0)
        if len(self) >= places or self.queued_bytes + size > QUEUED_BYTES:
            return False
        (self._controls if priority else self._messages).append(rpc)
        self.queued_bytes += size
        return True

    def pop(self) -> rpc_pb2.RPC | None:
        waiting = self._controls or self._messages
        if not waiting:
            return None
        rpc = waiting.popleft()
        self.queued_bytes -= rpc.ByteSize()
        return rpc
