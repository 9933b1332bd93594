"""What a node says when it has ended in order: what it did, what came of it, where that is, and what to do with it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from node.api.types import GainsAnswer
from node.printable import printable
from node.quantities import counted

PATH_CHARACTERS = 300


def farewell(rounds: int, gains: GainsAnswer, saved: str | None, home: Path | None) -> Iterator[str]:
    """Yields lines for people; none for a start without a round. ``rounds``: of the whole run; ``saved``: the newest
    checkpoint; ``home``: the data directory, None where commands take it by themselves."""
    if not rounds:
        return
    yield f"{counted(rounds, 'round')} so far. {gains.sentence}"
    if saved is None:
        return
    yield f"Saved: {printable(saved, PATH_CHARACTERS)}"
    where = "" if home is None else f" --home {printable(shlex.quote(str(home)), PATH_CHARACTERS)}"
    yield f"Ask it: starling try{where}"
    yield f"Go on: starling up{where}; take it along: starling export{where} FOLDER"
