"""``starling eval``: measures how well the policy does each task, on prompts that are always the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import HomeOption, JsonOption, SetOption, assignments


def evaluate(
    home: HomeOption = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="The checkpoint to measure. Default: the newest in --home.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model that was trained. Default: the configured one.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of each task.")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="The seed of sampling at temperature 1.")] = 0,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the mean reward on every task, greedy and sampled. Without a checkpoint, measure the model itself.

    Example: starling eval --prompts 64 --json
    """
    from node.compute_environment import COMPUTE_DEFAULTS, importing_libraries

    for variable, value in COMPUTE_DEFAULTS.items():
        os.environ.setdefault(variable, value)  # torch reads it when it is imported

    from node.cli.wording import evaluation_lines
    from node.configuration import load_config
    from node.home import home_at

    with importing_libraries():
        from node.evaluation.evaluation import evaluate_policy

    where = home_at(home, os.environ)
    flags = assignments(sets) | ({"policy.model": model} if model else {})
    config = load_config(where.path, os.environ, flags)
    result = evaluate_policy(where, config, checkpoint, prompts=prompts, seed=seed)
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(result))
        return
    for line in evaluation_lines(result):
        typer.echo(line)
