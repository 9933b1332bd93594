"""Decides which peers are admitted, from the documents and the time alone.

Every function here is pure: the same documents at the same time give the same answer on every node. A refusal has one
``RefusalReason`` and a message that states what is wrong and what to do; it never holds a secret. Times are Unix
seconds.

Two things are in no document. Which peers joined by which invitation, each member remembers (``Taken``): members that
cannot reach each other may give one seat to two peers, and later each keeps the peer that it saw first. And the holder
of an open invitation can claim, after its time, to have joined in time: the free seats bound this, a revocation of the
invitation ends it, and an invitation that needs the owner does not allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from protocol import limits
from protocol.cluster.cluster_manifest import Cluster, open_manifest
from protocol.cluster.documents import (
    Certificate,
    Invitation,
    Join,
    KeyChange,
    Revocations,
    decode_credential,
    open_certificate,
    open_join,
    open_key_change,
    open_revocations,
    sign_certificate,
)
from protocol.cluster.invite import Invite, decode_invite
from protocol.cluster.refusal import (
    NEW_INVITE,
    REMEDIES,
    AdmissionRefused,
    RefusalReason,
    judge_clocks,
    made_in_the_future,
    membership_ended,
    outside_validity,
    refused_for,
)
from protocol.errors import ProtocolError
from protocol.identity import NodeKey, peer_id_of

D = TypeVar("D", Revocations, KeyChange)
Taken = Mapping[bytes, Collection[bytes]]  # invitation's key → public keys of the peers known to have joined by it


@dataclass(frozen=True, slots=True)
class Admitted:
    """A member, until ``until_seconds`` or a revocation."""

    peer: bytes  # public key
    invitation: bytes  # key of the invitation that it came with
    certified: bool  # by the owner; otherwise a member by its join, until the invitation is revoked
    until_seconds: float
    name: str


def read_invite(text: str, now_seconds: float) -> Invite | AdmissionRefused:
    """The invite in ``text`` if it is valid now. A newcomer calls this before it connects to anything."""
    try:
        invite = decode_invite(text)
    except ProtocolError as error:
        return refused_for("the invite", error)
    return outside_validity(invite.invitation, now_seconds, what="the invite") or invite


def read_manifest(invite: Invite, raw: bytes) -> Cluster | AdmissionRefused:
    """The cluster of the manifest that a newcomer received from a member, if it is the one of the invite."""
    try:
        cluster = open_manifest(raw, swarm_id=invite.invitation.swarm_id)
    except ProtocolError as error:
        return refused_for("the cluster's manifest", error)
    if cluster.manifest.owner != invite.owner:
        return AdmissionRefused(
            RefusalReason.WRONG_KEY,
            f"the manifest is signed by another owner than the invite; {REMEDIES[RefusalReason.WRONG_KEY]}",
        )
    return cluster


def judge_join(
    now_seconds: float, cluster: Cluster, revocations: Revocations | None, taken: Taken, raw: bytes, peer: bytes
) -> Admitted | AdmissionRefused:
    """How the owner's node answers a request to join by ``peer`` (public key, proven by the connection).

    If the answer is ``Admitted``, ``certify`` signs the certificate.
    """
    try:
        join, invitation = open_join(raw, owner=cluster.manifest.owner)
    except ProtocolError as error:
        return refused_for("the request to join", error)
    return (
        _wrong_subject(cluster, invitation.swarm_id, join.peer, peer)
        or outside_validity(invitation, now_seconds)
        or judge_clocks(now_seconds, join.time_seconds)
        or _revoked(revocations, join.peer, (invitation.key,))
        or _no_seat(cluster, revocations, invitation, join.peer, taken)
        or Admitted(join.peer, invitation.key, True, now_seconds + cluster.manifest.membership_seconds, invitation.name)
    )


def certify(owner: NodeKey, cluster: Cluster, admitted: Admitted, now_seconds: float) -> bytes:
    """The owner's certificate from now on, for a peer that ``judge_join`` admitted or for a member."""
    until_seconds = int(now_seconds) + cluster.manifest.membership_seconds
    return sign_certificate(
        owner,
        Certificate(
            cluster.swarm_id,
            admitted.peer,
            admitted.invitation,
            int(now_seconds),
            min(until_seconds, limits.UNIX_SECONDS),
            admitted.name,
        ),
    )


def judge_credential(
    now_seconds: float, cluster: Cluster, revocations: Revocations | None, taken: Taken, raw: bytes, peer: bytes
) -> Admitted | AdmissionRefused:
    """How every member judges the credential of ``peer`` (public key, proven by the connection)."""
    try:
        credential = decode_credential(raw)
        if credential.kind == "certificate":
            certificate = open_certificate(credential.document, owner=cluster.manifest.owner)
            return _judge_certificate(now_seconds, cluster, revocations, certificate, peer)
        join, invitation = open_join(credential.document, owner=cluster.manifest.owner)
    except ProtocolError as error:
        return refused_for("the credential", error)
    return _judge_open_join(now_seconds, cluster, revocations, taken, join, invitation, peer)


def judge_as_made(
    now_seconds: float, cluster: Cluster, revocations: Revocations | None, taken: Taken, raw: bytes
) -> Admitted | AdmissionRefused:
    """The peer that a credential made a member, even if it no longer is one, where another member hands the credential
    on: a peer that was revoked, or whose membership ended, keeps its seat. ``still_member`` checks these two."""
    try:
        credential = decode_credential(raw)
        if credential.kind == "certificate":
            certificate = open_certificate(credential.document, owner=cluster.manifest.owner)
            return _judge_certificate(now_seconds, cluster, revocations, certificate, certificate.peer, as_made=True)
        join, invitation = open_join(credential.document, owner=cluster.manifest.owner)
    except ProtocolError as error:
        return refused_for("the credential", error)
    return _judge_open_join(now_seconds, cluster, revocations, taken, join, invitation, join.peer, as_made=True)


def still_member(now_seconds: float, admitted: Admitted, revocations: Revocations | None) -> AdmissionRefused | None:
    """Refuses a member whose membership ended or was revoked. Checked for connected peers again and again."""
    invitations = () if admitted.certified else (admitted.invitation,)
    return membership_ended(admitted.until_seconds, now_seconds) or _revoked(revocations, admitted.peer, invitations)


def judge_revocations(cluster: Cluster, current: Revocations | None, raw: bytes) -> Revocations | AdmissionRefused:
    """The list in ``raw`` if it is this cluster's and later than ``current``, by its sequence number."""
    return _later(cluster, current, raw, open_revocations, "list of revocations")


def judge_key_change(cluster: Cluster, current: KeyChange | None, raw: bytes) -> KeyChange | AdmissionRefused:
    """The change of key in ``raw`` if it is this cluster's and later than ``current``, by its sequence number."""
    return _later(cluster, current, raw, open_key_change, "change of key")


def _later(cluster: Cluster, current: D | None, raw: bytes, open_: Callable[..., D], what: str) -> D | AdmissionRefused:
    try:
        candidate = open_(raw, owner=cluster.manifest.owner)
    except ProtocolError as error:
        return refused_for(f"the {what}", error)
    if candidate.swarm_id != cluster.swarm_id:
        return _wrong_swarm(cluster, candidate.swarm_id)
    if current is not None and candidate.sequence <= current.sequence:
        return AdmissionRefused(
            RefusalReason.OUTDATED,
            f"{what} number {candidate.sequence}; number {current.sequence} is here already: nothing to do",
        )
    return candidate


def _judge_certificate(
    now_seconds: float,
    cluster: Cluster,
    revocations: Revocations | None,
    certificate: Certificate,
    peer: bytes,
    *,
    as_made: bool = False,
) -> Admitted | AdmissionRefused:
    admitted = Admitted(certificate.peer, certificate.invitation, True, certificate.until_seconds, certificate.name)
    return (
        _wrong_subject(cluster, certificate.swarm_id, certificate.peer, peer)
        or made_in_the_future("the certificate", certificate.made_seconds, now_seconds)
        or (None if as_made else still_member(now_seconds, admitted, revocations))
        or admitted
    )


def _judge_open_join(
    now_seconds: float,
    cluster: Cluster,
    revocations: Revocations | None,
    taken: Taken,
    join: Join,
    invitation: Invitation,
    peer: bytes,
    *,
    as_made: bool = False,
) -> Admitted | AdmissionRefused:
    until_seconds = join.time_seconds + cluster.manifest.membership_seconds
    admitted = Admitted(join.peer, invitation.key, False, until_seconds, invitation.name)
    return (
        _wrong_subject(cluster, invitation.swarm_id, join.peer, peer)
        or _needs_owner(cluster, invitation)
        or made_in_the_future("the join", join.time_seconds, now_seconds)
        or outside_validity(invitation, join.time_seconds, clock="the newcomer's clock")
        or (None if as_made else still_member(now_seconds, admitted, revocations))
        or _no_seat(cluster, revocations, invitation, join.peer, taken)
        or admitted
    )


def _wrong_swarm(cluster: Cluster, swarm_id: bytes) -> AdmissionRefused:
    return AdmissionRefused(
        RefusalReason.WRONG_SWARM,
        f"for swarm {swarm_id.hex()}; this is {cluster.swarm_id.hex()}: {REMEDIES[RefusalReason.WRONG_SWARM]}",
    )


def _wrong_subject(cluster: Cluster, swarm_id: bytes, named: bytes, peer: bytes) -> AdmissionRefused | None:
    if swarm_id != cluster.swarm_id:
        return _wrong_swarm(cluster, swarm_id)
    if named != peer:
        return AdmissionRefused(
            RefusalReason.WRONG_KEY,
            f"made for {peer_id_of(named)} and shown by {peer_id_of(peer)}: a node with a new key needs a new "
            f"invite; {NEW_INVITE}",
        )
    return None


def _revoked(revocations: Revocations | None, peer: bytes, invitations: Collection[bytes]) -> AdmissionRefused | None:
    if revocations is None:
        return None
    if peer in revocations.peers:
        return AdmissionRefused(
            RefusalReason.REVOKED,
            f"the cluster's owner revoked the membership of {peer_id_of(peer)}: only the owner can take that back "
            "(starling readmit)",
        )
    if not revocations.invitations or not any(key in revocations.invitations for key in invitations):
        return None
    return AdmissionRefused(RefusalReason.REVOKED, f"the cluster's owner revoked the invitation: {NEW_INVITE}")


def _needs_owner(cluster: Cluster, invitation: Invitation) -> AdmissionRefused | None:
    if not invitation.needs_owner and cluster.manifest.admission == "invitation":
        return None
    return AdmissionRefused(
        RefusalReason.NEEDS_OWNER,
        "this invitation needs a certificate that the cluster's owner signs: connect while the owner's node is up",
    )


def _no_seat(
    cluster: Cluster, revocations: Revocations | None, invitation: Invitation, peer: bytes, taken: Taken
) -> AdmissionRefused | None:
    """Refuses if the invitation or the cluster is full.

    A revoked peer keeps its seat of the invitation, and does not count as a member of the cluster.
    """
    by_it = taken.get(invitation.key, ())
    if peer in by_it:
        return None
    if len(by_it) >= invitation.seats:
        return AdmissionRefused(
            RefusalReason.TAKEN,
            f"the seats of the invitation ({invitation.seats}) are all taken: {NEW_INVITE}",
        )
    known = {known for peers in taken.values() for known in peers}
    members = len(known.difference(revocations.peers if revocations is not None else ()))
    if members >= cluster.manifest.members:
        return AdmissionRefused(
            RefusalReason.FULL,
            f"the cluster has {members} members, and its manifest allows {cluster.manifest.members}: the owner "
            "can create it anew with more (starling swarm create --members)",
        )
    return None
