"""The letters that a member holds for newcomers who know a code: which, for how long, and who may have one. Pure.

A letter is given to one peer, which may ask again until its time is over, in case the connection broke; to every other
peer it is taken. It is then remembered, without its content, for ``REMEMBERED_SECONDS``, so that whoever comes late or
second hears why. Nothing is kept on disk.

Only members leave letters: at most ``PER_MEMBER`` each and ``LETTERS`` in all, with those that are remembered. Where
that is full, the oldest that is only remembered gives way, and nothing that waits does. Each letter has a
pre-shared key of its own, without which a stranger cannot even ask, so a connection tries one code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from protocol.streams.letter_messages import HoldLetter, LetterAnswer, LetterReceipt, LetterState
from swarm.host import PeerId

LETTERS: Final = 16  # each costs every stranger's connection the trial of a key, some microseconds
PER_MEMBER: Final = 4
REMEMBERED_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True, repr=False)
class _Held:
    left_by: PeerId
    psk: bytes
    content: bytes
    until_seconds: float
    taken_by: PeerId = ""

    def state(self, now_seconds: float) -> LetterState:
        if self.taken_by:
            return "taken"
        return "waiting" if now_seconds < self.until_seconds else "expired"


class LetterBox:
    """Times are seconds of one clock."""

    def __init__(self) -> None:
        self._held: dict[bytes, _Held] = {}  # by lookup, the oldest first

    def hold(self, now_seconds: float, left_by: PeerId, letter: HoldLetter) -> LetterReceipt:
        """Takes a letter, which waits from now on; "full" where there is no place, or the lookup is in use."""
        self._forget(now_seconds)
        own = [lookup for lookup, held in self._held.items() if held.left_by == left_by]
        crowd = own if len(own) >= PER_MEMBER else list(self._held) if len(self._held) >= LETTERS else []
        remembered = [lookup for lookup in crowd if self._held[lookup].state(now_seconds) != "waiting"]
        if letter.lookup in self._held or (crowd and not remembered):
            return LetterReceipt("full")
        if crowd:
            del self._held[remembered[0]]
        until_seconds = now_seconds + letter.seconds
        self._held[letter.lookup] = _Held(left_by, letter.psk, letter.letter, until_seconds)
        return LetterReceipt("waiting")

    def keys(self, now_seconds: float) -> list[bytes]:
        """Returns the pre-shared keys under which letters can be asked for."""
        self._forget(now_seconds)
        return [each.psk for each in self._held.values()]

    def take(self, now_seconds: float, lookup: bytes, peer: PeerId) -> LetterAnswer:
        """Gives a letter that waits to ``peer``, to whom it belongs from then on."""
        self._forget(now_seconds)
        held = self._held.get(lookup)
        if held is None:
            return LetterAnswer("unknown", b"")
        if held.taken_by not in ("", peer):
            return LetterAnswer("taken", b"")
        if now_seconds >= held.until_seconds:
            return LetterAnswer("expired", b"")
        self._held[lookup] = replace(held, taken_by=peer)
        return LetterAnswer("waiting", held.content)

    def receipt(self, now_seconds: float, lookup: bytes, left_by: PeerId) -> LetterReceipt:
        """Returns the state of a letter to the member that left it; to others it is unknown."""
        self._forget(now_seconds)
        held = self._held.get(lookup)
        if held is None or held.left_by != left_by:
            return LetterReceipt("unknown")
        return LetterReceipt(held.state(now_seconds), held.taken_by)

    def _forget(self, now_seconds: float) -> None:
        for lookup, held in list(self._held.items()):
            if now_seconds >= held.until_seconds + REMEMBERED_SECONDS:
                del self._held[lookup]
            elif now_seconds >= held.until_seconds and held.content:
                self._held[lookup] = replace(held, content=b"")
