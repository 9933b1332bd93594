"""How much each peer or network had of something of late: bytes that it was served, seconds that it was connected."""

from __future__ import annotations

from collections import OrderedDict

REMEMBERED = 4096  # that had something last


class RecentAmounts:
    """Amounts by name, each of which halves every ``half_life_seconds``. A name that is forgotten had nothing."""

    def __init__(self, half_life_seconds: float) -> None:
        self._half_life_seconds = half_life_seconds
        self._amounts: OrderedDict[str, tuple[float, float]] = OrderedDict()  # amount, as of when

    def add(self, whom: str, amount: float, now_seconds: float) -> None:
        self._amounts[whom] = self.of(whom, now_seconds) + amount, now_seconds
        self._amounts.move_to_end(whom)
        while len(self._amounts) > REMEMBERED:
            self._amounts.popitem(last=False)

    def of(self, whom: str, now_seconds: float) -> float:
        amount, at_seconds = self._amounts.get(whom, (0.0, now_seconds))
        return float(amount * 0.5 ** ((now_seconds - at_seconds) / self._half_life_seconds))
