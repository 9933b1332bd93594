"""What the lending process is told, besides the settings of its part in the swarm."""

from __future__ import annotations

import msgspec


class LendingSetup(msgspec.Struct, frozen=True):
    """Its text form does not show the secret."""

    owner: str
    secret: str  # hex
    model: str  # a model given on this machine; empty: the one that the owner names
    device: str
    dtype: str
    seed: int
    max_memory_bytes: int | None = None  # that layers may take of main memory, with all else of the machine's limits

    def __repr__(self) -> str:
        return f"LendingSetup({self.owner!r}, …)"
