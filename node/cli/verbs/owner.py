"""``starling revoke``, ``readmit``, ``swarm rotate-key`` and ``swarm apply``: what the owner signs for all members.

Each verb writes the signed document to ``cluster/`` in the data directory and hands it to the node that runs there,
which spreads it. Where no node runs, the document takes effect at the next start, or once a member applies a copy.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from node.cli.options import HomeOption, home_of
from node.cli.verbs.swarm import OwnerKeyOption, duration_seconds
from node.home import Home
from node.printable import printable
from protocol.errors import ConfigurationError, ProtocolError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from protocol.cluster.cluster_manifest import Cluster
    from protocol.identity import NodeKey
    from swarm.cluster.cluster_files import ClusterFiles

GRACE = "7d"
INVITATION_CHARACTERS = 64  # of an invitation's public key in hexadecimal; a peer id has fewer
Decree = Literal["revocations", "key_change"]
FILES: dict[Decree, str] = {"revocations": "revocations", "key_change": "key-change"}


def revoke(
    target: Annotated[
        str,
        typer.Argument(
            metavar="PEER",
            help="A member's name or peer id; or an invite, or the name that it was made for, that must not admit "
            "anyone any more.",
        ),
    ],
    home: HomeOption = None,
    owner_key: OwnerKeyOption = None,
) -> None:
    """Remove a member, or revoke an invite. Revoking an invite also removes all who joined by it and have no
    certificate.

    A name is the one in the invitation, otherwise what the peer calls itself. One that two have is refused.

    Examples:

    starling revoke robin

    starling revoke 12D3KooW…
    """
    owned = _owned(home, owner_key)
    if not _signed_list(owned, *_revoked_key(target, owned, revoked=False), revoked=True):
        typer.echo("It is revoked already: nothing to do.")


def readmit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="PEER", help="The name or peer id of a revoked member, or a revoked invite that is to be valid."
        ),
    ],
    home: HomeOption = None,
    owner_key: OwnerKeyOption = None,
) -> None:
    """Take back a revocation: the owner signs a later list without that peer or invite.

    The peer is a member again, unless its membership has expired. Its own node still holds the former list and refuses
    to start: apply the new list there (starling swarm apply), or join again by an invite, which also brings a key that
    was rotated meanwhile.

    Example: starling readmit robin
    """
    owned = _owned(home, owner_key)
    is_invite, key = _revoked_key(target, owned, revoked=True)
    if not _signed_list(owned, is_invite, key, revoked=False):
        typer.echo("It is not revoked: nothing to do. starling swarm show lists what is.")
    elif not is_invite:
        typer.echo(
            f"On the machine of that peer, either: starling swarm apply FILE, a copy of "
            f"{owned.files.directory / FILES['revocations']}, then starling up; or, with what starling invite prints: "
            "starling up --join INVITE"
        )


def rotate_key(
    home: HomeOption = None,
    owner_key: OwnerKeyOption = None,
    grace: Annotated[
        str, typer.Option("--grace", help="How long members that are away now may still connect with the former key.")
    ] = GRACE,
) -> None:
    """Make a new pre-shared key and give it to every member. Invites made before stay valid for the grace period.

    Example: starling swarm rotate-key --grace 2d
    """
    from protocol import limits
    from protocol.cluster.documents import FormerKey, KeyChange, sign_key_change
    from protocol.cluster.invite import PSK_BYTES
    from swarm.cluster.cluster_files import read_key_change, read_psk

    owned, now = _owned(home, owner_key), int(time.time())
    current = read_key_change(owned.files, owned.cluster)
    psk, earlier = (current.psk, current.former) if current is not None else (read_psk(owned.files), ())
    former = [FormerKey(psk, now + duration_seconds(grace, "--grace"))]
    former += [key for key in earlier if key.until_seconds > now]
    change = KeyChange(
        owned.cluster.swarm_id,
        current.sequence + 1 if current is not None else 1,
        now,
        secrets.token_bytes(PSK_BYTES),
        tuple(former[: limits.FORMER_KEYS]),
    )
    _keep_and_hand_over(owned.home, owned.files, "key_change", sign_key_change(owned.owner, change))


def apply_document(
    document: Annotated[
        Path, typer.Argument(metavar="FILE", help="A copy of the owner's cluster/revocations or cluster/key-change.")
    ],
    home: HomeOption = None,
) -> None:
    """Apply a document that the owner signed on another machine, and spread it.

    Example: starling swarm apply /media/stick/revocations
    """
    from protocol import limits
    from protocol.cluster.admission import judge_key_change, judge_revocations
    from protocol.cluster.refusal import AdmissionRefused
    from swarm.cluster.cluster_files import cluster_files, read_cluster, read_key_change, read_revocations

    where = home_of(home)
    files = cluster_files(where.path)
    cluster = read_cluster(files)
    try:
        with document.open("rb") as file:
            raw = file.read(limits.REVOCATIONS_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{document} cannot be read ({error.strerror}): name another file") from None
    is_list = isinstance(judge_key_change(cluster, None, raw), AdmissionRefused)
    judged = (
        judge_revocations(cluster, read_revocations(files, cluster), raw)
        if is_list
        else judge_key_change(cluster, read_key_change(files, cluster), raw)
    )
    if isinstance(judged, AdmissionRefused):
        raise RefusedError(judged.message, judged.reason)
    _keep_and_hand_over(where, files, "revocations" if is_list else "key_change", raw, done="Applied")


@dataclass(frozen=True, slots=True)
class _Owned:
    """A cluster with the key of its owner."""

    home: Home
    files: ClusterFiles
    cluster: Cluster
    owner: NodeKey


def _owned(home: Path | None, owner_key: Path | None) -> _Owned:
    """Raises ``IdentityError`` where the owner's key is not at hand."""
    from swarm.cluster.cluster_files import cluster_files, read_cluster, read_owner

    where = home_of(home)
    files = cluster_files(where.path, owner_key)
    cluster = read_cluster(files)
    return _Owned(where, files, cluster, read_owner(files, cluster))


def _revoked_key(target: str, owned: _Owned, *, revoked: bool) -> tuple[bool, bytes]:
    """Returns whether ``target`` is an invitation, and the public key of it or of the peer. Where a name belongs to
    several, those that are ``revoked``, or are not, are meant."""
    from protocol.cluster.invite import SCHEME, decode_invite
    from protocol.identity import public_bytes_of

    try:
        if SCHEME not in target.lower():
            found = _named_id(target, owned, revoked=revoked)
            if found != target:
                typer.echo(f"{printable(target)} is {found}.")
            is_invitation = len(found) == INVITATION_CHARACTERS
            return is_invitation, bytes.fromhex(found) if is_invitation else public_bytes_of(found)
        invite = decode_invite(target)
    except ProtocolError as error:
        raise ConfigurationError(
            f"neither a peer (starling swarm show lists members and invitations) nor an invite: {error}"
        ) from None
    if invite.invitation.swarm_id != owned.cluster.swarm_id:
        raise ConfigurationError("the invite is for another cluster than that of this data directory")
    return True, invite.invitation.key


def _named_id(target: str, owned: _Owned, *, revoked: bool) -> str:
    """Returns the peer id, or the invitation's key in hexadecimal, that ``target`` names."""
    from node.cli.peer_names import KnownName, id_of, names_met
    from node.cli.swarm_facts import cluster_facts

    facts = cluster_facts(owned.files)
    given = [
        (each["state"] == "revoked", KnownName.of(each["name"], each["peer"], "member")) for each in facts["members"]
    ]
    given += [
        (each["state"] == "revoked", KnownName.of(each["name"], each["key"], f"{each['state']} invitation"))
        for each in facts["invitations"]
        if each["state"] in ("open", "revoked")
    ]
    given += [(True, KnownName("", key)) for key in facts["revoked_invitations"]]  # signed elsewhere
    meant = [name for is_revoked, name in given if is_revoked == revoked]
    others = [name for is_revoked, name in given if is_revoked != revoked]
    return id_of(target, meant, others, names_met(owned.home), where="starling swarm show")


def _signed_list(owned: _Owned, is_invite: bool, key: bytes, *, revoked: bool) -> bool:
    """Signs the list of revocations with or without ``key``, keeps it, and hands it to the node that runs here. Returns
    whether there was anything to change."""
    from protocol.cluster.documents import Revocations, sign_revocations
    from protocol.identity import NodeKey
    from swarm.cluster.cluster_files import read_revocations

    current = read_revocations(owned.files, owned.cluster)
    peers, invitations = (current.peers, current.invitations) if current is not None else ((), ())
    listed = invitations if is_invite else peers
    if (key in listed) == revoked:
        return False
    if revoked and owned.home.key.exists() and key == NodeKey.load(owned.home.key).public_bytes:
        raise ConfigurationError("this is the peer id of this node: a node cannot revoke itself")
    changed = (*listed, key) if revoked else tuple(each for each in listed if each != key)
    revocations = Revocations(
        owned.cluster.swarm_id,
        current.sequence + 1 if current is not None else 1,
        int(time.time()),
        peers if is_invite else changed,
        changed if is_invite else invitations,
    )
    try:
        document = sign_revocations(owned.owner, revocations)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    _keep_and_hand_over(owned.home, owned.files, "revocations", document)
    return True


def _keep_and_hand_over(
    home: Home, files: ClusterFiles, kind: Decree, document: bytes, *, done: str = "Signed"
) -> None:
    from swarm.client import SwarmClient

    files.keep(FILES[kind], document)
    try:
        with SwarmClient(home.swarm_socket) as client:
            client.decree(kind, document)
    except UnreachableError:
        secret = " The file holds the new key: protect it like a password." if kind == "key_change" else ""
        typer.echo(
            f"{done}: {files.directory / FILES[kind]}. No node runs here, so no member has received it yet: start this "
            f"node with starling up, or copy the file to any member and run there: starling swarm apply FILE{secret}"
        )
        return
    typer.echo(
        f"{done} and handed to the node here: connected members receive it within seconds, others when they connect."
    )
