"""The files of checkpoints, without torch: lists them and checks that one is complete.

``round-000123/`` holds ``tensors.safetensors``, ``config.json`` and ``state.json``, the last with the SHA-256 of the
first.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Final

from protocol.errors import StorageError

FORMAT: Final = 1
TENSORS, STATE, CONFIG = "tensors.safetensors", "state.json", "config.json"
_ROUND_FOLDER = re.compile(r"round-(\d{6,})")


def rounds(folder: Path) -> list[Path]:
    """Returns the folders of checkpoints, oldest round first."""
    numbered = [(int(m[1]), path) for path in folder.glob("round-*") if (m := _ROUND_FOLDER.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def read_whole(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns state and configuration of the checkpoint in folder ``path`` after checking its tensors' SHA-256.

    Raises ``StorageError`` naming what is wrong.
    """
    try:
        state = json.loads((path / STATE).read_text())
        config = json.loads((path / CONFIG).read_text())
        if state["format"] != FORMAT:
            raise StorageError(f"{path} is a checkpoint of format {state['format']}, this version reads {FORMAT}")
        if sha256_of(path / TENSORS) != state["tensors_sha256"]:
            raise StorageError(f"{path / TENSORS} is damaged: its SHA-256 is not the one recorded beside it")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is not a complete checkpoint ({type(error).__name__}: {error})") from error
    return state, config


def size_bytes_of(path: Path) -> int:
    """Returns the bytes of the files in folder ``path``; those that are deleted meanwhile are not counted."""
    total = 0
    for file in path.glob("*"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue
    return total


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
