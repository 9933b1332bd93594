"""The section ``[machine]``: what the node may take of its owner's machine, and when."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from node.configuration.amounts import bytes_per_second, size_bytes
from node.configuration.schedule import Schedule, parse_schedule
from node.configuration.section import ConfigSection

PauseCondition = Literal["load", "gpu", "battery", "metered"]
MIN_MEMORY_BYTES: Final = 1_000_000_000  # less than a learner takes before it has a model
MIN_BYTES_PER_SECOND: Final = 16_000.0  # below, announcements and requests of a few peers take all of it


def _checked(check: Callable[[str], object], text: str) -> str:
    if text.strip():
        check(text)
    return text.strip()


def _memory(text: str) -> int:
    amount = size_bytes(text)
    if amount < MIN_MEMORY_BYTES:
        raise ValueError(f"{text!r} is less than any node takes: write at least 1 GB")
    return amount


def _rate(text: str) -> float:
    rate = bytes_per_second(text)
    if rate < MIN_BYTES_PER_SECOND:
        raise ValueError(f"{text!r} is less than staying connected takes: write at least 128 kbit/s")
    return rate


class MachineSection(ConfigSection):
    """What the node may take of its owner's machine, and when. Empty: no limit."""

    schedule: Annotated[str, AfterValidator(partial(_checked, parse_schedule))] = ""  # local times at which it trains
    pause_when: tuple[PauseCondition, ...] = ()
    load_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.25  # of all cores, by other programs, that is "load"
    gpu_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1  # of a GPU, by other programs, that is "gpu"
    max_memory: Annotated[str, AfterValidator(partial(_checked, _memory))] = ""  # of all processes of the node
    max_upload: Annotated[str, AfterValidator(partial(_checked, _rate))] = ""  # to all peers together
    max_download: Annotated[str, AfterValidator(partial(_checked, _rate))] = ""  # from all peers together
    max_threads: Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^([1-9]\d?|100)\s?%$")] = 0

    @property
    def hours(self) -> Schedule:
        return parse_schedule(self.schedule)

    @property
    def max_memory_bytes(self) -> int | None:
        return size_bytes(self.max_memory) if self.max_memory else None

    @property
    def max_upload_bytes_per_second(self) -> float:
        """0: no limit."""
        return bytes_per_second(self.max_upload) if self.max_upload else 0.0

    @property
    def max_download_bytes_per_second(self) -> float:
        """0: no limit."""
        return bytes_per_second(self.max_download) if self.max_download else 0.0

    def threads(self, cores: int) -> int | None:
        """Returns how many threads may compute on a machine of ``cores``; None without a limit."""
        if isinstance(self.max_threads, int):
            return min(self.max_threads, cores) or None
        return max(1, cores * int(self.max_threads.rstrip(" %")) // 100)
