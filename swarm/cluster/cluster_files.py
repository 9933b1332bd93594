"""The files of a private cluster in a data directory, each with mode 0600 and checked whenever it is read.

    cluster/manifest     the signed manifest: not secret, the same on every member
    cluster/psk          the pre-shared key in hexadecimal, as it came with the invite
    cluster/credential   the credential that makes this node a member
    cluster/members      the credentials of the other members that this node knows
    cluster/revocations  the latest list of revocations, once there is one
    cluster/key-change   the latest change of the pre-shared key, once there is one; holds that key
    cluster/invitations  what the owner signed here for newcomers: names and public keys, without what admits by them
    cluster/spoken       what names the code by which this node joined, if it joined by one; opens nothing any more
    cluster/owner.key    the owner's key: on the machine that founded the cluster, or where its owner keeps it

A cluster is founded once, and a directory belongs to one cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from protocol import limits
from protocol.cluster.admission import Admitted, certify
from protocol.cluster.cluster_manifest import Cluster, ClusterManifest, open_manifest, sign_manifest
from protocol.cluster.documents import (
    Credential,
    Invitation,
    KeyChange,
    Revocations,
    open_invitation,
    open_key_change,
    open_revocations,
)
from protocol.cluster.invite import PSK_BYTES
from protocol.errors import ConfigurationError, IdentityError, ProtocolError
from protocol.identity import NodeKey, create_private_file, read_private_file
from swarm.atomic_file import write_atomically
from swarm.cluster.membership import MEMBERS_FILE_BYTES, ClusterCredentials, decode_members, encode_members

T = TypeVar("T")
SPOKEN = "spoken"
_RESTORE = "restore it from a backup, or join again with a new invite"
_FOUND = "found one with starling swarm create --private --name NAME, or join one with starling up --join INVITE"


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """Paths of one cluster; ``owner_key`` may lie elsewhere."""

    directory: Path
    owner_key: Path

    @property
    def manifest(self) -> Path:
        return self.directory / "manifest"

    @property
    def psk(self) -> Path:
        return self.directory / "psk"

    def keep(self, name: str, content: bytes) -> None:
        """Replaces one of the files. Raises ``StorageError``."""
        write_atomically(self.directory / name, content)


def cluster_files(home: Path, owner_key: Path | None = None) -> ClusterFiles:
    """Returns the paths of the cluster of a data directory."""
    return ClusterFiles(home / "cluster", owner_key or home / "cluster" / "owner.key")


def has_cluster(files: ClusterFiles) -> bool:
    """Whether the directory belongs to a private cluster."""
    return files.manifest.exists()


def found_cluster(
    files: ClusterFiles, manifest: ClusterManifest, *, owner: NodeKey, node: NodeKey, psk: bytes
) -> Cluster:
    """Signs the manifest, makes ``node`` the first member, and writes all files.

    Raises ``ConfigurationError`` if there is a cluster already.
    """
    cluster = sign_manifest(owner, manifest)
    now_seconds = time.time()
    founder = Admitted(node.public_bytes, owner.public_bytes, True, 0.0, "founder")
    certificate = Credential("certificate", certify(owner, cluster, founder, now_seconds)).encode()
    try:
        if has_cluster(files):
            raise FileExistsError
        create_private_file(files.psk, psk.hex().encode())
        create_private_file(files.directory / "credential", certificate)
        create_private_file(files.manifest, cluster.document)
    except FileExistsError as error:
        raise ConfigurationError(
            f"there is a cluster at {files.directory} already (starling swarm show); found another one elsewhere "
            "with --home, or move that directory away"
        ) from error
    return cluster


def write_credentials(files: ClusterFiles, credentials: ClusterCredentials) -> None:
    """Writes a newcomer's credentials over the files there; the manifest last, since it makes the node a member."""
    for name, content in (
        ("psk", credentials.psk.hex().encode()),
        ("credential", credentials.credential),
        ("revocations", credentials.revocations),
        ("key-change", credentials.key_change),
        ("members", encode_members(list(credentials.members))),
        ("manifest", credentials.cluster.document),
    ):
        files.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if content:
            files.keep(name, content)
        else:
            (files.directory / name).unlink(missing_ok=True)


def read_credentials(files: ClusterFiles) -> ClusterCredentials:
    """Reads what makes this node a member. Raises as ``read_cluster``."""
    members = files.directory / "members"
    known = _read_if_there(members, MEMBERS_FILE_BYTES)
    return ClusterCredentials(
        cluster=read_cluster(files),
        psk=read_psk(files),
        credential=_read(files.directory / "credential", limits.DOCUMENT_BYTES),
        revocations=_read_if_there(files.directory / "revocations", limits.REVOCATIONS_BYTES),
        key_change=_read_if_there(files.directory / "key-change", limits.DOCUMENT_BYTES),
        members=_opened(members, known, decode_members) if known else (),
    )


def read_cluster(files: ClusterFiles) -> Cluster:
    """Raises ``ConfigurationError`` if there is no cluster, ``IdentityError`` for a file that cannot be used."""
    if not has_cluster(files):
        raise ConfigurationError(f"there is no private cluster here: {files.manifest} does not exist; {_FOUND}")
    raw = _read(files.manifest, limits.MANIFEST_BYTES)
    return _opened(files.manifest, raw, open_manifest)


def read_owner(files: ClusterFiles, cluster: Cluster) -> NodeKey:
    """Reads the owner's key. Raises ``IdentityError`` if it is missing, ``ConfigurationError`` if it is another key."""
    if not files.owner_key.exists():
        raise IdentityError(
            f"only the owner of the cluster {cluster.manifest.name!r} can do this, and the owner's key is not at "
            f"{files.owner_key}: ask the owner, or name the file that holds the key with --owner-key"
        )
    owner = NodeKey.load(files.owner_key)
    if owner.public_bytes != cluster.manifest.owner:
        raise ConfigurationError(
            f"{files.owner_key} is not the key of this cluster's owner: name the right file with --owner-key"
        )
    return owner


def read_psk(files: ClusterFiles) -> bytes:
    """Reads the pre-shared key. Raises as ``read_cluster``; no error shows the file's content."""
    try:
        psk = bytes.fromhex(_read(files.psk, 4 * PSK_BYTES).decode("ascii"))
    except ValueError:
        psk = b""
    if len(psk) != PSK_BYTES:
        raise IdentityError(f"{files.psk} holds no pre-shared key ({2 * PSK_BYTES} hexadecimal digits); restore it")
    return psk


def read_revocations(files: ClusterFiles, cluster: Cluster) -> Revocations | None:
    """Reads the latest list of revocations, if there is one."""
    path = files.directory / "revocations"
    raw = _read_if_there(path, limits.REVOCATIONS_BYTES)
    return _opened(path, raw, partial(open_revocations, owner=cluster.manifest.owner)) if raw else None


def read_key_change(files: ClusterFiles, cluster: Cluster) -> KeyChange | None:
    """Reads the latest change of the pre-shared key, if there is one."""
    path = files.directory / "key-change"
    raw = _read_if_there(path, limits.DOCUMENT_BYTES)
    return _opened(path, raw, partial(open_key_change, owner=cluster.manifest.owner)) if raw else None


def read_invitations(files: ClusterFiles, cluster: Cluster) -> dict[bytes, Invitation]:
    """Returns the invitations that were signed in this data directory, by their documents, the oldest first."""
    path = files.directory / "invitations"
    raw = _read_if_there(path, MEMBERS_FILE_BYTES)
    documents = _opened(path, raw, decode_members) if raw else ()
    opener = partial(open_invitation, owner=cluster.manifest.owner)
    return {document: _opened(path, document, opener) for document in documents}


def note_invitation(files: ClusterFiles, cluster: Cluster, document: bytes, now_seconds: float) -> None:
    """Adds an invitation to those that were signed here; those by which nobody can join any more leave the file."""
    known = read_invitations(files, cluster)
    usable = [each for each, invitation in known.items() if invitation.join_by_seconds >= now_seconds]
    files.keep("invitations", encode_members([*usable, document][-limits.MEMBERS :]))


def current_psk(files: ClusterFiles, cluster: Cluster) -> bytes:
    """Returns the pre-shared key that members use now."""
    change = read_key_change(files, cluster)
    return change.psk if change is not None else read_psk(files)


def _opened(path: Path, raw: bytes, opener: Callable[[bytes], T]) -> T:
    try:
        return opener(raw)
    except ProtocolError as error:
        raise IdentityError(f"{path} is damaged ({error}); {_RESTORE}") from error


def _read_if_there(path: Path, max_bytes: int) -> bytes:
    return _read(path, max_bytes) if path.exists() else b""


def _read(path: Path, max_bytes: int) -> bytes:
    return read_private_file(path, max_bytes, if_missing=_RESTORE)
