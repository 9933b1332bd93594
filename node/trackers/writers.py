"""The trackers: how each is opened and written. A table of functions by name; libraries are imported when opened.

None of them sends anything off this machine unless the user's own environment says so (WANDB_MODE=online).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

from node.configuration import TrackerName
from node.trackers.event_files import EventFile
from node.trackers.records import Record, TrackedRun
from protocol.errors import ConfigurationError

PROJECT: Final = "starling"
PACKAGES: Final[dict[TrackerName, str]] = {"wandb": "wandb", "trackio": "trackio"}  # TensorBoard's files need none


class Writer(Protocol):
    """One open tracker. It may raise and it may hang: its process is its own."""

    def write(self, record: Record) -> None: ...
    def close(self) -> None: ...


def check_installed(trackers: Iterable[TrackerName]) -> None:
    """Raises ``ConfigurationError``, with the command that installs it, for a tracker whose package is missing."""
    for tracker in trackers:
        package = PACKAGES.get(tracker)
        if package is not None and importlib.util.find_spec(package) is None:
            raise ConfigurationError(
                f'trackers names "{tracker}", and the package {package} is not installed: '
                f'pip install "starling-swarm[{tracker}]", or leave it out'
            )


class TensorBoard:
    """Event files under HOME/tensorboard, one a start of the node: ``tensorboard --logdir HOME/tensorboard``."""

    def __init__(self, run: TrackedRun) -> None:
        self._folder = Path(run.home) / "tensorboard"
        self._file: EventFile | None = None
        self._round = 0  # of the newest record

    def write(self, record: Record) -> None:
        if self._file is None:
            self._file = EventFile(self._folder, time_seconds=record.time_seconds)
        if record.round < self._round or self._round == 0:  # the first, or repeated by a learner that was restarted
            self._file.begin_at(record.round, record.time_seconds)
        self._round = record.round
        self._file.write(record.round, record.time_seconds, record.numbers)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class WeightsAndBiases:
    """A run under HOME/wandb, offline unless WANDB_MODE says otherwise; ``wandb sync`` uploads it later."""

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("WANDB_MODE", "offline")
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        self._run: Any = wandb.init(project=PROJECT, name=run.name, dir=run.home, config=run.config)
        self._run.define_metric("*", step_metric="round")  # its own step may not go back where a round is repeated

    def write(self, record: Record) -> None:
        self._run.log({**record.numbers, "round": record.round})

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """A project in HOME/trackio, unless TRACKIO_DIR says otherwise; ``trackio show`` shows it."""

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(Path(run.home) / "trackio"))
        import trackio

        self._run: Any = trackio.init(project=PROJECT, name=run.name, config=run.config, resume="allow", embed=False)

    def write(self, record: Record) -> None:
        self._run.log(record.numbers, step=record.round)

    def close(self) -> None:
        self._run.finish()


OPENERS: Final[dict[TrackerName, Callable[[TrackedRun], Writer]]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "trackio": Trackio,
}
