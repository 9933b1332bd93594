"""How many peers a mesh of gossip has beside its degree: on our libp2p host, and in the simulated network."""

from __future__ import annotations


def fewest(degree: int) -> int:
    """Returns below how many peers a mesh is filled up to its degree."""
    return max(1, degree - 1)


def most(degree: int) -> int:
    """Returns above how many peers a mesh is cut to its degree: each of them sends a copy of every message."""
    return degree + max(1, degree // 4)
