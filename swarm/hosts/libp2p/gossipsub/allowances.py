"""What gossip of one peer, and of all peers together, may cost this node.

Time: a peer's RPCs cost CPU seconds. Each peer may use ``OWN_RATE`` of a core whatever the others do; what it needs
beyond comes out of one common share, in the order of arrival. A peer that used more than there is waits: its next bytes
are read later, which slows it down and loses nothing. So strangers together cannot take more of the process than the
shares, and cannot keep a peer within its own share waiting.

Answers: messages sent again to a peer (that asked for them, or has just subscribed) are limited in bytes; ids that we
ask a peer for, ids that it does not want, its other control messages and changes of its subscriptions in number. What
exceeds these is dropped, and the latter two cost the peer points.

The allowances of ``PEERS_REMEMBERED`` peers are kept, so that a peer that reconnects does not find them full again. The
peer heard longest ago is pushed out.
"""

from __future__ import annotations

from dataclasses import dataclass

from libp2p.peer.id import ID

from swarm.recent import Recent
from swarm.token_bucket import TokenBucket

OWN_RATE, OWN_BURST = 0.01, 0.2  # CPU seconds per second, and at once
COMMON_RATE, COMMON_BURST = 0.3, 0.3
SECONDS_PER_RPC = 1e-4  # to read an RPC from its stream, which is not measured
SECONDS_PER_BYTE = 2e-8  # to receive and decrypt it
RESENT_BYTES_PER_SECOND, RESENT_BYTES_AT_ONCE = 256.0 * 1024, 2048.0 * 1024
ASKED_IDS_PER_SECOND, ASKED_IDS_AT_ONCE = 100.0, 1000.0
UNWANTED_IDS_PER_SECOND, UNWANTED_IDS_AT_ONCE = 100.0, 1000.0  # one for each large message that it receives
SUBSCRIPTIONS_PER_SECOND, SUBSCRIPTIONS_AT_ONCE = 0.5, 64.0  # an honest peer subscribes once, when it connects
CONTROLS_PER_SECOND, CONTROLS_AT_ONCE = 20.0, 300.0  # RPCs with control messages: an honest peer sends a few
PEERS_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class Allowance:
    """The allowance of one peer."""

    cpu: TokenBucket
    resent_bytes: TokenBucket
    asked_ids: TokenBucket
    unwanted_ids: TokenBucket
    subscriptions: TokenBucket
    controls: TokenBucket


class Allowances:
    """Times are seconds of one clock, passed in."""

    def __init__(self) -> None:
        self._peers: Recent[ID, Allowance] = Recent(PEERS_REMEMBERED)
        self._common: TokenBucket | None = None

    def __len__(self) -> int:
        return len(self._peers)

    def of(self, peer: ID, *, now_seconds: float) -> Allowance:
        found = self._peers.get(peer)
        if found is None:
            found = Allowance(
                TokenBucket(OWN_RATE, OWN_BURST, now_seconds=now_seconds),
                TokenBucket(RESENT_BYTES_PER_SECOND, RESENT_BYTES_AT_ONCE, now_seconds=now_seconds),
                TokenBucket(ASKED_IDS_PER_SECOND, ASKED_IDS_AT_ONCE, now_seconds=now_seconds),
                TokenBucket(UNWANTED_IDS_PER_SECOND, UNWANTED_IDS_AT_ONCE, now_seconds=now_seconds),
                TokenBucket(SUBSCRIPTIONS_PER_SECOND, SUBSCRIPTIONS_AT_ONCE, now_seconds=now_seconds),
                TokenBucket(CONTROLS_PER_SECOND, CONTROLS_AT_ONCE, now_seconds=now_seconds),
            )
        self._peers[peer] = found
        return found

    def charge(self, peer: ID, cpu_seconds: float, *, now_seconds: float) -> float:
        """Counts what ``peer`` cost; returns the seconds for which nothing more of it is to be read."""
        if self.of(peer, now_seconds=now_seconds).cpu.take(cpu_seconds, now_seconds=now_seconds):
            return 0.0
        if self._common is None:
            self._common = TokenBucket(COMMON_RATE, COMMON_BURST, now_seconds=now_seconds)
        return self._common.reserve(cpu_seconds, now_seconds=now_seconds)
