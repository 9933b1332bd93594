"""``starling report``: the results of a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import HomeOption, JsonOption

HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write one HTML page that loads nothing else.")
]


def report(home: HomeOption = None, html: HtmlOption = None, as_json: JsonOption = False) -> None:
    """Print the results of a run: reward by task, sharing, traffic, faults. The node may be running or not.

    Example: starling report --html run.html
    """
    from node.home import home_at
    from node.report.facts import run_facts
    from protocol.errors import StorageError

    place = home_at(home, os.environ)
    facts = run_facts(place.metrics)
    if html is not None:
        from node.report.html import write_report

        try:
            write_report(facts, html, name=place.path.name)
        except OSError as error:
            raise StorageError(f"{html} cannot be written ({error.strerror}): name another file with --html") from None
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(facts))
        return
    from node.report.lines import report_lines

    for line in report_lines(facts):
        typer.echo(line)
    if html is not None:
        typer.echo(f"page     {html.absolute()}")
