"""The files of checkpoints, without torch: lists them and checks that one is complete.

``round-000123/`` holds ``tensors.safetensors``, ``config.json`` and ``state.json``, the last with the SHA-256 of the
first.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any, Final

from node.quantities import size
from protocol.errors import StorageError

FORMAT: Final = 1
TENSORS, STATE, CONFIG = "tensors.safetensors", "state.json", "config.json"
UNFINISHED: Final = ".unfinished-"  # before the name of a folder that a crash left, and the next start removes
SET_ASIDE: Final = "set-aside-"  # before the name of a damaged one that no start reads any more
KEPT_LATER: Final = "later-"  # before the name of a whole one, later than that from which the user went on
_ROUND_FOLDER = re.compile(r"round-(\d{6,})")


class ForeignCheckpointError(StorageError):
    """The checkpoint may be whole and cannot be used here: another version wrote it, or another user owns it."""


def rounds(folder: Path) -> list[Path]:
    """Returns the folders of checkpoints, oldest round first."""
    numbered = [(int(m[1]), path) for path in folder.glob("round-*") if (m := _ROUND_FOLDER.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def set_aside_folders(folder: Path) -> list[Path]:
    """Returns the folders of checkpoints that were set aside, the lowest round first."""
    return _aside(folder, SET_ASIDE)


def kept_later(folder: Path) -> dict[int, Path]:
    """Returns the checkpoints from which a resumed run did not go on, by round; the last kept one of each round."""
    return {round_of(path): path for path in _aside(folder, KEPT_LATER)}


def round_of(path: Path) -> int:
    """Returns the round in the name of a checkpoint's folder."""
    return int(re.search(r"round-(\d{6,})", path.name)[1])  # type: ignore[index]


def set_aside(path: Path, prefix: str = SET_ASIDE) -> Path:
    """Renames the checkpoint in folder ``path``, so that no start reads it again and nothing deletes it; returns where
    it is now."""
    aside = path.with_name(f"{prefix}{path.name}-{time.time_ns()}")
    path.rename(aside)
    return aside


def _aside(folder: Path, prefix: str) -> list[Path]:
    named = re.compile(rf"{prefix}round-(\d{{6,}})-(\d+)")
    found = [(int(m[1]), int(m[2]), path) for path in folder.glob(f"{prefix}*") if (m := named.match(path.name))]
    return [path for *_, path in sorted(found)]


def read_whole(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns state and configuration of the checkpoint in folder ``path`` after checking its tensors' SHA-256.

    Raises ``StorageError`` naming what is wrong; ``ForeignCheckpointError`` where it may not be damaged at all.
    """
    try:
        state = json.loads((path / STATE).read_text())
        config = json.loads((path / CONFIG).read_text())
        if state["format"] > FORMAT:
            raise ForeignCheckpointError(
                f"{path} is a checkpoint of format {state['format']}, this version reads {FORMAT}: start it with the "
                "version that wrote it, or use another data directory"
            )
        if sha256_of(path / TENSORS) != state["tensors_sha256"]:
            raise StorageError(f"{path / TENSORS} is damaged: its SHA-256 is not the one recorded beside it")
    except PermissionError as error:
        raise ForeignCheckpointError(
            f"{error.filename or path} cannot be read ({error.strerror}): make it this user's (chown)"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is not a complete checkpoint ({type(error).__name__}: {error})") from error
    return state, config


def room_fault(folder: Path, needed_bytes: int) -> str | None:
    """Returns that the file system of ``folder`` has no room for ``needed_bytes``; None if it has."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes >= needed_bytes:
        return None
    return f"a checkpoint needs {size(needed_bytes)}, and {size(free_bytes)} are free at {folder}"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Returns once the file or folder is on the disk, so that it outlives a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
