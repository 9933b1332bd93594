"""Which host forwards to which in a simulated network with a mesh like GossipSub's, and what is offered outside it.

A host forwards to the neighbours that share its mesh: about ``degree``, not fewer than ``mesh_band.fewest`` for longer
than a heartbeat where it has as many neighbours, and never more than ``mesh_band.most``. Every heartbeat it offers what
is recent to ``OFFERED_TO`` other neighbours, and these ask for what they do not have. Known neighbours have the first
places, and are sent what is published here. All of it is as on our libp2p host (``swarm/hosts/libp2p/gossipsub``).
Departures: peers that pruned each other may mesh again at once, and whether a neighbour has a place is known without
asking.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from swarm.host import PeerId
from swarm.hosts.mesh_band import fewest, most
from swarm.hosts.simulated.gossip_ends import GossipEnd, Neighbour

HEARTBEAT_SECONDS = 1.0
OFFERED_TO = 6  # neighbours outside of the mesh, each heartbeat
OFFERED_SECONDS = 3.0  # after a message was made
OFFERED_ID_BYTES = 26  # of one message in an offer


class GossipMesh:
    """The meshes of all hosts of one network. ``degree`` None: every host forwards to all its neighbours."""

    def __init__(self, degree: int | None, random: Random) -> None:
        self.degree = degree
        self._random = random

    def forwards_to(self, end: GossipEnd) -> list[Neighbour]:
        """Returns the neighbours to which a host forwards; without a mesh, which lasts a heartbeat at most, all."""
        neighbours = end.host.neighbours()
        if self.degree is None:
            return neighbours
        if end.listed is not neighbours or end.forwards is None:
            end.mesh &= {neighbour.number for neighbour, _, _ in neighbours}
            end.listed = neighbours
            end.forwards = [each for each in neighbours if each[0].number in end.mesh] or neighbours
        return end.forwards

    def publishes_to(self, end: GossipEnd) -> list[Neighbour]:
        """Returns the neighbours to which a host sends what is its own: known ones besides its mesh."""
        forwards = self.forwards_to(end)
        if forwards is end.listed:
            return forwards
        known = set(end.known())
        beside = [each for each in end.host.neighbours() if each[0].number not in end.mesh and each[0].peer in known]
        return forwards + beside

    def maintain(self, ends: Iterable[GossipEnd]) -> None:
        """Completes the meshes that have become too small, and makes those smaller that have become too large."""
        for end in ends:
            self.forwards_to(end)
            known = set(end.known())
            if len(end.mesh) < self._fewest:
                self._graft(end, known)
            else:
                self._graft_known(end, known)
            if len(end.mesh) > self._most:
                self._prune(end, known)

    def offers(self, end: GossipEnd) -> list[Neighbour]:
        """Returns the neighbours to which a host offers what is recent."""
        others = [each for each in end.host.neighbours() if each[0].number not in end.mesh]
        return others if len(others) <= OFFERED_TO else self._random.sample(others, OFFERED_TO)

    @property
    def _fewest(self) -> int:
        assert self.degree is not None
        return fewest(self.degree)

    @property
    def _most(self) -> int:
        assert self.degree is not None
        return most(self.degree)

    def _graft_known(self, end: GossipEnd, known: set[PeerId]) -> None:
        """Takes a known neighbour into the mesh where too few are in it."""
        others = [each for each, _, _ in end.host.neighbours() if each.peer in known and each.topics]
        outside = [each for each in others if each.number not in end.mesh]
        if outside and len(others) - len(outside) < self._fewest:
            _mesh(end, self._random.choice(outside))

    def _graft(self, end: GossipEnd, known: set[PeerId]) -> None:
        assert self.degree is not None
        others = [each for each, _, _ in end.host.neighbours() if each.number not in end.mesh and each.topics]
        self._random.shuffle(others)
        # Known ones first, full ones last: they will prune.
        others.sort(key=lambda other: (other.peer not in known, len(other.mesh) >= self._most))
        for other in others[: self.degree - len(end.mesh)]:
            _mesh(end, other)

    def _prune(self, end: GossipEnd, known: set[PeerId]) -> None:
        assert self.degree is not None
        members = [each for each, _, _ in end.host.neighbours() if each.number in end.mesh]
        self._random.shuffle(members)
        members.sort(key=lambda other: other.peer not in known)
        for other in members[self.degree :]:
            for one, gone in ((end, other), (other, end)):
                one.mesh.discard(gone.number)
                one.forwards = None


def _mesh(end: GossipEnd, other: GossipEnd) -> None:
    for one, new in ((end, other), (other, end)):
        one.mesh.add(new.number)
        one.forwards = None
