"""``starling history``: the runs of this machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import HomeOption, JsonOption, home_of, print_answer
from node.home import Home
from protocol.errors import ConfigurationError

FoldersArgument = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FOLDER]…", help="Further data directories, beside that of --home.", show_default=False),
]


def history(folders: FoldersArgument = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the runs of this machine, a data directory each: when, how long, reward by task at first and now, and the
    checkpoints that are there.

    A change of reward that may be chance says so. starling report shows one run
    with its curves, starling report A B compares two, and starling up --resume
    goes on from a checkpoint.

    Examples:

    starling history

    starling history ~/alone ~/with-peers --json
    """
    from node.report.past_runs import past_run

    found = [past_run(place) for place in _places(folders or [], home)]
    found.sort(key=lambda each: each[0].began_seconds)
    print_answer([run for run, _ in found], as_json, lambda: _lines([lines for _, lines in found]))


def _places(folders: Sequence[Path], home: Path | None) -> list[Home]:
    """Returns each data directory once. Without ``home`` that of this user is left out where nothing was recorded in it
    and others are named."""
    own, named = home_of(home), [home_of(folder) for folder in folders]
    missing = [str(place.path) for place in named if not place.path.is_dir()]
    if missing:
        raise ConfigurationError(f"there is no data directory {missing[0]}: name one that a node has used")
    places = [own, *named] if home is not None or not named or own.metrics.exists() else named
    return list({place.path.resolve(): place for place in places}.values())


def _lines(runs: Sequence[Sequence[str]]) -> Iterator[str]:
    for lines in runs:
        yield from lines
        yield ""
    yield "One run with its curves: starling report. Two side by side: starling report A B."
