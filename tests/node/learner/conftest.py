"""What the tests of the learner share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.learner.letter_node import MemorySwarm


@pytest.fixture
def swarm(tmp_path: Path) -> MemorySwarm:
    return MemorySwarm(tmp_path, lambda: 1_000_000.0)
