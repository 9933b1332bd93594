"""Who is connected to whom."""

from __future__ import annotations

from msgspec import Struct


class LinkNode(Struct, frozen=True):
    """One node of the picture."""

    peer: str
    name: str
    model: str
    family: str  # hex; empty where no heartbeat came
    ours: bool
    connected: bool  # to us
    claims: bool  # whether it says whom it is connected to


class Link(Struct, frozen=True, array_like=True):
    """A connection, as a JSON array [a, b, known]."""

    a: int  # index in ``LinksAnswer.nodes``
    b: int  # a < b
    known: int  # 0: our own connection, certain; 1: both ends claim it; 2: one end claims it


class LinksAnswer(Struct, frozen=True):
    """Answer of GET /api/v1/links: who is connected to whom, as far as this node knows. This node is the first."""

    nodes: tuple[LinkNode, ...]  # at most ``links.MAX_NODES``
    links: tuple[Link, ...]  # ours first; at most ``links.MAX_LINKS``
    nodes_left_out: int
    links_left_out: int
    silent: int  # nodes shown that do not say whom they are connected to
