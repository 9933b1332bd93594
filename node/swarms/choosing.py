"""Which of the known swarms a name means, and at which addresses a friend is met: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from node.doctor.addresses import judge_peer
from node.printable import printable
from node.swarms.known import KnownSwarm
from protocol.cluster.invite import address_to_invite
from protocol.errors import ConfigurationError
from protocol.limits import NAME_BYTES

MAX_LISTED: Final = 8
LISTS_THEM: Final = "starling swarms lists them, and starling swarms --list FILE-OR-URL reads a list"


@dataclass(frozen=True, slots=True)
class SwarmChoice:
    """What a start needs to join a swarm."""

    name: str | None  # None: the directory is in it already
    doors: tuple[str, ...]
    because: str  # for people


def chosen_swarm(named: str, known: Sequence[KnownSwarm]) -> SwarmChoice:
    """Returns the swarm of this name that can be joined.

    A directory of a private cluster stays in it. Lists of several signers that have the name are not mixed: one who
    signed a list is not to add doors to the swarm of another. Raises ``ConfigurationError`` for a name that is unknown,
    that no swarm has which can be joined, or that several signers vouch for.
    """
    shown = printable(named, NAME_BYTES)
    called = [each for each in known if each.name == shown and shown]
    if not called:
        names = list(dict.fromkeys(each.name for each in known))
        raise ConfigurationError(f"no swarm called {shown} is known; known are {_listed(names)} ({LISTS_THEM})")
    own = [each for each in known if each.source == "this directory"]
    cluster = next((each for each in own if each.kind == "private"), None)
    if cluster is not None:
        if cluster in called:
            return SwarmChoice(None, (), f"This directory is a member of {shown}.")
        raise ConfigurationError(
            f"this data directory belongs to the private cluster {cluster.name}, and stays in it: choose another "
            f"directory with --home to join {shown}"
        )
    open_to_us = [each for each in called if each.obstacle is None]
    if not open_to_us:
        raise ConfigurationError(f"{shown} cannot be joined by its name: {called[0].obstacle}")
    vouched = [each for each in open_to_us if each.vouched_by is not None]
    signers = {each.vouched_by.signer: each.vouched_by.source for each in vouched if each.vouched_by is not None}
    if len(signers) > 1:
        lists = ", ".join(f"{signer} ({source})" for signer, source in signers.items())
        raise ConfigurationError(
            f"{len(signers)} lists name {shown}, signed by {lists}: choose one of them with --list"
        )
    meant = vouched or [each for each in open_to_us if each.source != "this directory"] or open_to_us
    if meant[0].source == "this directory":
        return SwarmChoice(named, (), f"Joining the swarm {shown}, which is this directory's own.")
    listed = list(dict.fromkeys(door for each in meant for door in each.doors))
    doors = tuple(door for door in listed if judge_peer(door) is None)
    if not doors:
        raise ConfigurationError(f"{shown} has no door that this version can dial: {_listed(listed)}")
    return SwarmChoice(named, doors, f"Joining the swarm {shown}, {_known_from(meant[0])}; doors: {len(doors)}.")


def friend_doors(friend: str, peer: str, remembered: Sequence[str]) -> tuple[str, ...]:
    """Returns the addresses at which to dial the peer that was met as ``friend``: its own, or those of the relays
    through which it was reached. Raises ``ConfigurationError`` where none is kept."""
    shown = printable(friend, NAME_BYTES)
    doors = [address_to_invite(each) for each in remembered if each.rpartition("/p2p/")[2] == peer]
    doors = [each for each in dict.fromkeys(doors) if judge_peer(each) is None]
    if not doors:
        raise ConfigurationError(
            f"{shown} ({peer}) was met, but this node kept no address at which it reached it: ask for one (starling "
            "status prints it there) and give it with --peer"
        )
    return tuple(doors)


def _known_from(swarm: KnownSwarm) -> str:
    voucher = swarm.vouched_by
    if voucher is None:
        return f"known from the {swarm.source}" if swarm.source == "local network" else "known from an invitation"
    trust = "which this directory had read before" if voucher.seen_before else "a key that is new to this directory"
    return f"vouched for by {voucher.signer}, {trust}"


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - MAX_LISTED
    return (", ".join(texts[:MAX_LISTED]) or "none") + (f" and {more} more" if more > 0 else "")
