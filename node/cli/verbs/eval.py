"""``starling eval``: measures how well the policy does each task, on prompts that are always the same, and that nobody
trains on."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from node.cli.options import (
    CheckpointOption,
    HomeOption,
    JsonOption,
    SetOption,
    assignments,
    home_of,
    print_answer,
    set_compute_defaults,
)


def evaluate(
    home: HomeOption = None,
    checkpoint: CheckpointOption = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model that was trained. Default: the configured one.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of each task.")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="The seed of sampling at temperature 1.")] = 0,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the mean reward on every task, greedy and sampled. Without a checkpoint, measure the model itself.

    The questions are the same each time, and no node ever trains on them. How far it is goes to standard error.

    Examples:

    starling eval --prompts 64 --json

    starling eval --checkpoint best
    """
    from node.checkpoints.choice import named_checkpoint
    from node.cli.wording import evaluation_lines
    from node.configuration.sources import load_config
    from node.doctor.task_check import check_generators
    from node.library_imports import importing_libraries

    set_compute_defaults()
    where = home_of(home)
    chosen = named_checkpoint(where.checkpoints, checkpoint) if checkpoint is not None else None
    with importing_libraries():
        from node.evaluation.evaluation import evaluate_policy
    from node.evaluation.evaluation_result import progress_line

    flags = assignments(sets) | ({"policy.model": model} if model else {})
    config = load_config(where.path, os.environ, flags)
    check_generators(config.tasks)

    def show_progress(answers: int, in_all: int) -> None:
        typer.echo(progress_line(answers, in_all), err=True)

    result = evaluate_policy(where, config, chosen, prompts=prompts, seed=seed, on_progress=show_progress)
    print_answer(result, as_json, lambda: evaluation_lines(result))
