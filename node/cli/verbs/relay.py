"""``starling relay``: a peer that only introduces and relays, for those who want to give a swarm a door."""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from node.cli.options import HomeOption, JoinOption, JsonEventsOption, PeerOption, SetOption, assignments, home_of
from node.cli.verbs.up import accepted_invite, flags_of, prepared_or_exit

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
    from node.relay.starting import become_relay, prepare_relay

    where = home_of(home)
    given = flags_of({"swarm.peers": peer, "swarm.listen": listen})
    options = {key: OPTIONS[key] for key in given}
    checked = check_relay(where, os.environ, assignments(sets) | given, options)
    invite = accepted_invite(where, join, checked, options, as_json=as_json)
    become_relay(*prepared_or_exit(prepare_relay(where, checked.resolved.config, invite)), as_json=as_json)
