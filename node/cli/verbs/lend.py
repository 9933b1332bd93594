"""``starling lend``: generates on this machine for the owner who invited it, or holds layers of its model."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from node.cli.options import HomeOption, JsonEventsOption, SetOption, assignments, home_of
from node.cli.verbs.up import ListenOption, NameOption, flags_of, prepared_or_exit


def lend(
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="INVITATION",
            help="The owner's invitation, starling-lend://…, or a file that holds one; needed at the first start only.",
        ),
    ] = None,
    home: HomeOption = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="This machine's copy of the owner's model, where the owner's is a folder."),
    ] = None,
    name: NameOption = None,
    listen: ListenOption = None,
    sets: SetOption = None,
    as_json: JsonEventsOption = False,
) -> None:
    """Lend this machine to an owner who invited it: it generates for that owner's node, or holds layers of its model.

    It trains nothing of its own and holds no data. The owner's model must be here
    too: a built-in one is, a hub id is taken from the hub, a folder you name with
    --model. What is trained comes from the owner, and stays in memory. Use a data
    directory of its own where this machine also trains. The first Ctrl-C says
    goodbye, a second one ends it at once. starling status and starling down
    work as with a node.

    Examples:

    starling lend --to 'starling-lend://1…'

    starling lend --to invitation.txt --home ~/lent --model ./my-model

    starling lend --home ~/lent
    """
    from node.lending.starting import become_donor, prepare_lending

    flags = assignments(sets) | flags_of({"policy.model": model, "name": name, "swarm.listen": listen})
    become_donor(*prepared_or_exit(prepare_lending(home_of(home), os.environ, flags, to)), as_json=as_json)
