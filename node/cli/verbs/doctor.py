"""``starling doctor``: checks whether this machine can run a node."""

from __future__ import annotations

import os
import sys

import typer

from node.cli.options import HomeOption, JsonOption, SetOption, assignments, home_of, print_answer, shown_width
from swarm.exit_codes import ExitCode


def doctor(home: HomeOption = None, sets: SetOption = None, as_json: JsonOption = False) -> None:
    """Examine the machine, the network, the configuration and the data directory, and print what is wrong and its
    remedy.

    Each line begins with ok, warning or error; the exit code is 1 if any is an error. It changes nothing. Run it before
    the first start, or while a node runs: then it also compares the clocks of its peers.

    Examples:

    starling doctor

    starling doctor --home /data/node --json

    starling doctor --set swarm.listen=/ip4/0.0.0.0/tcp/4001
    """
    from node.cli.wording import finding_lines
    from node.doctor.examination import examine

    report = examine(home_of(home), os.environ, assignments(sets))
    print_answer(report, as_json, lambda: finding_lines(report, shown_width(sys.stdout)))
    if not report.healthy:
        raise typer.Exit(ExitCode.FAULT)
