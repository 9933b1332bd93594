"""Which peer a name means that a user typed, where a command asks for a peer id.

A peer id means itself, whatever anybody calls itself. Names that this node's owner gave, in invitations, come before
those that peers gave themselves. A name that two have in the same place is refused with both ids. Every name here is
escaped, as commands show it: what looks alike in a list is the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from node.home import Home
from node.printable import printable
from protocol.errors import ConfigurationError, MalformedError, TransportError
from protocol.identity import public_bytes_of
from protocol.limits import NAME_BYTES

MAX_LISTED: Final = 8  # names or ids in one message


@dataclass(frozen=True, slots=True)
class KnownName:
    """A name, and whose it is."""

    name: str  # escaped
    id: str  # of a peer, or an invitation's public key in hexadecimal
    kind: str = ""  # what it is, where several kinds can have the name

    @classmethod
    def of(cls, name: str, id: str, kind: str = "") -> KnownName:
        return cls(printable(name, NAME_BYTES), id, kind)


def id_of(named: str, *known: Iterable[KnownName], where: str) -> str:
    """Returns the id that ``named`` is, or that has this name in the first of ``known`` that has the name at all.

    Raises ``ConfigurationError`` that lists the ids of a name that several have, or the known names; ``where`` says
    which command shows ids.
    """
    places = [list(each) for each in known]
    if any(each.id == named for place in places for each in place) or _is_peer_id(named):
        return named
    shown = printable(named, NAME_BYTES)
    for place in places:
        kinds = {each.id: each.kind for each in place if each.name == shown and shown}
        if len(kinds) == 1:
            return next(iter(kinds))
        if kinds:
            ids = _listed([f"{kind} {id}".lstrip() for id, kind in kinds.items()])
            raise ConfigurationError(f"{len(kinds)} are called {shown}: {ids}; give one of these ids instead")
    names = dict.fromkeys(each.name for place in places for each in place if each.name)
    here = f"; known are {_listed(list(names))}" if names else ""
    raise ConfigurationError(f"{shown} is neither a peer id nor the name of one{here} ({where} lists them)")


def names_met(home: Home) -> list[KnownName]:
    """Returns what peers called themselves when this node last saw them: by its record, and by the node that runs here
    now."""
    from node.api.node_client import ask_peers
    from node.api.record import events_in, halves
    from node.events import PeersChanged

    latest: dict[str, str] = {}
    for path in halves(home.metrics):
        with suppress(OSError):  # a node that never ran, or a record of another user: its names are not known
            for changed in events_in(path, msgspec.json.Decoder(PeersChanged)):
                if changed is not None:
                    latest.update((peer.peer, peer.name) for peer in (*changed.came, *changed.left))
    with suppress(TransportError):
        latest.update((peer.peer, peer.shown_name) for peer in ask_peers(home).peers)
    return [KnownName.of(name, peer) for peer, name in latest.items()]


def _is_peer_id(text: str) -> bool:
    try:
        public_bytes_of(text)
    except MalformedError:
        return False
    return True


def _listed(texts: list[str]) -> str:
    more = len(texts) - MAX_LISTED
    return ", ".join(texts[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
