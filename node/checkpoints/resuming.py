"""A run goes on from an earlier checkpoint, at its user's wish, and the later ones are kept. Imports no torch."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from node.checkpoints.checkpoint_files import (
    CONFIG,
    KEPT_LATER,
    STATE,
    TENSORS,
    UNFINISHED,
    flush,
    read_whole,
    round_of,
    rounds,
    set_aside,
)
from protocol.errors import StorageError


@dataclass(frozen=True, slots=True)
class Resumed:
    """The checkpoint that is now the newest, and where later ones are kept."""

    round: int
    kept: tuple[Path, ...]


def resume_from(folder: Path, chosen: Path) -> Resumed:
    """Makes the checkpoint in ``chosen`` the newest in ``folder``, from which the next start goes on. Later ones get
    another name there, under which no start reads them and nothing deletes them. A checkpoint of another folder is
    copied. Only the holder of the data directory's lock may call this.

    Raises ``StorageError`` where ``chosen`` is not whole, before anything has changed, or where the disk fails.
    """
    state, _ = read_whole(chosen)
    final = folder / f"round-{int(state['round']):06d}"
    source = chosen.resolve()
    is_ours = source.parent == folder.resolve()
    try:
        if not is_ours:
            source = _copied(source, folder / f"{UNFINISHED}{final.name}-copied")
        is_there = is_ours and source.name == final.name
        later = [path for path in rounds(folder) if round_of(path) >= round_of(final) + is_there]
        kept = tuple(set_aside(path, KEPT_LATER) for path in later)
        if not is_there:
            source.rename(final)
        flush(folder)
    except OSError as error:
        raise StorageError(
            f"{chosen} could not be put in place of later checkpoints in {folder} ({error}): free some space there, or "
            "check its permissions"
        ) from error
    return Resumed(round_of(final), kept)


def _copied(source: Path, unfinished: Path) -> Path:
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700, parents=True)
    for name in (TENSORS, CONFIG, STATE):
        flush(Path(shutil.copyfile(source / name, unfinished / name)))
    flush(unfinished)
    return unfinished
