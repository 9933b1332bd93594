"""Bounded memory of the peers that were heard last: any number of strangers cannot make it grow."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

REMEMBERED = 4096  # that had something last


class Recent(OrderedDict[K, V]):
    """At most ``most`` entries: setting one makes it the latest, and above the bound the earliest leaves."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)


class RecentAmounts:
    """How much each peer or network had of something lately: bytes that it was served, seconds that it was connected.

    Each amount halves every ``half_life_seconds``. A name that is forgotten had nothing.
    """

    def __init__(self, half_life_seconds: float) -> None:
        self._half_life_seconds = half_life_seconds
        self._amounts: Recent[str, tuple[float, float]] = Recent(REMEMBERED)  # amount, as of when

    def add(self, whom: str, amount: float, now_seconds: float) -> None:
        self._amounts[whom] = self.of(whom, now_seconds) + amount, now_seconds

    def of(self, whom: str, now_seconds: float) -> float:
        amount, at_seconds = self._amounts.get(whom, (0.0, now_seconds))
        return float(amount * 0.5 ** ((now_seconds - at_seconds) / self._half_life_seconds))
