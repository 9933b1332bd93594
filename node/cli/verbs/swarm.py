"""``starling swarm create|show`` and ``starling invite``: a private cluster, and invites for new members."""

from __future__ import annotations

import re
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import HomeOption, JsonOption, home_of, print_answer
from node.home import Home
from protocol.errors import ConfigurationError, TransportError, UnreachableError

if TYPE_CHECKING:
    from swarm.api import SwarmStatus

DAY_SECONDS = 86_400
EXPIRES, SPOKEN_EXPIRES = "7d", "10m"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": DAY_SECONDS}
OwnerKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--owner-key", metavar="FILE", help="The owner's key. Default: cluster/owner.key in the data directory."
    ),
]

app = typer.Typer(help="Create a private cluster, or show that of this data directory.", no_args_is_help=True)


@app.command("create")
def create_cluster(
    name: Annotated[str, typer.Option("--name", help="The cluster's name.")],
    private: Annotated[
        bool,
        typer.Option("--private/--no-private", help="Only members are admitted. An open swarm need not be created."),
    ],
    home: HomeOption = None,
    owner_key: OwnerKeyOption = None,
    owner_only: Annotated[
        bool, typer.Option("--owner-only", help="The owner's node must admit every new member.")
    ] = False,
    members: Annotated[int, typer.Option("--members", help="The largest number of members.")] = 256,
    membership: Annotated[
        str, typer.Option("--membership", help="How long a membership lasts until it must be renewed.")
    ] = "365d",
    as_json: JsonOption = False,
) -> None:
    """Make an owner key, a signed manifest and a pre-shared key. This node is the first member. Existing files are
    never replaced.

    Example: starling swarm create --private --name lab
    """
    from node.cli.swarm_facts import cluster_facts, cluster_lines
    from node.tasks.registry import default_manifest_tasks
    from protocol import limits
    from protocol.cluster.cluster_manifest import ClusterManifest
    from protocol.cluster.invite import PSK_BYTES
    from protocol.identity import NodeKey
    from swarm.cluster.cluster_files import cluster_files, found_cluster

    if not private:
        raise ConfigurationError(
            "an open swarm need not be created: all nodes with the same swarm.name form one; for a private cluster use "
            "--private"
        )
    if not 1 <= len(name.encode()) <= limits.NAME_BYTES or not 1 <= members <= limits.MEMBERS:
        raise ConfigurationError(
            f"--name takes 1 to {limits.NAME_BYTES} bytes, --members 1 to {limits.MEMBERS}; {len(name.encode())} and "
            f"{members} were given"
        )
    where = home_of(home)
    where.prepare()
    files = cluster_files(where.path, owner_key)
    owner = NodeKey.load_or_create(files.owner_key)
    manifest = ClusterManifest(
        name=name,
        tasks=default_manifest_tasks(),
        owner=owner.public_bytes,
        made_seconds=int(time.time()),
        admission="owner" if owner_only else "invitation",
        members=members,
        membership_seconds=duration_seconds(membership, "--membership"),
    )
    node = NodeKey.load_or_create(where.key)
    found_cluster(files, manifest, owner=owner, node=node, psk=secrets.token_bytes(PSK_BYTES))
    facts = cluster_facts(files)
    print_answer(facts, as_json, lambda: cluster_lines(facts))


@app.command("show")
def show_cluster(home: HomeOption = None, owner_key: OwnerKeyOption = None, as_json: JsonOption = False) -> None:
    """Print the terms of the cluster of this data directory and its members. It prints no secret.

    Example: starling swarm show --json
    """
    from node.cli.swarm_facts import cluster_facts, cluster_lines
    from swarm.cluster.cluster_files import cluster_files

    facts = cluster_facts(cluster_files(home_of(home).path, owner_key))
    print_answer(facts, as_json, lambda: cluster_lines(facts))


def invite(
    home: HomeOption = None,
    owner_key: OwnerKeyOption = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", help="How long the invite is valid: 30m, 12h, 7d. Default: 7d; with --spoken 10m, at most 1h."
        ),
    ] = None,
    seats: Annotated[int, typer.Option("--seats", help="How many peers may join by the invite.")] = 1,
    needs_owner: Annotated[
        bool, typer.Option("--needs-owner", help="The owner's node must admit each new member.")
    ] = False,
    name: Annotated[str, typer.Option("--for", metavar="NAME", help="The name of the person or node invited.")] = "",
    address: Annotated[
        list[str] | None,
        typer.Option(
            "--address",
            help="An address of a member: /ip4/…/tcp/…/p2p/…. Repeatable. Default: the addresses of this node, or of "
            "the relays through which it is reached.",
        ),
    ] = None,
    qr: Annotated[
        bool, typer.Option("--qr", help="Also draw the invite as a QR code, on standard error, for a telephone.")
    ] = False,
    spoken: Annotated[
        bool,
        typer.Option(
            "--spoken",
            help="Print 16 digits and an address to read out over the telephone instead, and wait until they are used. "
            "The invite itself waits at this node, or at a relay of it.",
        ),
    ] = False,
) -> None:
    """Print an invite: one string that admits a new member. Protect it like a password.

    Examples:

    starling invite --for Wren --expires 12h

    starling invite --qr

    starling invite --spoken --for Wren
    """
    from protocol import limits
    from swarm.cluster.cluster_files import cluster_files, has_cluster

    where = home_of(home)
    if not has_cluster(cluster_files(where.path, owner_key)):
        raise ConfigurationError(
            f"{where.path} belongs to no private cluster, and an open swarm needs no invite: others join with starling "
            "up --peer ADDRESS, and starling status prints the addresses of this node. To found a cluster: starling "
            "swarm create --private --name NAME"
        )
    if not 1 <= seats <= limits.MEMBERS or len(name.encode()) > limits.NAME_BYTES:
        raise ConfigurationError(
            f"--seats takes 1 to {limits.MEMBERS}, --for at most {limits.NAME_BYTES} bytes; {seats} and "
            f"{len(name.encode())} were given"
        )
    seconds = duration_seconds(expires or (SPOKEN_EXPIRES if spoken else EXPIRES), "--expires")
    if spoken:
        if seats != 1 or qr or seconds > limits.LETTER_SECONDS:
            raise ConfigurationError(
                "a code that is read out admits one newcomer within an hour: leave out --seats and --qr, and give at "
                f"most --expires {limits.LETTER_SECONDS}s"
            )
        _invite_spoken(where, owner_key, address or None, seconds, needs_owner=needs_owner, name=name)
        return
    text = signed_invite(
        where, owner_key, address or None, seconds=seconds, seats=seats, needs_owner=needs_owner, name=name
    )
    if qr:
        import segno

        segno.make(text, error="l", micro=False).terminal(sys.stderr, compact=True)
    typer.echo(text)


def _invite_spoken(
    home: Home, owner_key: Path | None, address: Sequence[str] | None, seconds: int, *, needs_owner: bool, name: str
) -> None:
    """Leaves an invite where a newcomer can ask for it, prints the code, and waits until it is used."""
    from node.cli.spoken import leave_spoken, places_of, spoken_lines, wait_until_taken
    from protocol import limits
    from protocol.cluster.invite import decode_invite
    from protocol.cluster.spoken_code import shown_code
    from swarm.client import SwarmClient

    here = swarm_here(home)
    if here is None:
        raise UnreachableError(
            "no node runs here, and the invite has to wait at one: start it (starling up, or starling relay), or print "
            "the whole invite with starling invite"
        )
    join_by = seconds + int(limits.CLOCK_WINDOW_SECONDS)  # for one that takes it last, by another clock
    text = signed_invite(home, owner_key, address, seconds=join_by, needs_owner=needs_owner, name=name)
    until_seconds = time.time() + seconds
    with SwarmClient(home.swarm_socket) as client:
        code, lookup, holder = leave_spoken(client, text, seconds)
        if holder == here.peer and here.reach.is_out_of_reach:
            typer.echo(
                "No peer that tried can dial this node, and it has no relay: the code works on its local network.",
                err=True,
            )
        places = places_of(here.addresses, holder)
        typer.echo(f"{shown_code(code)}@{places[0]}")
        for line in spoken_lines(code, places, until_seconds):
            typer.echo(line, err=True)
        revocable = decode_invite(text).invitation.key.hex()
        typer.echo(wait_until_taken(client, lookup, revocable, until_seconds), err=True)


def signed_invite(
    home: Home,
    owner_key: Path | None,
    address: Sequence[str] | None,
    *,
    seconds: int,
    seats: int = 1,
    needs_owner: bool = False,
    name: str = "",
) -> str:
    """Returns an invite to the private cluster of a data directory, valid for ``seconds``. Without ``address`` it has
    those of the node that runs there. Raises ``ConfigurationError``, ``IdentityError`` where the owner's key is not at
    hand."""
    from protocol.cluster.documents import Invitation, sign_invitation
    from protocol.cluster.invite import address_to_invite, encode_invite
    from protocol.identity import NodeKey
    from swarm.cluster.cluster_files import cluster_files, current_psk, note_invitation, read_cluster, read_owner

    files = cluster_files(home.path, owner_key)
    cluster = read_cluster(files)
    owner, psk = read_owner(files, cluster), current_psk(files, cluster)
    key, now = NodeKey.generate(), int(time.time())
    needs_owner = needs_owner or cluster.manifest.admission == "owner"
    invitation = Invitation(cluster.swarm_id, key.public_bytes, seats, needs_owner, now, now, now + seconds, name)
    document = sign_invitation(owner, invitation)
    if address is None:
        address = addresses_here(home, needs_owner=needs_owner)
    else:
        address = list(dict.fromkeys(map(address_to_invite, address)))
    try:
        invite = encode_invite(document=document, key=key, owner=owner.public_bytes, psk=psk, addresses=address)
    except ValueError as error:
        raise ConfigurationError(f"--address: {error}") from error
    note_invitation(files, cluster, document, now)
    return invite


def duration_seconds(text: str, option: str) -> int:
    """Returns ``30m``, ``12h``, ``7d`` in seconds. Raises ``ConfigurationError`` that names the option."""
    matched = re.fullmatch(r"([1-9][0-9]{0,5})([smhd])", text)
    if matched is None:
        raise ConfigurationError(f"{option} {text}: write a number and a unit, one of s, m, h, d, such as 7d")
    return int(matched[1]) * _UNITS[matched[2]]


def addresses_here(home: Home, *, needs_owner: bool) -> list[str]:
    """Returns the addresses to invite to, of the node or relay that runs in this data directory; none where none runs.
    Says on standard error where nobody could join by them."""
    swarm = swarm_here(home)
    is_unreached = swarm is not None and swarm.reach.is_out_of_reach
    addresses = addresses_to_invite(swarm.addresses, is_dialled=not is_unreached) if swarm else []
    if not addresses:
        typer.echo(
            "This invite has no address, because no node runs here: it works only on the local network of a member. To "
            "use it elsewhere, start the node first, or give a member's address with --address.",
            err=True,
        )
    elif needs_owner and is_unreached:
        typer.echo(
            "No peer that tried can dial this node, and a relay admits nobody to an invite that needs the owner: it "
            "works only on this node's local network. To use it elsewhere: forward a port of the router to this "
            "machine.",
            err=True,
        )
    return addresses


def swarm_here(home: Home) -> SwarmStatus | None:
    """Returns the swarm's state of the node or relay that runs in this data directory; None where none runs."""
    from node.api.node_client import ask_status
    from node.relay.asking import relay_status

    try:
        return ask_status(home).swarm
    except TransportError:
        return relay_status(home)


def addresses_to_invite(addresses: Sequence[str], *, is_dialled: bool) -> list[str]:
    """Returns the addresses for an invite, those first at which most newcomers find a member: of a node that can be
    dialled its own, otherwise those of the relays through which it is reached. Loopback comes in only where there is
    nothing else."""
    from protocol import limits
    from protocol.cluster.invite import address_to_invite

    own = [a for a in addresses if address_to_invite(a) == a]
    relays = [address_to_invite(a) for a in addresses if a not in own]
    ordered = dict.fromkeys([*own, *relays] if is_dialled else [*relays, *own])
    beyond = [a for a in ordered if not a.startswith(("/ip4/127.", "/ip6/::1/"))]
    return (beyond or list(ordered))[: limits.INVITE_ADDRESSES]
