"""Which announcements of one sender are accepted: a rule by the time that the sender signed, so that nodes agree.

    slot        floor((signed time + phase of the sender) / slot_seconds)
    accepted    the first messages_a_slot of each slot, and RESERVE more in each RESERVE_SECONDS

A node forwards what it accepts. Were messages counted by the time at which they arrive, nodes would accept different
ones of a sender that sends too many, each would forward its own, and all would open most of them. Slots begin at the
same signed times for every node, so that nodes agree again in each slot, whatever they heard before; nodes that hear
what another one accepted accept it too, in any order. The lengths of slots are powers of two: nodes that count the
swarm a little differently have equal slots. The phase spreads the slots of different senders over time.

A sender that signs wrong times cannot go back: of the slots of a sender the two newest are counted, and what is older
takes of the reserve. How far it can run ahead of its own clock is for its receivers to bound by their clocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf
from typing import Final
from zlib import crc32

RESERVE: Final = 20  # more than a node sends at once before it has heard how large the swarm is
RESERVE_SECONDS: Final = 4096.0


@dataclass(frozen=True, slots=True)
class SenderAllowance:
    """How many announcements of one sender are accepted."""

    slot_seconds: float
    messages_a_slot: int

    @property
    def messages_per_second(self) -> float:
        """Messages a second that are accepted in the long run."""
        return self.messages_a_slot / self.slot_seconds + RESERVE / RESERVE_SECONDS

    @property
    def messages_at_once(self) -> int:
        """What is accepted at most where two slots meet, and two reserves."""
        return 2 * (self.messages_a_slot + RESERVE)


def phase_seconds(sender: str) -> float:
    """Returns by how much the slots of a sender are shifted."""
    return crc32(sender.encode()) % RESERVE_SECONDS


class SenderSlots:
    """Counts the messages of one sender. Its memory does not grow."""

    __slots__ = ("_count", "_phase_seconds", "_previous_count", "_previous_start", "_reserve_start", "_spent", "_start")

    def __init__(self, sender: str) -> None:
        self._phase_seconds = phase_seconds(sender)
        self._start, self._count = -inf, 0  # of the newest slot
        self._previous_start, self._previous_count = -inf, 0
        self._reserve_start, self._spent = -inf, 0

    def admit(self, signed_seconds: float, allowance: SenderAllowance) -> bool:
        """Counts a message that was signed at this time, and returns whether it is accepted."""
        time = signed_seconds + self._phase_seconds
        start = _start_of(time, allowance.slot_seconds)
        if start > self._start:
            self._previous_start, self._previous_count = self._start, self._count
            self._start, self._count = start, 0
        if time >= self._start:
            if self._count < allowance.messages_a_slot:
                self._count += 1
                return True
        elif time >= self._previous_start > -inf and self._previous_count < allowance.messages_a_slot:
            self._previous_count += 1
            return True
        return self._takes_of_reserve(time)

    def _takes_of_reserve(self, time: float) -> bool:
        start = _start_of(time, RESERVE_SECONDS)
        if start > self._reserve_start:
            self._reserve_start, self._spent = start, 0
        if self._spent >= RESERVE:
            return False
        self._spent += 1
        return True


def _start_of(time: float, length_seconds: float) -> float:
    return floor(time / length_seconds) * length_seconds
