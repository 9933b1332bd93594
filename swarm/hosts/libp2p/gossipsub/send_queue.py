"""What waits to be sent to one peer by gossip, bounded in number and bytes, in the place of the library's queue.

The library counts RPCs only: with room for a burst of small ones, a peer that reads nothing could make us keep 32 MiB.
A full queue takes no more. A message that the peer says it has (IDONTWANT) is left out when its turn comes; the
``UNWANTED_IDS`` ids that the peer named last are remembered. What is pushed is shared, not copied: one message that
waits for many peers is kept once.
"""

from __future__ import annotations

from collections import deque

from libp2p.pubsub.pb import rpc_pb2

from swarm.hosts.libp2p.gossipsub.messages import message_id
from swarm.recent import Recent

QUEUED_RPCS = 512  # the library's 32 lose bursts, which are repaired only at a heartbeat
QUEUED_BYTES = 2 * 1024 * 1024
RESERVED_RPCS = 64  # for control messages beyond ``QUEUED_RPCS``: a mesh needs its GRAFTs most when it is busy
UNWANTED_IDS = 1024  # of 24 bytes


class SendQueue:
    """``push`` returns whether there was room. Control messages, which are pushed with priority, go first."""

    def __init__(self) -> None:
        self._messages: deque[rpc_pb2.RPC] = deque()
        self._controls: deque[rpc_pb2.RPC] = deque()
        self._unwanted: Recent[bytes, None] = Recent(UNWANTED_IDS)
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

    def leave_out(self, key: bytes) -> None:
        """Notes that the peer does not want the message with this id."""
        self._unwanted[key] = None

    def pop(self) -> rpc_pb2.RPC | None:
        while waiting := self._controls or self._messages:
            rpc = waiting.popleft()
            self.queued_bytes -= rpc.ByteSize()
            if not (self._unwanted and rpc.publish and all(message_id(m) in self._unwanted for m in rpc.publish)):
                return rpc
        return None
