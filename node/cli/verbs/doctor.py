"""``starling doctor``: checks whether this machine can run a node."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import HomeOption, JsonOption, SetOption, assignments, home_of, print_answer, shown_width
from swarm.exit_codes import ExitCode

ReportOption = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Write a page to attach to a report of a fault: versions, findings, settings, the last lines of the logs, "
        "without addresses, names and secrets.",
    ),
]


def doctor(
    home: HomeOption = None, sets: SetOption = None, report_to: ReportOption = None, as_json: JsonOption = False
) -> None:
    """Examine the machine, the network, the configuration and the data directory, and print what is wrong and its
    remedy.

    Each line begins with ok, warning or error; the exit code is 1 if any is an error. It changes nothing. Run it before
    the first start, or while a node runs: then it also compares the clocks of its peers.

    Examples:

    starling doctor

    starling doctor --home /data/node --json

    starling doctor --report fault.md

    starling doctor --set swarm.listen=/ip4/0.0.0.0/tcp/4001
    """
    from node.cli.wording import finding_lines
    from node.configuration.sources import resolve
    from node.doctor.attachment import attachment
    from node.doctor.examination import examine

    report = examine(home_of(home), os.environ, assignments(sets))
    print_answer(report, as_json, lambda: finding_lines(report, shown_width(sys.stdout)))
    if report_to is not None:
        config = resolve(home_of(home).path, os.environ, assignments(sets)).config
        report_to.write_text(attachment(home_of(home), config, report), encoding="utf-8")
        typer.echo(f"Written to {report_to}: read it before you send it to anybody.", err=True)
    if not report.healthy:
        raise typer.Exit(ExitCode.FAULT)
