"""Which checkpoint a user means: by a round's number, by a path, the best, or the newest. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from node.checkpoints.best import best_checkpoint
from node.checkpoints.checkpoint_files import kept_later, read_whole, round_of, rounds
from protocol.errors import ConfigurationError, StorageError

BEST: Final = "best"
LAST: Final = "last"


def named_checkpoint(folder: Path, name: str, option: str = "--checkpoint") -> Path:
    """Returns the checkpoint that a user names with ``option``: "best", "last", the number of a round, or a path.

    The round is one in ``folder``. Where a resumed run did not go on from the checkpoint of that round, it is the one
    that was kept.

    Raises ``ConfigurationError`` where there is none, with those that there are.
    """
    if name == BEST:
        found = best_checkpoint(folder)
        if found is None:
            raise ConfigurationError(
                f"no checkpoint in {folder} was evaluated, so none is the best: the node evaluates every "
                f"evaluation.every_rounds rounds; name a round instead ({_listed(folder)})"
            )
        return found.path
    if name == LAST:
        newest = newest_whole(folder)
        if newest is None:
            raise ConfigurationError(f"no checkpoint in {folder} is whole: starling up trains one")
        return newest[0]
    is_number = name.isascii() and name.isdigit()
    path = folder / f"round-{int(name):06d}" if is_number else Path(name).expanduser()
    if is_number and not path.is_dir():
        path = kept_later(folder).get(int(name), path)
    if not path.is_dir():
        raise ConfigurationError(f"{option} {name}: there is no folder {path}; {folder} has {_listed(folder)}")
    return path


def newest_whole(folder: Path) -> tuple[Path, dict[str, Any], dict[str, Any]] | None:
    """Returns path, state and configuration of the newest checkpoint that is whole; None if there is none.

    One that is damaged, or that the node deletes meanwhile, is passed over for the one before.
    """
    for path in reversed(rounds(folder)):
        try:
            state, config = read_whole(path)
        except StorageError:
            continue
        return path, state, config
    return None


def _listed(folder: Path) -> str:
    numbers = sorted({*map(round_of, rounds(folder)), *kept_later(folder)})
    return f"rounds {', '.join(map(str, numbers))}" if numbers else "no checkpoint"
