"""The peers that a member knows to be, or to have been, members, by the credentials that it has judged.

Guarantees: a seat of an invitation, once taken, stays taken by that peer, even if the peer is revoked or its membership
is over; the credential that lasts longest counts for a seat. In messages a credential is named by the first eight bytes
of its SHA-256. Bounded by what the owner signs: seats, and the members that the manifest allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from protocol import limits
from protocol.cluster.admission import Admitted, Taken
from protocol.identity import peer_id_of
from protocol.streams.member_messages import credential_digest
from swarm.host import PeerId
from swarm.recent import Recent


@dataclass(frozen=True, slots=True)
class Member:
    """One membership that was admitted: a seat and the credential for it."""

    admitted: Admitted
    credential: bytes

    @property
    def peer(self) -> PeerId:
        return peer_id_of(self.admitted.peer)


class Roster:
    """The members by seat, by peer and by digest. The best membership of a peer is certified, then lasts longest."""

    def __init__(self) -> None:
        self._by_seat: dict[tuple[bytes, bytes], Member] = {}  # (peer, invitation)
        self._of_peer: dict[PeerId, list[Member]] = {}  # the best first
        self._taken: dict[bytes, set[bytes]] = {}
        self._by_digest: dict[bytes, bytes] = {}
        self._refused: Recent[bytes, None] = Recent(limits.MEMBERS)  # digests, not to be sent to us again

    def __iter__(self) -> Iterator[Member]:
        return iter([members[0] for members in self._of_peer.values()])

    def __len__(self) -> int:
        return len(self._of_peer)

    @property
    def taken(self) -> Taken:
        return self._taken

    def of(self, peer: PeerId) -> Sequence[Member]:
        """Returns the peer's memberships, one per invitation, the best first."""
        return self._of_peer.get(peer, ())

    def credentials(self) -> list[bytes]:
        """Returns the newest credential of every seat."""
        return [member.credential for member in self._by_seat.values()]

    def add(self, admitted: Admitted, credential: bytes, renewal_seconds: float) -> bool:
        """Adds a credential; returns whether it was worth adding.

        One that lasts less than ``renewal_seconds`` longer than the known one of its seat is not, so that no peer can
        keep a swarm busy with ever newer credentials.
        """
        seat = (admitted.peer, admitted.invitation)
        member, known = Member(admitted, credential), self._by_seat.get(seat)
        if known is not None and not _is_news(known.admitted, admitted, renewal_seconds):
            return False
        if known is not None:
            self._by_digest.pop(credential_digest(known.credential), None)
        self._by_seat[seat] = member
        self._by_digest[credential_digest(credential)] = credential
        self._taken.setdefault(admitted.invitation, set()).add(admitted.peer)
        others = [other for other in self._of_peer.get(member.peer, ()) if other is not known]
        self._of_peer[member.peer] = sorted([member, *others], key=_worth, reverse=True)
        return True

    def refuse(self, credential: bytes) -> None:
        """Notes that a credential need not be sent to us again."""
        self._refused[credential_digest(credential)] = None

    def digests(self) -> set[bytes]:
        """Returns the digests of all credentials that need not be sent to us."""
        return {*self._by_digest, *self._refused}

    def beyond(self, digests: set[bytes], most: int) -> list[bytes]:
        """Returns at most ``most`` credentials that are not among ``digests``."""
        lacking = [credential for digest, credential in self._by_digest.items() if digest not in digests]
        return lacking[:most]


def _worth(member: Member) -> tuple[bool, float]:
    return member.admitted.certified, member.admitted.until_seconds


def _is_news(known: Admitted, new: Admitted, renewal_seconds: float) -> bool:
    if new.certified != known.certified:
        return new.certified
    return new.until_seconds >= known.until_seconds + renewal_seconds
