"""What a relay prints: its addresses with the commands that use them, and from time to time who is here."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TextIO

from node.printable import one_line, printable
from node.quantities import counted, size
from swarm.settings import ServiceSettings

DEFAULT_SWARM: Final = "starling"  # ``SwarmSection.name``; a test compares them
ADDRESS_CHARACTERS: Final = 200
_LOOPBACK: Final = ("/ip4/127.", "/ip6/::1/")


class EventLines:
    """Writes every event as a line of JSON. A reader that has gone does not end the relay."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        _write(self._out, [json.dumps({"event": event, **fields})])


class RelayLines:
    """Writes events as lines for people. A reader that has gone does not end the relay."""

    def __init__(self, out: TextIO, settings: ServiceSettings, *, clock: Callable[[], float] = time.time) -> None:
        self._out, self._settings, self._clock = out, settings, clock

    def __call__(self, event: str, fields: Mapping[str, Any]) -> None:
        match event:
            case "ready":
                _write(self._out, ready_lines(fields["peer"], fields["addresses"], self._settings))
            case "peers":
                self._say(f"{counted(fields['connected'], 'peer')} connected; {relayed_words(fields)}")
            case "alone":
                self._say(f"No peer is connected: {one_line(fields['because'], 600)}")
            case "reach":
                self._say(f"Reach: {one_line(fields['in_words'], 600)}")
            case "banned":
                self._say(f"Banned {printable(fields['peer'])}: {one_line(fields['reason'])}")
            case "left":
                self._say(f"The relay has ended: {one_line(fields['reason'])}")

    def _say(self, text: str) -> None:
        _write(self._out, [f"{time.strftime('%H:%M:%S', time.localtime(self._clock()))}  {text}"])


def ready_lines(peer: str, addresses: Sequence[str], settings: ServiceSettings) -> Iterator[str]:
    """Yields what a relay prints once it listens: who it is, and what others write to use it."""
    beyond = [a for a in addresses if not a.startswith(_LOOPBACK)]
    yield f"Relay {peer} of the swarm {printable(settings.swarm_name)} listens. It trains nothing and keeps no blobs."
    if settings.private:
        yield "The cluster's owner puts its addresses into invites:"
        begin, option, end = "starling invite", "--address", ""
    else:
        yield "Others reach the swarm through it:"
        named = shlex.quote(f"swarm.name={printable(settings.swarm_name, 64)}")
        begin, option, end = "starling up", "--peer", "" if settings.swarm_name == DEFAULT_SWARM else f" --set {named}"
    at = "".join(f" {option} {printable(address, ADDRESS_CHARACTERS)}" for address in beyond or addresses)
    yield f"  {begin}{at}{end}"
    if not beyond:
        yield "Only this machine can dial it: start it with --listen /ip4/0.0.0.0/tcp/4001 for others."
    yield "Behind a router or in a cloud, others need the public address instead. Ctrl-C ends the relay."


def relayed_words(fields: Mapping[str, Any]) -> str:
    """Describes what is relayed now, from ``reservations``, ``circuits`` and ``relayed_bytes``."""
    connections = counted(fields["circuits"], "connection")
    return (
        f"{counted(fields['reservations'], 'peer')} reached through this relay, {connections} relayed now, "
        f"{size(fields['relayed_bytes'])} passed on"
    )


def _write(out: TextIO, lines: Sequence[str] | Iterator[str]) -> None:
    with suppress(BrokenPipeError):
        out.write("".join(f"{line}\n" for line in lines))
        out.flush()
