"""``starling up``: starts the node and shows it until it stops."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from node.cli.options import (
    HomeOption,
    JoinOption,
    JsonEventsOption,
    ListOption,
    PeerOption,
    SetOption,
    assignments,
    home_of,
    print_answer,
    set_compute_defaults,
    shown_width,
)
from node.home import Home
from protocol.errors import ConfigurationError
from swarm.exit_codes import ExitCode

if TYPE_CHECKING:
    from node.doctor.before_start import StartCheck
    from node.doctor.findings import Finding
    from node.supervision.outcome import RunOutcome

T = TypeVar("T")

OPTIONS: Final = {  # each key that has an option of its own
    "policy.model": "--model",
    "policy.stages": "--stages",
    "name": "--name",
    "swarm.peers": "--peer",
    "swarm.listen": "--listen",
    "swarm.name": "--swarm",
    "rounds": "--rounds",
    "tokens": "--tokens",
}


ModelOption = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="builtin:wren, builtin:robin, builtin:finch, a local folder, or a hub id."),
]
StagesOption = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help="Share the model's layers with N other machines, which run starling lend; 0: none."
    ),
]
NameOption = Annotated[str | None, typer.Option(metavar="NAME", help="The name that peers see.")]
ListenOption = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="The address to listen on, such as /ip4/0.0.0.0/tcp/4001.")
]
SwarmOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Join this swarm by its name. starling swarms lists those that are known."),
]
FriendOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Join a node that this directory has met, by its name or peer id. Repeatable."),
]
FromPeersOption = Annotated[
    bool,
    typer.Option(
        "--from-peers",
        help="Start from the best weights that peers with the same model announce, if they are better than this "
        "node's own checkpoint. If none are announced within a minute, start from the local checkpoint or model.",
    ),
]
ResumeOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|PATH|best",
        help="Go on from this checkpoint instead of the newest: a round's number, a folder, or the best by evaluation. "
        "Later checkpoints are kept aside.",
    ),
]
RoundsOption = Annotated[int | None, typer.Option(min=0, help="Stop after this many rounds; 0: never.")]
TokensOption = Annotated[int | None, typer.Option(min=0, help="Stop after generating this many tokens; 0: never.")]
DetachOption = Annotated[
    bool,
    typer.Option(
        "--detach", help="Run in the background: return once the node is ready, or say why it could not start."
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Sample and judge a few answers to each task, say which would teach and what to do, and start nothing.",
    ),
]
UntilInputEndsOption = Annotated[
    bool, typer.Option("--until-input-ends", help="Stop when standard input ends, for programs that start nodes.")
]


def up(
    home: HomeOption = None,
    model: ModelOption = None,
    stages: StagesOption = None,
    name: NameOption = None,
    peer: PeerOption = None,
    friend: FriendOption = None,
    swarm: SwarmOption = None,
    lists: ListOption = None,
    join: JoinOption = None,
    listen: ListenOption = None,
    from_peers: FromPeersOption = False,
    resume: ResumeOption = None,
    rounds: RoundsOption = None,
    tokens: TokensOption = None,
    sets: SetOption = None,
    as_json: JsonEventsOption = False,
    detach: DetachOption = False,
    dry_run: DryRunOption = False,
    until_input_ends: UntilInputEndsOption = False,
) -> None:
    """Start a node: it trains, finds peers, shares rollouts with them, and continues from its last checkpoint.

    A directory that holds a run keeps its model, tasks and swarm: a plain
    starling up continues it. Settings are checked before anything starts, and
    all mistakes are listed at once.

    The first Ctrl-C finishes the step, checkpoints, and says goodbye; a second
    one stops the node at once. A run that could not save what it learnt ends
    with exit code 74.

    Examples:

    starling up

    starling up --model builtin:robin --rounds 30

    starling up --model ./my-model --set tasks.jsonl=questions.jsonl

    starling up --home /data/finch --model builtin:finch

    starling up --model ./my-model --stages 2

    starling up --peer /ip4/192.0.2.7/tcp/4001/p2p/12D3KooW… --name lark

    starling up --friend robin

    starling up --swarm lark --list https://example.org/swarms.list

    starling up --resume best

    starling up --detach

    starling up --model ./my-model --set tasks.jsonl=questions.jsonl --dry-run

    starling up --join invite.txt --listen /ip4/0.0.0.0/tcp/4001
    """
    from node.checkpoints.choice import named_checkpoint
    from node.doctor.before_start import check_start

    if dry_run and (detach or from_peers or until_input_ends):
        raise typer.BadParameter(
            "it starts nothing: leave --detach, --from-peers and --until-input-ends out", param_hint="--dry-run"
        )
    where = home_of(home)
    resumed = None if resume is None else named_checkpoint(where.checkpoints, resume, "--resume")
    given = flags_of({"policy.model": model, "name": name, "swarm.listen": listen})
    given |= flags_of({"rounds": rounds, "tokens": tokens, "policy.stages": stages})
    given |= flags_of(_met(where, peer or [], friend or [], swarm, lists or [], assignments(sets)))
    options = {key: OPTIONS[key] for key in given}
    flags = assignments(sets) | given | ({"checkpoint.from_peers": "true"} if from_peers else {})
    checked = check_start(where, os.environ, flags, options, resumed)
    invite = accepted_invite(where, join, checked, options, as_json=as_json)
    if dry_run:
        _dry_run(where, checked, resumed, as_json=as_json)
        return
    if detach:
        raise typer.Exit(_detached(where, as_json=as_json, until_input_ends=until_input_ends))
    code = _in_the_foreground(where, checked, invite, resumed, as_json=as_json, until_input_ends=until_input_ends)
    if code is not ExitCode.DONE:
        raise typer.Exit(code)


def _met(
    home: Home, peers: list[str], friends: list[str], swarm: str | None, lists: list[str], sets: Mapping[str, str]
) -> dict[str, str | list[str] | int | None]:
    """Returns the keys of the configuration that say where the node goes first."""
    if lists and swarm is None:
        raise ConfigurationError("--list goes with --swarm NAME; starling swarms --list … shows what is in a list")
    if not friends and swarm is None:
        return {"swarm.peers": peers}
    from node.cli.meeting import friend_to_join, swarm_to_join

    doors = [door for friend in friends for door in friend_to_join(home, friend)]
    if swarm is None:
        return {"swarm.peers": [*peers, *doors]}
    choice = swarm_to_join(home, swarm, lists, sets)
    typer.echo(choice.because, err=True)
    return {"swarm.peers": list(dict.fromkeys([*peers, *doors, *choice.doors])), "swarm.name": choice.name}


def accepted_invite(
    home: Home, join: str | None, checked: StartCheck, options: Mapping[str, str], *, as_json: bool
) -> str | None:
    """Returns the invite that was given, or the code with addresses, if any. If it is none, or the check has found an
    error, prints everything that has to be corrected, for programs as the last event of a node, and exits."""
    findings, invite = list(checked.errors), join or os.environ.get("STARLING_JOIN") or None
    if invite is not None:
        from node.doctor.findings import error
        from node.supervision.cluster_setup import invite_text
        from protocol.cluster.spoken_code import is_spoken

        try:
            invite = invite_text(invite)
            if is_spoken(invite):
                from node.cli.spoken import with_doors

                invite = with_doors(home, invite)
        except ConfigurationError as failure:
            remedy = "copy the whole invite, name the file that holds it, or type the code as it was read out"
            findings.insert(0, error("join", str(failure), remedy))
    if not findings:
        return invite
    import json
    import time

    import msgspec

    from node.cli.wording import refusal_lines

    code = checked.exit_code or ExitCode.BAD_CONFIGURATION
    if as_json:
        because = "\n".join(refusal_lines(findings, None, options))
        ended = {"event": "ended", "exit_code": int(code), "because": because, "time_seconds": time.time()}
        typer.echo(json.dumps({**ended, "findings": msgspec.to_builtins(findings)}))
    else:
        lines = refusal_lines(findings, shown_width(sys.stderr), options)
        typer.echo("\n".join(["starling: " + lines[0], *lines[1:]]), err=True)
    raise typer.Exit(code)


def prepared_or_exit(prepared: T | RunOutcome) -> T:
    """Returns what a relay or donor starts with, or says why it cannot, and exits."""
    from node.supervision.outcome import RunOutcome

    if isinstance(prepared, RunOutcome):
        typer.echo(f"starling: {prepared.because}", err=True)
        raise typer.Exit(prepared.exit_code)
    return prepared


def _in_the_foreground(
    home: Home, checked: StartCheck, invite: str | None, resumed: Path | None, *, as_json: bool, until_input_ends: bool
) -> ExitCode:
    """Runs the node and shows it until it stops."""
    from node.cli.node_log import LoggedObserver, node_log  # after the check, which is to answer at once
    from node.cli.output_queue import queued_standard_error
    from node.cli.progress import observer_for
    from node.configuration import with_whole_paths
    from node.supervision.start import run_node

    config = with_whole_paths(checked.resolved.config, Path.cwd())
    log = node_log(home)
    with queued_standard_error(log.append), observer_for(home.api_token, as_json=as_json) as shown:
        observer = LoggedObserver(shown, log)
        for each in checked.warnings:
            observer.on_note(warning_line(each))
        outcome = run_node(home, config, observer, until_input_ends=until_input_ends, invite=invite, resumed=resumed)
        observer.on_outcome(outcome)
    return outcome.exit_code


def warning_line(found: Finding) -> str:
    return f"Warning, {found.check}: {found.message}. To do: {found.remedy}."


def _dry_run(home: Home, checked: StartCheck, resumed: Path | None, *, as_json: bool) -> None:
    """Shows what the model would answer at a start with these settings."""
    from node.cli.shown_steps import shown_steps
    from node.compute_environment import thread_limit
    from node.configuration import with_whole_paths
    from node.library_imports import importing_libraries
    from node.trying.dry_run_result import dry_run_lines

    config = with_whole_paths(checked.resolved.config, Path.cwd())
    set_compute_defaults()
    os.environ.update(thread_limit(config.machine.threads(os.cpu_count() or 1), os.environ))
    for each in checked.warnings:
        typer.echo(warning_line(each), err=True)
    with shown_steps() as progress:
        progress.step("importing libraries")
        with importing_libraries():
            from node.trying.dry_run import dry_run
        found = dry_run(home, config, resumed, progress.step)
    print_answer(found, as_json, lambda: dry_run_lines(found))


def _detached(home: Home, *, as_json: bool, until_input_ends: bool) -> int:
    from node.cli.detaching import start_detached

    if until_input_ends:
        raise ConfigurationError("--detach and --until-input-ends contradict: a detached node has no standard input")
    command = [sys.executable, *(argument for argument in sys.orig_argv[1:] if argument != "--detach")]
    return start_detached(home, command, as_json=as_json, write=typer.echo)


def flags_of(options: Mapping[str, str | list[str] | int | None]) -> dict[str, str]:
    """Returns the options that were given, as text by dotted key."""
    given = {key: value for key, value in options.items() if value is not None and value != []}
    return {key: ",".join(value) if isinstance(value, list) else str(value) for key, value in given.items()}
