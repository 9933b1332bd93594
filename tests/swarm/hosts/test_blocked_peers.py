"""The bound on the peers that a host refuses."""

from __future__ import annotations

import pytest

from swarm.hosts import blocked_peers
from swarm.hosts.blocked_peers import BlockedPeers


def test_the_earliest_blocked_peer_is_let_in_again_above_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked_peers, "MAX_BLOCKED_PEERS", 2)
    blocked: BlockedPeers[str] = BlockedPeers()
    assert [blocked.block(peer) for peer in ("one", "two", "one", "three")] == [None, None, None, "one"]
    assert [peer in blocked for peer in ("one", "two", "three")] == [False, True, True]
