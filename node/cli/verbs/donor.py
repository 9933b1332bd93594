"""``starling donor invite|list|remove``: other machines, your own or friends', that generate for this node or hold
layers of its model."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import HomeOption, JsonOption, home_of, print_answer
from node.cli.verbs.swarm import OwnerKeyOption, addresses_here, duration_seconds, signed_invite
from protocol.errors import ConfigurationError, TransportError

if TYPE_CHECKING:
    from swarm.donors.donor_list import ListedDonor

app = typer.Typer(
    help="Invite machines, your own or friends', that generate for this node or hold its layers: starling lend.",
    no_args_is_help=True,
)


@app.command("invite")
def invite(
    home: HomeOption = None,
    owner_key: OwnerKeyOption = None,
    expires: Annotated[str, typer.Option("--expires", help="How long the invitation is valid: 30m, 12h, 7d.")] = "7d",
    name: Annotated[str, typer.Option("--for", metavar="NAME", help="The name of the machine or person.")] = "",
    address: Annotated[
        list[str] | None,
        typer.Option(
            "--address", help="An address of this node: /ip4/…/tcp/…/p2p/…. Repeatable. Default: those it has now."
        ),
    ] = None,
) -> None:
    """Print an invitation: one string that makes one machine a donor of this node. Protect it like a password.

    Examples:

    starling donor invite --for attic

    starling donor invite --expires 12h --address /ip4/203.0.113.7/tcp/4001/p2p/12D3KooW…
    """
    from node.configuration.sources import resolve
    from node.doctor.addresses import judge_peer
    from node.supervision.cluster_setup import credentials_of
    from node.supervision.swarm_settings import swarm_settings
    from protocol.donor_invitation import DonorInvitation, encode_donor_invitation
    from protocol.identity import NodeKey
    from protocol.limits import NAME_BYTES
    from swarm.donors import donor_list

    where = home_of(home)
    if len(name.encode()) > NAME_BYTES:
        raise ConfigurationError(f"--for takes at most {NAME_BYTES} bytes; {len(name.encode())} were given")
    seconds = duration_seconds(expires, "--expires")
    where.prepare()
    key = NodeKey.load_or_create(where.key)
    settings = swarm_settings(where, resolve(where.path, os.environ, {}).config, credentials_of(where, key))
    faults = [found for each in address or () if (found := judge_peer(each)) is not None]
    if faults:
        raise ConfigurationError(f"--address: {faults[0].message}: {faults[0].remedy}")
    addresses = tuple(address or addresses_here(where, needs_owner=False))
    invited = ""
    if settings.private:
        invited = signed_invite(where, owner_key, addresses, seconds=seconds, name=name)
    secret, now = secrets.token_bytes(32), time.time()
    invitation = DonorInvitation(key.peer_id, addresses, settings.swarm_name, settings.swarm_id_bytes, secret, invited)
    text = encode_donor_invitation(invitation)
    donor_list.change_donors(
        where.donors,
        lambda donors: donor_list.invite(donors, secret, name, now_seconds=now, until_seconds=now + seconds),
    )
    typer.echo(text)


@app.command("list")
def list_donors(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the donors of this node, and the invitations that are open. starling status shows what they do.

    Example: starling donor list --json
    """
    from swarm.donors.donor_list import read_donors

    donors = read_donors(home_of(home).donors)
    none = ["No donors. Invite one with starling donor invite; on the other machine: starling lend --to …"]
    print_answer([_facts(each) for each in donors], as_json, lambda: [_line(each) for each in donors] or none)


@app.command("remove")
def remove(
    named: Annotated[
        str, typer.Argument(metavar="PEER", help="The donor's name or peer id, or the name of an open invitation.")
    ],
    home: HomeOption = None,
) -> None:
    """Put a donor out, or take an open invitation back. It takes effect at once, and the machine may be invited again.

    Example: starling donor remove attic
    """
    from node.cli.peer_names import KnownName, id_of, names_met
    from swarm.client import SwarmClient
    from swarm.donors import donor_list

    where = home_of(home)
    before = donor_list.read_donors(where.donors)
    met = [each for each in names_met(where) if each.id in {donor.id for donor in before}]
    invited = [KnownName.of(donor.name, donor.id) for donor in before]
    found = id_of(named, invited, met, where="starling donor list")
    after = donor_list.change_donors(where.donors, lambda donors: donor_list.without(donors, found))
    if len(after) == len(before):
        raise ConfigurationError(f"{found} is no donor of this node: starling donor list")
    for each in before:
        if each not in after and each.peer and not each.dropped_because:
            with suppress(TransportError), SwarmClient(where.swarm_socket) as client:  # where no node runs: no stream
                client.cut_off_donor(each.peer)
    typer.echo("Removed.")


def _facts(donor: ListedDonor) -> dict[str, object]:
    return {
        "name": donor.name,
        "peer": donor.peer or None,
        "state": _state(donor),
        "until_seconds": donor.until_seconds,
        "dropped_because": donor.dropped_because or None,
    }


def _state(donor: ListedDonor) -> str:
    if donor.dropped_because:
        return "dropped"
    if donor.peer:
        return "donor"
    return "invited" if donor.is_open(time.time()) else "expired"


def _line(donor: ListedDonor) -> str:
    from node.printable import one_line, printable

    why = f": {one_line(donor.dropped_because, 300)}" if donor.dropped_because else ""
    return f"{_state(donor):8}  {printable(donor.name) or '–':16}  {donor.peer or '–'}{why}"
