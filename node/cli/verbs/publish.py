"""``starling swarm publish``: signs a list with this directory's swarm, for others to join it by its name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import HomeOption, JsonOption, home_of, print_answer
from node.cli.verbs.swarm import addresses_to_invite, duration_seconds, swarm_here
from node.home import Home
from protocol.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from protocol.swarm_list import ListedSwarm


def publish(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The list to write; an earlier one is replaced.")],
    name: Annotated[
        str | None,
        typer.Option("--swarm", metavar="NAME", help="The open swarm. Default: that of the node or relay here."),
    ] = None,
    doors: Annotated[
        list[str] | None,
        typer.Option(
            "--door",
            metavar="ADDRESS",
            help="An address at which newcomers are met: /ip4/…/tcp/…/p2p/… or /dns4/…. Repeatable. Default: those of "
            "the node or relay that runs here, or of the relays through which it is reached.",
        ),
    ] = None,
    about: Annotated[str, typer.Option("--about", metavar="TEXT", help="What the swarm is for, whom to ask.")] = "",
    by: Annotated[str, typer.Option("--by", metavar="TEXT", help="A name for the list, such as yours.")] = "",
    expires: Annotated[str, typer.Option("--expires", help="How long the list is valid: 12h, 30d.")] = "30d",
    also: Annotated[
        list[str] | None,
        typer.Option("--also", metavar="FILE-OR-URL", help="Vouch for the swarms of this list too. Repeatable."),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign a list with this directory's swarm, for others to join by its name. Host the file where you like: on a web
    server, in a repository, in a mail.

    It has the swarm's name, tasks and doors, and no secret. It is signed by the
    key of this directory, by which readers recognise you: publish from one
    directory, and anew before the list expires. Of a private cluster it has
    the owner's manifest, and nobody joins without an invite.

    Examples:

    starling swarm publish swarms.list --about "sums for beginners"

    starling swarm publish swarms.list --swarm lark --door /dns4/door.example.org/tcp/4001/p2p/12D3KooW…
    """
    from node.swarms.list_files import read_list
    from protocol.identity import NodeKey
    from protocol.swarm_list import SwarmList, sign_swarm_list

    where, now = home_of(home), int(time.time())
    until = now + duration_seconds(expires, "--expires")
    where.prepare()
    key = NodeKey.load_or_create(where.key)
    own = _own_swarm(where, name, doors, about)
    others = [each for source in also or [] for each in read_list(where, source, now).opened.content.swarms]
    try:
        document = sign_swarm_list(key, SwarmList(key.public_bytes, by, now, until, (own, *others)))
    except ValueError as error:
        raise ConfigurationError(f"this list cannot be published: {error}") from None
    _write(file, document)
    answer = {"file": str(file), "signer": key.peer_id, "until_seconds": until, "doors": own.doors}
    print_answer(
        answer,
        as_json,
        lambda: [
            f"{file}: {len(document):,} bytes, signed by {key.peer_id}.",
            f"Doors: {', '.join(own.doors) or 'none'}.",
            f"Host it, and tell others its address and your key. They type: starling swarms --list {file}",
        ],
    )


def _own_swarm(home: Home, name: str | None, doors: list[str] | None, about: str) -> ListedSwarm:
    """Raises ``ConfigurationError`` where nobody could join by it."""
    from node.configuration.sources import load_config
    from node.doctor.addresses import judge_peer
    from node.printable import printable
    from node.tasks.registry import default_manifest_tasks
    from protocol import limits
    from protocol.manifest import Manifest
    from protocol.swarm_list import ListedSwarm
    from swarm.cluster.cluster_files import cluster_files, has_cluster, read_cluster

    for wrong in filter(None, map(judge_peer, doors or [])):
        raise ConfigurationError(f"--door: {wrong.message}; {wrong.remedy}")
    files = cluster_files(home.path)
    if has_cluster(files) and name is None:
        return ListedSwarm("private", read_cluster(files).document, tuple(doors or ()), about)
    here = swarm_here(home)
    if not doors and here is not None and (name or here.swarm) == here.swarm:
        doors = addresses_to_invite(here.addresses, is_dialled=not here.reach.is_out_of_reach)
    if not doors:
        raise ConfigurationError(
            "nobody could join without a door: start the node or relay of this directory first, or give --door ADDRESS"
        )
    name = name or (here.swarm if here is not None else load_config(home.path, os.environ, {}).swarm.name)
    if not name or printable(name) != name:
        raise ConfigurationError(f"--swarm {printable(name)}: write a name, without characters that do not show")
    manifest = Manifest(name, default_manifest_tasks())
    return ListedSwarm("open", manifest.encode(), tuple(doors[: limits.ADDRESSES_PER_PEER]), about)


def _write(file: Path, document: bytes) -> None:
    """Replaces ``file``, readable by a web server; a reader sees the old list or the new."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(document)
        unfinished.replace(file)
    except OSError as error:
        raise StorageError(f"{file} cannot be written ({error.strerror}): name another file") from None
