"""``starling relay``: a peer that only introduces and relays, for those who want to give a swarm a door."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from node.cli.options import HomeOption, JoinOption, JsonEventsOption, PeerOption, SetOption
from node.cli.verbs.up import flags_of, given_invite, refuse

OPTIONS: Final = {"swarm.peers": "--peer", "swarm.listen": "--listen"}  # each key that has an option of its own


def relay(
    home: HomeOption = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The address to listen on. Default: /ip4/0.0.0.0/tcp/4001."),
    ] = None,
    peer: PeerOption = None,
    join: JoinOption = None,
    sets: SetOption = None,
    as_json: JsonEventsOption = False,
) -> None:
    """Give a swarm a door: a small peer that only introduces and relays. It trains nothing and keeps no blobs.

    Run it where others can dial it, with a data directory of its own. The
    first Ctrl-C says goodbye, a second one ends it at once. starling status
    and starling down work as with a node.

    Examples:

    starling relay --home /var/lib/starling-relay

    starling relay --listen /ip4/0.0.0.0/tcp/4001 --set swarm.name=lab

    starling relay --join invite.txt
    """
    from node.doctor.before_start import check_relay
    from node.home import home_at
    from node.relay.starting import become_relay, prepare_relay
    from node.supervision.outcome import RunOutcome
    from swarm.exit_codes import ExitCode

    where = home_at(home, os.environ)
    flags = flags_of(None, None, peer, listen, None, None, sets)
    options = {key: OPTIONS[key] for key in flags_of(None, None, peer, listen, None, None, None)}
    invite, refused_invite = given_invite(join or os.environ.get("STARLING_JOIN"))
    checked = check_relay(where, os.environ, flags, options)
    if checked.errors or refused_invite:
        code = checked.exit_code or ExitCode.BAD_CONFIGURATION
        refuse((*refused_invite, *checked.errors), code, options, as_json=as_json)
    prepared = prepare_relay(where, checked.resolved.config, invite)
    if isinstance(prepared, RunOutcome):
        typer.echo(f"starling: {prepared.because}", err=True)
        raise typer.Exit(prepared.exit_code)
    become_relay(*prepared, as_json=as_json)
