"""What ``starling swarms`` lists, and where a start goes that was given the name of a swarm or of a friend."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import typer

from node.cli.peer_names import KnownName, id_of, names_met
from node.configuration import Config
from node.configuration.sources import resolve
from node.home import Home
from node.printable import printable
from node.quantities import counted
from node.swarms.choosing import SwarmChoice, chosen_swarm, friend_doors
from node.swarms.known import KnownSwarm, swarms_of_directory, swarms_of_list, swarms_on_network
from node.swarms.list_files import ReadList, kept_lists, read_list
from protocol.cluster.refusal import utc
from protocol.errors import ConfigurationError
from protocol.identity import NodeKey
from swarm.cluster.cluster_files import cluster_files, has_cluster
from swarm.peers.remembered_addresses import RememberedAddresses

LISTEN_SECONDS: Final = 2.0  # to the local network
TASKS_SHOWN: Final = 12


def known_swarms(home: Home, lists: Sequence[str]) -> tuple[list[KnownSwarm], list[str]]:
    """Returns all swarms that are known, and why lists that were kept are left out. ``lists`` are read and
    kept. Raises the errors of ``read_list``."""
    config, now_seconds = resolve(home.path, os.environ, {}).config, time.time()
    given = [read_list(home, source, now_seconds) for source in lists]
    kept, refused = kept_lists(home, now_seconds)
    signers = {each.opened.signer for each in given}
    others = [each for each in kept if each.opened.signer not in signers]
    return [*_named(home, config, [*given, *others]), *_heard(home, config)], refused


def swarm_to_join(home: Home, named: str, lists: Sequence[str], flags: Mapping[str, str]) -> SwarmChoice:
    """Returns how to join the swarm ``named``. Where ``lists`` are given, what other signers listed does not count; the
    local network is listened to for a name that nothing else knows.

    Raises ``ConfigurationError``, and the errors of ``read_list``.
    """
    config, now_seconds = resolve(home.path, os.environ, flags).config, time.time()
    given = [read_list(home, source, now_seconds) for source in lists]
    known = [*_named(home, config, given or kept_lists(home, now_seconds)[0])]
    if printable(named) not in {each.name for each in known}:
        known += _heard(home, config)
    return chosen_swarm(named, known)


def friend_to_join(home: Home, named: str) -> tuple[str, ...]:
    """Returns the addresses of the peer that this directory met under the name ``named``, or with that peer id.

    Names in a private cluster's certificates come before those that peers gave themselves. Raises
    ``ConfigurationError`` that lists the names known, ``StorageError``.
    """
    files, certified = cluster_files(home.path), []
    if has_cluster(files):
        from node.cli.swarm_facts import cluster_facts

        certified = [KnownName.of(each["name"], each["peer"]) for each in cluster_facts(files)["members"]]
    met = names_met(home)
    if not certified and not met:
        raise ConfigurationError(
            f"this directory has met no node yet, so it knows no {printable(named)}: give an address with --peer"
        )
    peer = id_of(named, certified, met, where="starling peers")
    return friend_doors(named, peer, RememberedAddresses(home.peers).load())


def swarm_lines(swarms: Sequence[KnownSwarm], refused: Sequence[str]) -> Iterator[str]:
    """Yields what ``starling swarms`` prints."""
    for swarm in swarms:
        yield f"{swarm.name} ({swarm.kind}, {swarm.swarm_id[:8]}): {_from(swarm)}"
        if swarm.vouched_by is not None:
            voucher = swarm.vouched_by
            seen = "read here before" if voucher.seen_before else "NEW to this directory: compare it with its owner's"
            yield f"  signer  {voucher.signer}, {seen}"
            yield f"  signed  {utc(voucher.made_seconds)}, valid until {utc(voucher.until_seconds)}"
        if swarm.about:
            yield f"  about   {swarm.about}"
        if swarm.tasks is not None:
            yield f"  tasks   {_tasks(swarm)}"
        for door in swarm.doors:
            yield f"  door    {door}"
        yield f"  join    {swarm.obstacle or f'starling up --swarm {shlex.quote(swarm.name)}'}"
        yield ""
    for why in refused:
        yield f"left out: {why}"
    yield "Others can be met by a signed list: starling swarms --list FILE-OR-URL. Nothing here was dialled."


def _named(home: Home, config: Config, lists: Sequence[ReadList]) -> Iterator[KnownSwarm]:
    yield from swarms_of_directory(home, config, os.environ)
    for each in lists:
        yield from swarms_of_list(each)


def _heard(home: Home, config: Config) -> list[KnownSwarm]:
    """Returns the open swarms that hosts on the local network name within ``LISTEN_SECONDS``; none where discovery is
    off or multicast cannot be used."""
    if not config.swarm.lan_discovery:
        return []
    from swarm.hosts.lan import hear_hosts

    ourselves = NodeKey.load(home.key).peer_id if home.key.exists() else ""
    try:
        return [*swarms_on_network(hear_hosts(LISTEN_SECONDS, ourselves=ourselves))]
    except OSError as error:
        typer.echo(f"The local network cannot be listened to ({error.strerror}).", err=True)
        return []


def _from(swarm: KnownSwarm) -> str:
    if swarm.vouched_by is not None:
        return f"from the list {swarm.vouched_by.list_name or '(no name)'}, {swarm.vouched_by.source}"
    return {
        "this directory": f"this directory's own, {counted(len(swarm.doors), 'door')} remembered",
        "invitation": "from an invitation",
        "local network": "on the local network",
    }[swarm.source]


def _tasks(swarm: KnownSwarm) -> str:
    tasks = swarm.tasks or ()
    shown = [task.name if task.ours else f"{task.name} (version {task.version}, not known here)" for task in tasks]
    more = len(shown) - TASKS_SHOWN
    return ", ".join(shown[:TASKS_SHOWN]) + (f" and {more} more" if more > 0 else "")
