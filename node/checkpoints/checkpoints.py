"""Checkpoints: a checkpoint is complete or does not exist.

``HOME/checkpoints/round-000123/`` holds ``tensors.safetensors``, ``config.json`` and ``state.json``, the last with size
and SHA-256 of the first. All three are written and flushed to disk in a folder with a temporary name, which is then
renamed: after a crash at any moment, every folder called ``round-…`` is complete. A checkpoint that a failing disk
damaged later is recognised, and the one before is used. No pickle.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from node.checkpoints.best import kept
from node.checkpoints.checkpoint_files import (
    CONFIG,
    FORMAT,
    STATE,
    TENSORS,
    UNFINISHED,
    ForeignCheckpointError,
    flush,
    read_whole,
    rounds,
    sha256_of,
)
from node.learner.memory.errors import forget, give_back
from node.policy.device_faults import detail_of, is_out_of_memory
from protocol.errors import StorageError

REPLACED: Final = f"{UNFINISHED}replaced-"  # before the name of a whole one, until another of its round is in its place


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """Everything that a learner needs to continue as if it had never stopped."""

    round: int
    family: bytes
    tensors: Mapping[str, Tensor]  # weights, optimizer, random states, by name
    state: Mapping[str, Any]  # JSON: counters, success, pool position
    config: Mapping[str, Any]  # JSON: the resolved configuration, for users and for comparison


@dataclass(frozen=True, slots=True)
class CheckpointAttempt:
    """One finished attempt to write a checkpoint; ``error`` is what prevented it, if anything did."""

    round: int
    path: Path
    size_bytes: int
    seconds: float
    error: StorageError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class NewestCheckpoint:
    """The newest complete checkpoint, if any, and newer ones that were not complete."""

    snapshot: Snapshot | None
    path: Path | None
    damaged: tuple[tuple[Path, str], ...] = ()  # newest first, each with what is wrong


def write(folder: Path, snapshot: Snapshot, *, keep: int) -> tuple[Path, int]:
    """Writes ``snapshot`` under ``folder``, and deletes all but the ``keep`` newest and the best (``best.kept``).

    Returns its path and bytes. Raises ``StorageError`` if the disk is full or fails, or memory runs out; the
    checkpoints before stay complete.
    """
    final = folder / f"round-{snapshot.round:06d}"
    unfinished = folder / f"{UNFINISHED}{final.name}-{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _discard(unfinished)
        unfinished.mkdir(mode=0o700)
        save_file({name: t.contiguous() for name, t in snapshot.tensors.items()}, unfinished / TENSORS)
        state = {
            "format": FORMAT,
            "round": snapshot.round,
            "family": snapshot.family.hex(),
            "tensors_bytes": (unfinished / TENSORS).stat().st_size,
            "tensors_sha256": sha256_of(unfinished / TENSORS),
            "state": snapshot.state,
        }
        (unfinished / STATE).write_text(json.dumps(state))  # indented takes three times as long
        (unfinished / CONFIG).write_text(json.dumps(snapshot.config, indent=1))
        size_bytes = sum(path.stat().st_size for path in unfinished.iterdir())
        for path in [*unfinished.iterdir(), unfinished]:
            flush(path)
        _put_in_place(unfinished, final)
        flush(folder)
        _delete_old(folder, keep)
    except (OSError, SafetensorError) as error:
        _discard(unfinished)
        raise StorageError(
            f"the checkpoint of round {snapshot.round} was not written to {folder} ({error}): free some space there"
        ) from error
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        _discard(unfinished)
        forget(error)
        give_back()
        raise StorageError(
            f"the checkpoint of round {snapshot.round} was not written: memory ran out ({detail_of(error)}); the run "
            "continues, the previous checkpoint is kept, and the next one is tried when it is due"
        ) from None
    return final, size_bytes


def read_newest(folder: Path) -> NewestCheckpoint:
    """Returns the newest complete checkpoint and the damaged ones above it. Removes what a crash left unfinished.

    Raises ``ForeignCheckpointError`` for one that may be whole and cannot be read here.
    """
    damaged: list[tuple[Path, str]] = []
    _tidy(folder)
    for path in reversed(rounds(folder)):
        try:
            return NewestCheckpoint(read(path), path, tuple(damaged))
        except ForeignCheckpointError:
            raise
        except StorageError as error:
            damaged.append((path, str(error)))
    return NewestCheckpoint(None, None, tuple(damaged))


def read(path: Path) -> Snapshot:
    """Returns the checkpoint in folder ``path``. Raises ``StorageError`` naming what is wrong."""
    state, config = read_whole(path)
    try:
        tensors = load_file(path / TENSORS)
        return Snapshot(int(state["round"]), bytes.fromhex(state["family"]), tensors, dict(state["state"]), config)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is not a complete checkpoint ({type(error).__name__}: {error})") from error


def _put_in_place(unfinished: Path, final: Path) -> None:
    """Renames ``unfinished`` to ``final``; an existing folder, from a round that is repeated, is moved aside first, and
    put back by ``_tidy`` where a crash comes in between."""
    if final.exists():
        aside = final.with_name(f"{REPLACED}{final.name}")
        _discard(aside)
        final.rename(aside)
        unfinished.rename(final)
        _discard(aside)
    else:
        unfinished.rename(final)


def _tidy(folder: Path) -> None:
    """Puts back what a crash left without another in its place, and removes what it left unfinished."""
    for leftover in folder.glob(f"{UNFINISHED}*"):
        final = folder / leftover.name.removeprefix(REPLACED)
        if leftover.name.startswith(REPLACED) and not final.exists():
            with suppress(OSError):  # as in ``_discard``
                leftover.rename(final)
        else:
            _discard(leftover)


def _delete_old(folder: Path, keep: int) -> None:
    written = rounds(folder)
    if len(written) <= keep:
        return
    wanted = kept(folder, keep)
    for path in written:
        if path in wanted:
            continue
        doomed = path.with_name(f"{UNFINISHED}deleted-{path.name}")
        path.rename(doomed)  # so that a crash leaves no partial checkpoint under a valid name
        _discard(doomed)


def _discard(path: Path) -> None:
    """Removes a folder that is not needed; if that fails, it is tried again at the next start."""
    shutil.rmtree(path, ignore_errors=True)


class BackgroundCheckpoints:
    """Writes checkpoints on a separate thread, one at a time, while rounds continue.

    ``save`` copies the tensors before it returns; the caller may change them at once, unless it asks for no copy.
    """

    def __init__(self, folder: Path, *, keep: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder: Final = folder
        self._keep = keep
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: list[Future[CheckpointAttempt]] = []

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return any(not future.done() for future in self._writing)

    def save(self, snapshot: Snapshot, *, copy: bool = True) -> None:
        """Starts writing a copy of ``snapshot``, after those saved before.

        Without ``copy`` the caller must not change tensors in main memory until ``finished`` has returned the attempt.
        """
        copied = {name: tensor.detach().to("cpu", copy=copy) for name, tensor in snapshot.tensors.items()}
        whole = Snapshot(snapshot.round, snapshot.family, copied, snapshot.state, snapshot.config)
        self._writing.append(self._thread.submit(self._write, whole))

    def finished(self, *, wait: bool = False) -> list[CheckpointAttempt]:
        """Returns the attempts that ended since the last call, oldest first; with ``wait``, waits for all."""
        done = [future for future in self._writing if wait or future.done()]
        self._writing = [future for future in self._writing if future not in done]
        return [future.result() for future in done]

    def close(self) -> None:
        """Waits for the checkpoints being written and ends the thread."""
        self._thread.shutdown(wait=True)

    def _write(self, snapshot: Snapshot) -> CheckpointAttempt:
        began = self._clock()
        try:
            path, size_bytes = write(self.folder, snapshot, keep=self._keep)
        except StorageError as error:
            return CheckpointAttempt(snapshot.round, self.folder, 0, self._clock() - began, error)
        return CheckpointAttempt(snapshot.round, path, size_bytes, self._clock() - began)


def random_state() -> dict[str, Tensor]:
    """Returns the state of torch's global generators, as tensors."""
    states = {"random.torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["random.cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_state(tensors: Mapping[str, Tensor]) -> None:
    """Sets the generators to what ``random_state`` returned; the state of a missing device is ignored."""
    torch.set_rng_state(tensors["random.torch"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
