"""The command ``starling``: one file a verb. A verb imports what it needs only when it is called, and the verb that is
called is made alone, so that verbs that read answer at once. An error that starling raises on purpose ends the command
with the error's message and exit code, without a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Final

import typer

from node.cli.output_queue import say_last
from node.cli.verbs import (
    bugreport,
    config,
    demo,
    doctor,
    donor,
    down,
    engine,
    eval,
    export,
    fit,
    history,
    id,
    lend,
    logs,
    owner,
    pause,
    peers,
    publish,
    relay,
    report,
    status,
    swarm,
    swarms,
    tasks,
    top,
    try_model,
    up,
    version,
)
from protocol.errors import StarlingError
from swarm.exit_codes import ExitCode, exit_code_of

HELP = """Train a language model together with nodes on other machines: no coordinator, no account, no blockchain.

Start a node: starling up. Look at it from another terminal: starling status. Stop it with Ctrl-C or starling down.
In the background: starling up --detach, starling logs -f. Have the machine for yourself: starling pause --for 2h.
Ask the model, before and after training: starling try. See three nodes learn from each other: starling demo.
Let the shell complete verbs, options and keys, once: starling --install-completion.

Exit codes: 0 done, 1 fault, 2 usage, 69 unreachable, 74 not saved, 75 try again, 77 refused, 78 bad configuration,
130 interrupted.
"""

GROUPS: Final[Mapping[str, Mapping[str, typer.Typer | Callable[..., None]]]] = {  # headings of the help, and verbs
    "Run": {"up": up.up, "pause": pause.pause, "resume": pause.resume, "down": down.down, "demo": demo.demo},
    "Look": {
        "status": status.status,
        "peers": peers.peers,
        "top": top.top,
        "logs": logs.logs,
        "report": report.report,
        "history": history.history,
        "id": id.identity,
    },
    "Share": {
        "swarms": swarms.swarms,
        "invite": swarm.invite,
        "revoke": owner.revoke,
        "readmit": owner.readmit,
        "swarm": swarm.app,
        "relay": relay.relay,
        "lend": lend.lend,
        "donor": donor.app,
    },
    "Models": {
        "tasks": tasks.tasks,
        "try": try_model.try_model,
        "eval": eval.evaluate,
        "export": export.export,
        "fit": fit.fit,
        "engine": engine.app,
    },
    "Trouble": {
        "doctor": doctor.doctor,
        "bugreport": bugreport.bugreport,
        "config": config.app,
        "version": version.version,
    },
}
swarm.app.command("rotate-key")(owner.rotate_key)
swarm.app.command("apply")(owner.apply_document)
swarm.app.command("publish")(publish.publish)


def command(verb: str | None = None) -> typer.Typer:
    """Returns the command with all verbs; if ``verb`` is one of them, with that one alone: making all takes longer than
    most of them."""
    made = typer.Typer(
        name="starling",
        help=HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(version.before_any_verb)
    is_known = any(verb in verbs for verbs in GROUPS.values())
    for heading, verbs in GROUPS.items():
        for name, called in verbs.items():
            if is_known and name != verb:
                continue
            if isinstance(called, typer.Typer):
                made.add_typer(called, name=name, rich_help_panel=heading)
            else:
                made.command(name, rich_help_panel=heading)(called)
    return made


app = command()


def main() -> None:
    """Entry point of the ``starling`` script."""
    try:
        called = command(next(iter(sys.argv[1:]), None))
        called(prog_name="starling")  # completion and usage lines are the same for ``python -m``
    except StarlingError as error:
        say_last(f"starling: {error}")
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has closed it
        sys.stderr.close()
        sys.exit(ExitCode.DONE)


if __name__ == "__main__":
    main()
