"""``starling fit``: what a model takes in memory on this machine, and which settings make it fit."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from node.cli.options import HomeOption, JsonOption, SetOption, assignments, home_of, print_answer
from protocol.errors import ConfigurationError
from swarm.exit_codes import ExitCode


def fit(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Built-in, a local folder or a hub id. Default: configured.")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Plan for this much memory, such as 8GB, of the GPU where there is one."),
    ] = None,
    others: Annotated[
        str | None,
        typer.Option(
            "--with", metavar="SIZE,SIZE,…", help="Plan over this machine and others that may use so much memory each."
        ),
    ] = None,
    home: HomeOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what training a model takes in memory, by part, and the settings that starling up would choose.

    The exit code is 78 if the model does not fit. Nothing is loaded or changed.
    With --with it shows which layers this machine and others would hold
    together (policy.stages), and how long a round would take.

    Examples:

    starling fit Qwen/Qwen2.5-0.5B

    starling fit ./model --memory 8GB --set policy.adapter_rank=16

    starling fit Qwen/Qwen2.5-1.5B --memory 4GB --with 2GB,2GB
    """
    from node.configuration.sources import load_config
    from node.doctor.configured_model import judge_model
    from node.doctor.machine_facts import fit_facts, stage_fit
    from node.doctor.task_check import check_generators
    from node.engines.vllm_backend.environment import environment_at
    from node.fit.machine_probe import machine_for
    from node.fit.stages.table import stage_fit_lines
    from node.fit.table import report_lines

    where = home_of(home)
    flags = assignments(sets) | ({"policy.model": model} if model else {})
    config = load_config(where.path, os.environ, flags)
    check_generators(config.tasks)
    asked_bytes = None if memory is None else bytes_of(memory)
    refused = judge_model(config.policy.model, os.environ)  # as a start does, before torch looks at the machine
    if refused is not None:
        raise ConfigurationError(f"{refused.message}: {refused.remedy}")
    machine = machine_for(where, config.policy, asked_bytes, config.machine.max_memory_bytes)
    if others is not None:
        staged = stage_fit(where, config, machine, [bytes_of(each, "--with") for each in others.split(",")])
        print_answer(staged, as_json, lambda: stage_fit_lines(staged))
        fits = staged.fits
    else:
        report = fit_facts(where, config, machine, environment_at(os.environ).installed())
        print_answer(report, as_json, lambda: report_lines(report))
        fits = report.fits
    if not fits:
        raise typer.Exit(ExitCode.BAD_CONFIGURATION)


def bytes_of(text: str, option: str = "--memory") -> int:
    """Returns an amount such as "8GB", "512 MiB" or "8000000000" in bytes. Raises ``ConfigurationError``."""
    from node.configuration.amounts import size_bytes

    try:
        return size_bytes(text)
    except ValueError:
        raise ConfigurationError(
            f"{option} {text} is not an amount of memory: write it such as 8GB or 512MiB"
        ) from None
