"""The command ``starling``: one verb a file, each importing what it needs only when it is called, so that reading verbs
answer at once. Errors that starling raises on purpose end it with their message and exit code, without a traceback.
"""

from __future__ import annotations

import sys

import typer

from node.cli import (
    bugreport,
    config,
    demo,
    doctor,
    down,
    eval,
    id,
    owner,
    peers,
    report,
    status,
    swarm,
    top,
    up,
    version,
)
from protocol.errors import StarlingError
from swarm.exit_codes import ExitCode, exit_code_of

HELP = """Train a language model as one of a flock: no coordinator, no account, no chain.

Start a node with: starling up. Look at it from another terminal with: starling status. End it with Ctrl-C or: starling
down. See three nodes learn from each other with: starling demo.

Exit codes: 0 done, 1 fault, 2 usage, 69 unreachable, 75 try again, 77 refused, 78 bad configuration, 130 interrupted.
"""

app = typer.Typer(
    name="starling",
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("status")(status.status)
app.command("peers")(peers.peers)
app.command("top")(top.top)
app.command("down")(down.down)
app.command("report")(report.report)
app.command("id")(id.identity)
app.command("eval")(eval.evaluate)
app.command("doctor")(doctor.doctor)
app.command("bugreport")(bugreport.bugreport)
app.command("demo")(demo.demo)
app.command("version")(version.version)
app.command("invite")(swarm.invite)
app.command("revoke")(owner.revoke)
swarm.app.command("rotate-key")(owner.rotate_key)
swarm.app.command("apply")(owner.apply)
app.add_typer(swarm.app, name="swarm")
app.add_typer(config.app, name="config")


def main() -> None:
    """Entry point of the ``starling`` script."""
    try:
        app()
    except StarlingError as error:
        print(f"starling: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stderr.close()
        sys.exit(ExitCode.DONE)


if __name__ == "__main__":
    main()
