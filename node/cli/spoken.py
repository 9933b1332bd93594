"""A code for the telephone: what is said of where it waits, what that leads to, and the wait until it is taken."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Final

from node.doctor.addresses import DEFAULT_PORT, as_multiaddr
from node.home import Home
from node.printable import printable
from node.swarms.known import swarms_of_list
from node.swarms.list_files import kept_lists
from protocol.cluster.invite import address_to_invite
from protocol.cluster.spoken_code import SpokenInvite, new_code, read_spoken, seal_letter, secrets_of, shown_code
from protocol.errors import ConfigurationError, TransportError, UnreachableError
from protocol.limits import NAME_BYTES
from protocol.streams.letter_messages import HoldLetter, LetterReceipt
from swarm.address_groups import is_public
from swarm.client import SwarmClient

ASK_EVERY_SECONDS: Final = 1.0
_PORT: Final = re.compile(r":[0-9]{1,5}$")


def leave_spoken(client: SwarmClient, invite: str, seconds: int) -> tuple[str, bytes, str]:
    """Leaves an invite under a new code; returns the code, its lookup, and the peer id of the member that holds it.
    Raises ``TransportError`` that says why none does."""
    code = new_code(secrets.randbelow)
    derived = secrets_of(code)
    letter = HoldLetter(derived.lookup, derived.psk, seal_letter(derived, invite), seconds)
    return code, derived.lookup, client.leave_letter(letter)


def spoken_lines(code: str, places: Sequence[str], until_seconds: float) -> Iterator[str]:
    """Yields what the inviter is told beside the code; ``places`` are what follows it after the @, the best first."""
    groups = shown_code(code).replace("-", ", ")
    yield f"Read out: {groups}, at {places[0]}. The other types: starling up --join {shown_code(code)}@{places[0]}"
    for place in places[1:]:
        yield f"Also at {place}."
    yield "On the local network of the node that holds it the digits alone are enough."
    until = time.strftime("%H:%M:%S", time.localtime(until_seconds))
    yield f"It admits one newcomer, once, until {until}. Waiting for it; Ctrl-C ends the wait, not the code."


def places_of(addresses: Sequence[str], holder: str) -> list[str]:
    """Returns what is read out of the addresses at which ``holder`` is dialled: public ones first, then short ones."""
    own = [each for each in dict.fromkeys(map(address_to_invite, addresses)) if each.endswith(f"/p2p/{holder}")]
    beyond = [each for each in own if not each.startswith(("/ip4/127.", "/ip6/::1/"))] or own
    return [_place(each) for each in sorted(beyond, key=lambda each: (not is_public(each.split("/")[2]), each[:4]))]


def wait_until_taken(client: SwarmClient, lookup: bytes, revocable: str, until_seconds: float) -> str:
    """Waits until somebody used the code; returns what to tell the inviter. ``revocable`` is what ``starling revoke``
    takes. Raises ``UnreachableError`` if its time is over first, or the node that holds it lost it, ``TransportError``.
    """
    while True:
        try:
            receipt = client.letter(lookup)
        except TransportError:
            if time.time() > until_seconds:
                raise
            receipt = LetterReceipt("waiting")  # the relay may answer again
        if receipt.state == "taken":
            return (
                f"Taken by {printable(receipt.taken_by)}, which joins now. Have the other compare it: starling id. If "
                f"it is another: starling revoke {revocable}"
            )
        if receipt.state != "waiting" or time.time() > until_seconds + ASK_EVERY_SECONDS:
            raise UnreachableError(_not_taken(receipt))
        time.sleep(ASK_EVERY_SECONDS)


def _not_taken(receipt: LetterReceipt) -> str:
    if receipt.state == "unknown":
        return "the node that held the code has lost it, as after a restart: starling invite --spoken prints another"
    return "nobody used the code in its time: starling invite --spoken prints another"


def with_doors(home: Home, spoken: str) -> str:
    """Returns CODE@ADDRESS,… for CODE@WHERE, where WHERE is a private cluster on a list that was read here, or a
    machine's name or IP address, with :PORT where that is not ``DEFAULT_PORT``. Raises ``ConfigurationError``."""
    given = read_spoken(spoken)
    doors = _listed(home, given.at) or [_machine(given.at)] if given.at else []
    return SpokenInvite(given.code, ",".join(doors)).text


def _listed(home: Home, named: str) -> list[str]:
    shown = printable(named, NAME_BYTES)
    known = [s for each in kept_lists(home, time.time())[0] for s in swarms_of_list(each) if s.kind == "private"]
    called = [each for each in known if each.name == shown]
    if len({each.vouched_by.signer for each in called if each.vouched_by is not None}) > 1:
        raise ConfigurationError(
            f"several lists name {shown}, signed by different keys: give the address of the right one, CODE@ADDRESS"
        )
    return [door for each in called for door in each.doors]


def _machine(at: str) -> str:
    bare_ip6 = at.count(":") > 1 and not at.startswith("[")
    with_port = at if _PORT.search(at) and not bare_ip6 else f"{f'[{at}]' if bare_ip6 else at}:{DEFAULT_PORT}"
    door = as_multiaddr(with_port)
    if door is None:
        raise ConfigurationError(
            "after the @ of a code stands a machine's name or IP address, or the name of a cluster on a list that was "
            f"read here (starling swarms --list), and not {printable(at)}"
        )
    return door


def _place(address: str) -> str:
    _, kind, ip, _, port, *_ = address.split("/")
    shown = f"[{ip}]" if kind == "ip6" else ip
    return shown if int(port) == DEFAULT_PORT else f"{shown}:{port}"
