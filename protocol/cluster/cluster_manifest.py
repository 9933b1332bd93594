"""The manifest of a private cluster, signed by its owner.

    swarm id = first 16 bytes of SHA-256("starling/cluster/1\\0" ‖ payload of the signed manifest)

so that the swarm id determines name, tasks, owner, admission and limits, and any peer may hand the manifest over. The
owner is a key of its own, and no node's. It signs the manifest once, and later invitations, certificates and
revocations.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from protocol import limits
from protocol.cluster.signed_document import body_of, sign_document, split_document
from protocol.errors import WrongSwarmError
from protocol.identity import NodeKey, verify
from protocol.manifest import SWARM_ID_BYTES, TaskEntry
from protocol.messages import Hash32

MANIFEST_DOMAIN: Final = b"starling/cluster-manifest/1"
_SWARM_DOMAIN: Final = b"starling/cluster/1\0"

UnixSeconds = Annotated[int, Meta(ge=0, le=limits.UNIX_SECONDS)]
Admission = Literal["invitation", "owner"]


class ClusterManifest(Struct, frozen=True, array_like=True):
    """The terms of membership of a private cluster."""

    name: Annotated[str, Meta(min_length=1, max_length=limits.NAME_BYTES)]
    tasks: Annotated[tuple[TaskEntry, ...], Meta(max_length=limits.TASKS_PER_MANIFEST)]
    owner: Hash32  # public key
    made_seconds: UnixSeconds
    admission: Admission  # "invitation": open invitations count; "owner": only certificates that the owner signed do
    members: Annotated[int, Meta(ge=1, le=limits.MEMBERS)]  # at most
    membership_seconds: Annotated[
        int, Meta(ge=1, le=limits.UNIX_SECONDS)
    ]  # after which a member needs a new certificate


class Cluster(Struct, frozen=True):
    """A manifest whose signature was verified."""

    manifest: ClusterManifest
    swarm_id: bytes  # 16
    document: bytes  # the signed manifest, as it is kept and handed on


def sign_manifest(owner: NodeKey, manifest: ClusterManifest) -> Cluster:
    """The cluster of this manifest. Raises ``ValueError`` if the manifest names another owner than ``owner``."""
    if manifest.owner != owner.public_bytes:
        raise ValueError("a manifest is signed by the owner that it names")
    return open_manifest(sign_document(owner, MANIFEST_DOMAIN, manifest))


def open_manifest(raw: bytes, *, swarm_id: bytes | None = None) -> Cluster:
    """The cluster of the signed manifest ``raw``, which must have the id ``swarm_id`` if one is given.

    Raises ``OversizedError``, ``MalformedError``, ``VersionError``, ``WrongSwarmError`` or ``SignatureError``.
    """
    payload, signature = split_document(raw, max_bytes=limits.MANIFEST_BYTES)
    found = hashlib.sha256(_SWARM_DOMAIN + payload).digest()[:SWARM_ID_BYTES]
    if swarm_id is not None and found != swarm_id:
        raise WrongSwarmError(f"the manifest of swarm {found.hex()}; {swarm_id.hex()} was expected")
    manifest = body_of(payload, ClusterManifest, max_bytes=limits.MANIFEST_BYTES)
    verify(manifest.owner, MANIFEST_DOMAIN, payload, signature)
    return Cluster(manifest, found, raw)
