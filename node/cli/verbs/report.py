"""``starling report``: the results of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import HomeOption, JsonOption, home_of, print_answer
from node.home import Home
from protocol.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from node.report.facts import RunFacts

HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write one HTML page that loads nothing else.")
]


RunsArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[A B]",
        help="Two data directories to compare, or one to report on instead of --home.",
        show_default=False,
    ),
]


AgainstOption = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="expected:NAME|DIRECTORY|FILE",
        help="What to compare with: seeded runs of a built-in model (expected:wren), another data directory, or what "
        "`starling report --json` printed of a run.",
    ),
]


def report(
    runs: RunsArgument = None,
    home: HomeOption = None,
    against: AgainstOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the results of a run: reward by task, what was learnt from peers, losses, sharing, traffic, faults. The
    node may be running or not. With two data directories, print both side by side.

    Examples:

    starling report --html run.html

    starling report --against expected:wren

    starling report ~/with-peers ~/alone --html both.html
    """

    named: list[Path | None] = [*runs] if runs else [home]
    places = [home_of(run) for run in named]
    if len(places) > 2 or (runs and home is not None):
        raise ConfigurationError(
            "a report is of one run or of two: name the data directories, as in starling report A B, without --home"
        )
    missing = [str(place.path) for place in places if not place.path.is_dir()]
    if runs and missing:
        raise ConfigurationError(f"there is no data directory {missing[0]}: name one that a node has used")
    if against is not None and len(places) == 2:
        raise ConfigurationError("two data directories are compared already: name one of them, or no --against")
    if against is not None:
        _against(places[0], against, html, as_json)
    elif len(places) == 2:
        _compare(places[0], places[1], html, as_json)
    else:
        _report(places[0], html, as_json)
    if html is not None and not as_json:
        typer.echo(f"page     {html.absolute()}")


def _report(place: Home, html: Path | None, as_json: bool) -> None:
    from node.report.facts import run_facts
    from node.report.lines import report_lines

    facts = run_facts(place.metrics)
    if html is not None:
        from node.report.html import report_page

        _write(html, report_page(facts, name=_node_name(place)))
    print_answer(facts, as_json, lambda: report_lines(facts))


def _against(place: Home, what: str, html: Path | None, as_json: bool) -> None:
    from node.report.expected_curves import PREFIX, against, against_lines, expected_curve
    from node.report.expected_page import against_page
    from node.report.facts import read_facts, run_facts

    if what.startswith(PREFIX):
        found = against(run_facts(place.metrics), expected_curve(what.removeprefix(PREFIX)))
        if html is not None:
            _write(html, against_page(found, name=_node_name(place)))
        print_answer(found, as_json, lambda: against_lines(found))
    elif (path := Path(what)).is_dir():
        _compare(place, home_of(path), html, as_json)
    else:
        names = (_node_name(place), path.name)
        _show_compared(run_facts(place.metrics), read_facts(path), names, html, as_json)


def _compare(first: Home, second: Home, html: Path | None, as_json: bool) -> None:
    from node.report.facts import run_facts

    names = distinct_names(first, second)
    _show_compared(run_facts(first.metrics), run_facts(second.metrics), names, html, as_json)


def _show_compared(a: RunFacts, b: RunFacts, names: tuple[str, str], html: Path | None, as_json: bool) -> None:
    from node.report.comparison import compare, comparison_lines

    comparison = compare(a, b, names)
    if html is not None:
        from node.report.comparison_page import comparison_page

        _write(html, comparison_page(comparison))
    print_answer(comparison, as_json, lambda: comparison_lines(comparison))


def distinct_names(first: Home, second: Home) -> tuple[str, str]:
    """Returns the names of the nodes of two runs; where these are equal the last parts of the folders' paths, or all of
    these."""
    choices = (
        (_node_name(first), _node_name(second)),
        (first.path.name, second.path.name),
        (str(first.path), str(second.path)),
    )
    return next((each for each in choices if each[0] != each[1]), choices[-1])


def _node_name(place: Home) -> str:
    """Returns what the node calls itself, by its newest checkpoint; without one, the name of its folder."""
    from node.configuration import remembered_run

    run = remembered_run(place.path)
    return str(run.value("name") or place.path.name) if run is not None else place.path.name


def _write(path: Path, page: str) -> None:

    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}): name another file with --html") from None
