"""A simulated host's part in the gossip, and how its neighbours see it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from anyio.abc import TaskGroup

from swarm.host import PeerId, Receiver, Validator
from swarm.hosts.simulated.simulated_streams import LinkDirection


@dataclass(slots=True)
class Score:
    """What one neighbour forwarded to one host, by verdict."""

    accepted: int = 0
    ignored: int = 0
    rejected: int = 0
    duplicates: int = 0


class GossipingHost(Protocol):
    """What the simulated gossip needs of the host to which one of its ends belongs."""

    @property
    def peer_id(self) -> PeerId: ...

    @property
    def running_tasks(self) -> TaskGroup | None:
        """The tasks of the host while it runs, None before and afterwards."""

    def is_linked(self, peer: PeerId) -> bool: ...

    def neighbours(self) -> list[Neighbour]:
        """Returns the same list until a link comes or goes."""


@dataclass(slots=True)
class GossipEnd:
    """One host's part in the flood: its subscriptions, and what it sent and received."""

    host: GossipingHost
    peer: PeerId
    number: int  # of the host in this network, never given twice
    topics: dict[str, tuple[Validator, Receiver]] = field(default_factory=dict)
    known: Callable[[], Collection[PeerId]] = tuple  # peers that come before others
    sent_bytes: int = 0
    received_bytes: int = 0
    mesh: set[int] = field(default_factory=set)  # numbers of the hosts that share a mesh with this one
    listed: list[Neighbour] | None = None  # the neighbours when ``forwards`` was made
    forwards: list[Neighbour] | None = None  # None after every change of the mesh


Neighbour = tuple[GossipEnd, LinkDirection, Score]
"""(the neighbour's end, the direction to it, how it scores us)"""
