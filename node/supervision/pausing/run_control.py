"""Keeps what ``decision.decide`` needs: the owner's order, in HOME/pause.json, and what the machine is used for.

The order outlives the node: one that was paused stays so when the machine starts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from node.configuration import MachineSection
from node.supervision.pausing.decision import MachineUse, Order, PauseDecision, decide, met, next_use
from node.supervision.pausing.machine_readings import MachineReader
from protocol.errors import StorageError
from swarm.atomic_file import write_atomically

READING_SECONDS: Final = 5.0  # between two looks at the machine
UNTOLD: Final = {
    "load": "how much other programs compute",
    "gpu": "which programs use a GPU (nvidia-smi)",
    "battery": "whether it runs on battery",
    "metered": "whether the connection is metered (NetworkManager)",
}


class RunControl:
    """Whether one node trains now. All methods but ``look`` return at once."""

    def __init__(self, file: Path, section: MachineSection, *, clock: Callable[[], float] = time.time) -> None:
        """``file`` is HOME/pause.json; ``clock`` gives Unix time."""
        self._file, self._section, self._clock = file, section, clock
        self._reader = MachineReader(section.pause_when)
        self._use: MachineUse = {}
        self._untold = set(section.pause_when)
        self._readings = 0
        self._order = _read(file)
        self.failure: str | None = None  # why the owner's order could not be written down; it holds all the same

    @property
    def watches(self) -> bool:
        """Whether the machine has to be looked at."""
        return bool(self._section.pause_when)

    def now(self) -> PauseDecision:
        """Returns what holds now."""
        if self._order is not None and not self._order.holds(self._clock()):
            self._keep(None)
        return decide(self._clock(), self._use, self._order, self._section)

    def pause(self, for_seconds: float | None) -> PauseDecision:
        """The owner asks for a pause, for so long or until ``resume``."""
        now_seconds = self._clock()
        self._keep(Order(False, now_seconds, None if for_seconds is None else now_seconds + for_seconds))
        return self.now()

    def resume(self, for_seconds: float | None) -> PauseDecision:
        """Ends the owner's pause. With ``for_seconds`` the node trains for so long whatever else is against it."""
        now_seconds = self._clock()
        self._keep(None if for_seconds is None else Order(True, now_seconds, now_seconds + for_seconds))
        return self.now()

    def look(self, sessions: Collection[int]) -> list[str]:
        """Looks at the machine; takes up to seconds. Returns what of it the system does not tell, once, in words."""
        told = met(self._reader.read(sessions), self._section)
        self._use = next_use(self._use, self._clock(), told)
        self._untold -= told.keys()
        self._readings += 1
        return [UNTOLD[kind] for kind in sorted(self._untold)] if self._readings == 2 else []

    def _keep(self, order: Order | None) -> None:
        self._order, self.failure = order, None
        try:
            if order is None:
                self._file.unlink(missing_ok=True)
            else:
                write_atomically(self._file, msgspec.json.encode(order))
        except (OSError, StorageError) as error:
            self.failure = f"The next start of this node will not know of it: {error}"


def _read(file: Path) -> Order | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Order)
    except (OSError, msgspec.DecodeError):
        return None
