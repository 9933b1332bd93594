"""A list of swarms that one key signs and that anybody may host or hand on: who meets where, and on which terms.

    document = a signed document (``protocol.cluster.signed_document``) for "starling/swarm-list/1"

It is a file without secrets. Its signature says who vouches for it, and nothing says that this key is worth anything: a
reader shows the key, and whether it has met it before. Each entry holds a whole manifest, so that a swarm's id is
computed and never believed. An address in a list is a claim, as every address is: a peer that is dialled must prove its
peer id, and that it is in the swarm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from protocol import limits
from protocol.cluster.cluster_manifest import UnixSeconds, open_manifest
from protocol.cluster.signed_document import body_of, sign_document, split_document
from protocol.errors import ClockError, MalformedError, ProtocolError
from protocol.identity import NodeKey, peer_id_of, verify
from protocol.manifest import TaskEntry, decode_manifest
from protocol.messages import Hash32, Name

SWARM_LIST_DOMAIN: Final = b"starling/swarm-list/1"

SwarmKind = Literal["open", "private"]
Door = Annotated[
    str,
    Meta(max_length=limits.ADDRESS_CHARACTERS, pattern=r"\A(/[A-Za-z0-9.:_-]+)+/p2p/[1-9A-HJ-NP-Za-km-z]+\Z"),
]  # a multiaddr that ends in /p2p/<peer id>


class ListedSwarm(Struct, frozen=True, array_like=True):
    """One entry, as it is signed."""

    kind: SwarmKind
    manifest: Annotated[
        bytes, Meta(max_length=limits.MANIFEST_BYTES)
    ]  # canonical bytes; "private": as its owner signed
    doors: Annotated[tuple[Door, ...], Meta(max_length=limits.ADDRESSES_PER_PEER)]
    about: Annotated[str, Meta(max_length=limits.REASON_BYTES)]  # for people; shown escaped


class SwarmList(Struct, frozen=True, array_like=True):
    """What is signed."""

    signer: Hash32  # public key
    name: Name  # of the list or its signer, for people
    made_seconds: UnixSeconds
    until_seconds: UnixSeconds
    swarms: Annotated[tuple[ListedSwarm, ...], Meta(max_length=limits.SWARMS_PER_LIST)]


@dataclass(frozen=True, slots=True)
class PublishedSwarm:
    """One entry, its manifest decoded; of a private cluster the owner's signature was verified."""

    listed: ListedSwarm
    name: str
    swarm_id: bytes  # 16
    tasks: tuple[TaskEntry, ...]


@dataclass(frozen=True, slots=True)
class OpenedSwarmList:
    """A list whose signature was verified."""

    content: SwarmList
    swarms: tuple[PublishedSwarm, ...]
    document: bytes  # as it is kept and handed on

    @property
    def signer(self) -> str:
        """The peer id of the key that vouches for it."""
        return peer_id_of(self.content.signer)


def sign_swarm_list(key: NodeKey, content: SwarmList) -> bytes:
    """The document of a list. Raises ``ValueError`` if it names another signer than ``key``, and for what every reader
    would refuse."""
    if content.signer != key.public_bytes:
        raise ValueError("a list of swarms is signed by the key that it names")
    document = sign_document(key, SWARM_LIST_DOMAIN, content)
    try:
        open_swarm_list(document, now_seconds=None)
    except ProtocolError as error:
        raise ValueError(f"every reader would refuse the list: {error}") from error
    return document


def open_swarm_list(raw: bytes, *, now_seconds: float | None) -> OpenedSwarmList:
    """The list in ``raw``, if its signer signed it and it is valid now; with None, whenever it is valid.

    Raises ``OversizedError``, ``MalformedError`` (an entry's manifest that does not decode too), ``VersionError``,
    ``SignatureError`` (also of a private cluster's owner), and ``ClockError`` for a list from the future or one that
    has expired.
    """
    payload, signature = split_document(raw, max_bytes=limits.SWARM_LIST_BYTES)
    content = body_of(payload, SwarmList, max_bytes=limits.SWARM_LIST_BYTES)
    verify(content.signer, SWARM_LIST_DOMAIN, payload, signature)
    if now_seconds is not None:
        _check_times(content, now_seconds)
    return OpenedSwarmList(content, tuple(map(_published, content.swarms)), raw)


def _published(listed: ListedSwarm) -> PublishedSwarm:
    if listed.kind == "open":
        manifest = decode_manifest(listed.manifest)
        if not manifest.name:
            raise MalformedError("a swarm without a name")
        return PublishedSwarm(listed, manifest.name, manifest.swarm_id, manifest.tasks)
    cluster = open_manifest(listed.manifest)
    return PublishedSwarm(listed, cluster.manifest.name, cluster.swarm_id, cluster.manifest.tasks)


def _check_times(content: SwarmList, now_seconds: float) -> None:
    ahead_seconds = content.made_seconds - now_seconds
    if ahead_seconds > limits.CLOCK_WINDOW_SECONDS:
        raise ClockError(
            f"the list was signed {ahead_seconds:.0f} s in the future of this machine's clock: one of two clocks is "
            "wrong; set it (timedatectl set-ntp true), then try again",
            ahead_seconds,
        )
    over_seconds = now_seconds - content.until_seconds
    if over_seconds >= 0:
        raise ClockError(
            f"the list expired {over_seconds:.0f} s ago by this machine's clock: ask whoever signed it for a newer one",
            -over_seconds,
        )
