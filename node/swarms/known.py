"""The swarms that one data directory knows, from what it did before, invitations, signed lists and the local network.

Everything that others named is escaped here. Nothing is dialled: a list's addresses are only shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, Literal

from msgspec import Struct

from node.configuration import Config
from node.home import Home
from node.lending.invited import invitation_of
from node.printable import printable
from node.supervision.cluster_setup import invite_text
from node.swarms.list_files import ReadList
from node.tasks.registry import default_manifest_tasks
from protocol import limits
from protocol.cluster.invite import decode_invite
from protocol.donor_invitation import DonorInvitation
from protocol.errors import ConfigurationError, ProtocolError, StorageError
from protocol.identity import peer_id_of
from protocol.manifest import Manifest, TaskEntry
from protocol.swarm_list import PublishedSwarm, SwarmKind
from swarm.cluster.cluster_files import cluster_files, has_cluster, read_cluster
from swarm.host import LanSwarm
from swarm.hosts.lan import HeardHost
from swarm.peers.remembered_addresses import RememberedAddresses

SwarmSource = Literal["this directory", "invitation", "list", "local network"]

ASK_OWNER: Final = "it is private: its owner prints an invite with starling invite, and starling up --join INVITE joins"
CLUSTER_OF_INVITE: Final = "(a private cluster; the invite does not name it)"
DOORS_SHOWN: Final = limits.ADDRESSES_PER_PEER


class KnownTask(Struct, frozen=True):
    name: str
    version: int
    ours: bool  # whether this version of starling has the same task, with the same configuration


class Voucher(Struct, frozen=True):
    """Who signed the list in which a swarm stands."""

    signer: str  # peer id
    list_name: str
    made_seconds: int
    until_seconds: int
    seen_before: bool  # whether a list of this signer had been read in this data directory before
    source: str


class KnownSwarm(Struct, frozen=True):
    """A swarm, as one source names it."""

    name: str
    swarm_id: str  # hexadecimal
    kind: SwarmKind
    source: SwarmSource
    doors: tuple[str, ...]  # addresses
    tasks: tuple[KnownTask, ...] | None  # None: the source names none
    about: str
    vouched_by: Voucher | None  # of a list
    obstacle: str | None  # why starling up --swarm cannot join it; None: it can


def swarms_of_directory(home: Home, config: Config, environment: Mapping[str, str]) -> Iterator[KnownSwarm]:
    """Yields the swarm of the data directory, and those of the invitations that it holds. Raises ``IdentityError`` for
    files of a cluster that cannot be used."""
    remembered: list[str] = []
    with suppress(StorageError):  # the node says so when it starts
        remembered = RememberedAddresses(home.peers).load()
    doors = tuple(printable(each, limits.ADDRESS_CHARACTERS) for each in remembered[:DOORS_SHOWN])
    files = cluster_files(home.path)
    if has_cluster(files):
        cluster = read_cluster(files)
        name, tasks = cluster.manifest.name, cluster.manifest.tasks
        yield _swarm(name, cluster.swarm_id, "private", "this directory", doors, tasks, member=True)
    else:
        manifest = Manifest(config.swarm.name, default_manifest_tasks())
        yield _swarm(manifest.name, manifest.swarm_id, "open", "this directory", doors, manifest.tasks)
    with suppress(ConfigurationError, StorageError):  # none is kept, or it cannot be read, as starling lend says
        yield _swarm_of_donor(invitation_of(home, None))
    with suppress(ConfigurationError, ProtocolError):  # none is given, or starling up --join says what is wrong
        invite = decode_invite(invite_text(environment.get("STARLING_JOIN", "")))
        yield _swarm(
            CLUSTER_OF_INVITE, invite.invitation.swarm_id, "private", "invitation", invite.addresses, None,
            about=f"invited by the owner of the key {peer_id_of(invite.owner)}: starling up --join",
        )  # fmt: skip


def swarms_of_list(read: ReadList) -> Iterator[KnownSwarm]:
    content = read.opened.content
    voucher = Voucher(
        read.opened.signer,
        printable(content.name, limits.NAME_BYTES),
        content.made_seconds,
        content.until_seconds,
        read.seen_before,
        printable(read.source),
    )
    for each in read.opened.swarms:
        yield _listed(each, voucher)


def swarms_on_network(heard: Iterable[HeardHost]) -> Iterator[KnownSwarm]:
    """Yields the open swarms that hosts on the local network name, each once. Both name and id are claims: of a swarm
    that can be joined the id is that of its name."""
    doors: dict[LanSwarm, list[str]] = {}
    for host in heard:
        if host.swarm is not None:
            doors.setdefault(host.swarm, []).extend(host.addresses)
    for swarm, addresses in doors.items():
        shown = tuple(printable(each, limits.ADDRESS_CHARACTERS) for each in addresses[:DOORS_SHOWN])
        yield _swarm(swarm.name, bytes.fromhex(swarm.swarm_id), "open", "local network", shown, None)


def _swarm_of_donor(invitation: DonorInvitation) -> KnownSwarm:
    kind: SwarmKind = "private" if invitation.cluster_invite else "open"
    doors = tuple(printable(each, limits.ADDRESS_CHARACTERS) for each in invitation.addresses)
    about = f"this machine lends an engine to {invitation.owner} there: starling lend"
    return _swarm(invitation.swarm_name, invitation.swarm_id, kind, "invitation", doors, None, about=about)


def _listed(swarm: PublishedSwarm, voucher: Voucher) -> KnownSwarm:
    return _swarm(
        swarm.name,
        swarm.swarm_id,
        swarm.listed.kind,
        "list",
        swarm.listed.doors,  # their alphabet was checked
        swarm.tasks,
        about=printable(swarm.listed.about, limits.REASON_BYTES),
        vouched_by=voucher,
    )


def _swarm(
    name: str,
    swarm_id: bytes,
    kind: SwarmKind,
    source: SwarmSource,
    doors: tuple[str, ...],
    tasks: tuple[TaskEntry, ...] | None,
    *,
    about: str = "",
    vouched_by: Voucher | None = None,
    member: bool = False,
) -> KnownSwarm:
    ours = frozenset(default_manifest_tasks())
    shown = None if tasks is None else tuple(KnownTask(printable(t[0], 64), t[1], t in ours) for t in tasks)
    return KnownSwarm(
        printable(name, limits.NAME_BYTES),
        swarm_id.hex(),
        kind,
        source,
        doors,
        shown,
        about,
        vouched_by,
        None if member else _obstacle(name, swarm_id, kind),
    )


def _obstacle(name: str, swarm_id: bytes, kind: SwarmKind) -> str | None:
    if kind == "private":
        return ASK_OWNER
    if printable(name, limits.NAME_BYTES) != name:
        return "its name holds characters that do not show: ask for a swarm with another name"
    if Manifest(name, default_manifest_tasks()).swarm_id != swarm_id:
        return "its tasks are not those of this version of starling: use the version that its members use"
    return None
