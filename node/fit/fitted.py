"""What a node ran with after it had run out of memory, in ``HOME/fitted.json``: the next start begins there.

There is no such file as long as nothing ran out. The learner writes it when it changes one of the settings; the
supervisor writes it when the system killed the learner for its memory. It counts for one model on one size of memory:
with another of either, it says nothing. A damaged file, or one of another version, counts as none: the price is one
more halving.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from protocol.errors import StorageError
from swarm.atomic_file import write_atomically

VERSION: Final = 1
SAME_MEMORY: Final = 0.05  # two readings of one device or machine differ by less: what the system keeps back varies
MIN_ROWS: Final = 1
MIN_BATCH_TOKENS: Final = 256  # one completion alone is a pass, however long: below, halving changes nothing

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The settings that change when memory runs out: two are halved, the third is switched on."""

    rows: int  # sequences decoded side by side: ``engine.rows``
    batch_tokens: int  # padded tokens of one pass: ``learner.batch_tokens``
    recompute: bool = False  # layers in the backward pass: ``learner.recompute``

    def within(self, most: Sizes) -> Sizes:
        """Returns these sizes, none above that of ``most``."""
        return Sizes(
            min(self.rows, most.rows), min(self.batch_tokens, most.batch_tokens), self.recompute or most.recompute
        )


FLOORS: Final = Sizes(MIN_ROWS, MIN_BATCH_TOKENS)


class Fitted(Struct, frozen=True, kw_only=True):
    """The sizes to begin with, and what they hold for."""

    version: int = VERSION
    model: str  # ``policy.model``
    memory_bytes: int  # in all, of the device that the model is on; on a CPU what the machine or control group has
    rows: int
    batch_tokens: int
    recompute: bool = False
    learner_killed: int = 0  # times that the system killed the learner for its memory, since the file was begun

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.rows, self.batch_tokens, self.recompute)

    def holds_for(self, model: str, memory_bytes: int) -> bool:
        """Whether this was learnt with that model on that much memory."""
        return self.model == model and abs(self.memory_bytes - memory_bytes) <= SAME_MEMORY * memory_bytes


def halved(value: int, floor: int) -> int:
    """Returns half of ``value``, not below ``floor``; ``value`` itself if it is at or below that already."""
    return max(floor, value // 2) if value > floor else value


def read_fitted(path: Path) -> Fitted | None:
    """Returns what the file holds; None where there is none, or it is damaged or of another version."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Fitted)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s is not used, and is replaced when memory next runs out: %s", path, error)
        return None
    if found.version != VERSION or min(found.rows, found.batch_tokens, found.memory_bytes) < 1:
        log.warning("%s is not used: version %d, where this is %d", path, found.version, VERSION)
        return None
    return found


def write_fitted(path: Path, fitted: Fitted) -> None:
    """Replaces the file. Raises ``StorageError``; the old content stays then."""
    write_atomically(path, msgspec.json.encode(fitted) + b"\n")


def fitted_with(path: Path, model: str, memory_bytes: int) -> Fitted | None:
    """Returns what the file holds for this model on this much memory; None where it says nothing of them."""
    found = read_fitted(path)
    return found if found is not None and found.holds_for(model, memory_bytes) else None


def remember(path: Path, model: str, memory_bytes: int, sizes: Sizes) -> None:
    """Writes down what the next start begins with. Raises ``StorageError``."""
    before = fitted_with(path, model, memory_bytes)
    killed = before.learner_killed if before is not None else 0
    write_fitted(
        path,
        Fitted(
            model=model,
            memory_bytes=memory_bytes,
            rows=sizes.rows,
            batch_tokens=sizes.batch_tokens,
            recompute=sizes.recompute,
            learner_killed=killed,
        ),
    )


def remember_smaller_passes(path: Path, model: str, memory_bytes: int, begin: Sizes) -> None:
    """Has the next start begin with passes half as large, where this one cannot go on; ``begin`` is what it began with.
    A file that cannot be written is logged."""
    fitted = fitted_with(path, model, memory_bytes)
    sizes = begin if fitted is None else fitted.sizes
    smaller = replace(sizes, batch_tokens=halved(sizes.batch_tokens, MIN_BATCH_TOKENS))
    try:
        remember(path, model, memory_bytes, smaller)
    except StorageError as error:
        log.warning("the next start will not know that memory ran out: %s", error)
