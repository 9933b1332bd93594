"""A new folder that appears whole or not at all. Imports no torch.

It is written under a temporary name beside the target and then renamed. Whatever ends the writing, a full disk or
Ctrl-C, removes what was begun; what a killed process left is removed by the next export to the same target.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from node.checkpoints.checkpoint_files import flush
from node.home import is_running
from protocol.errors import ConfigurationError, StorageError

RECORD: Final = "starling.json"  # in every folder that an export made: how it was made, and its files
SPARE_BYTES: Final = 16 << 20  # of disk beyond the weights, for tokenizer, configuration and file system


def check_target(target: Path, *, force: bool) -> None:
    """Raises ``ConfigurationError`` unless ``target`` does not exist, is an empty folder, or, with ``force``, a folder
    in which everything was made by an export."""
    if not target.exists() and not target.is_symlink():
        return
    if target.is_symlink() or not target.is_dir():
        raise ConfigurationError(f"{target} exists and is no folder: name another one")
    there = sorted(path.name for path in target.iterdir())
    if not there:
        return
    if not force:
        raise ConfigurationError(
            f"{target} is not empty: name another folder, or replace an earlier export there with --force"
        )
    exported = _exported_files(target)
    foreign = [name for name in there if name not in exported]
    if foreign:
        raise ConfigurationError(
            f"{target} holds {foreign[0]!r}, which no export made: --force replaces an earlier export only; name "
            "another folder"
        )


@contextmanager
def new_folder(target: Path, *, force: bool, needed_bytes: int) -> Iterator[Path]:
    """Gives an empty folder; on leaving, it is ``target``, or if the body raises, it is gone and ``target`` is as
    before.

    Raises as ``check_target``, and ``StorageError`` where the disk has no room for ``needed_bytes`` or cannot be
    written.
    """
    target = Path(os.path.abspath(target))  # noqa: PTH100 - resolve() would follow a link
    check_target(target, force=force)
    unfinished = target.with_name(f".{target.name}.unfinished-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _discard_leftovers(target)
        free_bytes = shutil.disk_usage(target.parent).free
        if free_bytes < needed_bytes + SPARE_BYTES:
            raise StorageError(
                f"{target} needs {needed_bytes + SPARE_BYTES:,} bytes of disk, {free_bytes:,} are free: free some, or "
                "name a folder on another disk"
            )
        unfinished.mkdir()
        yield unfinished
        for path in [*unfinished.iterdir(), unfinished]:
            flush(path)
        _put_in_place(unfinished, target)
        flush(target.parent)
    except OSError as error:
        raise StorageError(
            f"the export to {target} failed ({error.strerror or error}), and what was begun is removed: free some "
            "space, or name another folder"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def write_record(folder: Path, facts: Mapping[str, Any]) -> None:
    """Writes the record, the last file of an export, and lets every file be read by those who may read this one."""
    record, others = folder / RECORD, list(folder.iterdir())
    files = sorted([*(path.name for path in others), RECORD])
    record.write_text(json.dumps({"files": files, **facts}, indent=1) + "\n", encoding="utf-8")
    for path in others:
        path.chmod(record.stat().st_mode)  # safetensors makes its files for the owner alone


def _exported_files(folder: Path) -> set[str]:
    try:
        return set(json.loads((folder / RECORD).read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _put_in_place(unfinished: Path, target: Path) -> None:
    if target.exists() and any(target.iterdir()):
        replaced = target.with_name(f".{target.name}.replaced-{os.getpid()}")
        target.rename(replaced)
        unfinished.rename(target)
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        unfinished.rename(target)  # also onto an empty folder


def _discard_leftovers(target: Path) -> None:
    """Removes what exports to ``target`` by processes that no longer live left behind."""
    prefix = f".{target.name}.unfinished-"
    for path in target.parent.iterdir():
        number = path.name.removeprefix(prefix)
        if path.name.startswith(prefix) and number.isdigit() and not is_running(int(number)):
            shutil.rmtree(path, ignore_errors=True)
