"""``starling bugreport``: one file to attach where a fault is reported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import HomeOption

FileArgument = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="Where to write it. Default: starling-bugreport-<time>.txt, here."),
]


def bugreport(file: FileArgument = None, home: HomeOption = None) -> None:
    """Write one text file to attach to a report of a fault. The node may be running or not.

    It holds versions, what doctor finds, the configuration, status, peers, the last events and the last lines of the
    logs. It holds no key, token or invite, but names and addresses of this node and its peers: read it before you
    show it.
    """
    import time

    from node.cli.bugreport_text import CONTENTS, write_bugreport
    from node.cli.bugreport_text import bugreport as text_of
    from node.home import home_at

    now_seconds = time.time()
    path = file or Path(time.strftime("starling-bugreport-%Y%m%d-%H%M%S.txt", time.gmtime(now_seconds)))
    write_bugreport(text_of(home_at(home, os.environ), os.environ, now_seconds), path)
    typer.echo(f"Written: {path.absolute()}\n{CONTENTS}")
