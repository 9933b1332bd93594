"""``starling try``: asks the model, before and after training."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import sys
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

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
from node.cli.shown_steps import shown_steps
from protocol.errors import StarlingError

if TYPE_CHECKING:
    from node.trying.tried import Answering, Question


def try_model(
    text: Annotated[
        str | None, typer.Argument(help="A question. Default: each line of standard input, or what you type.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Ask this task's questions that nobody trains on, and judge the answers."),
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option(min=1, help="How many of --task. Default: one for each Enter; without a terminal 8."),
    ] = None,
    checkpoint: CheckpointOption = None,
    base: Annotated[
        bool | None,
        typer.Option("--base/--no-base", help="The base model alone, or the checkpoint alone. Default: both."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an answer, at most. Default: the task's, otherwise 128.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the most likely token each time.")] = 0.0,
    home: HomeOption = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model that was trained. Default: the configured one.")
    ] = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the model: the answers before and after training, below each other. The node may run meanwhile.

    Prompts are written as in training. Built-in models know the questions of
    their tasks and nothing else: /task NAME asks one. With --json each question
    is a line of JSON. What is being loaded goes to standard error.

    Examples:

    starling try

    starling try "reverse robin=" --checkpoint best

    starling try --task rotate_matrix --questions 20 --json

    starling try --no-base --temperature 1 < questions.txt
    """
    from node.checkpoints.choice import named_checkpoint
    from node.configuration.sources import load_config
    from node.doctor.task_check import check_generators
    from node.library_imports import importing_libraries
    from node.printable import printable
    from node.tasks.catalogue import find_task
    from node.tasks.registry import load_tasks
    from node.trying.questions import HELP, first_questions, given_questions, typed_questions

    _refuse_contradictions(text, task, questions, checkpoint, base)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    set_compute_defaults()
    where = home_of(home)
    chosen = named_checkpoint(where.checkpoints, checkpoint) if checkpoint is not None else None
    config = load_config(where.path, os.environ, assignments(sets) | ({"policy.model": model} if model else {}))
    check_generators(config.tasks)
    find = partial(find_task, config.tasks)
    of_task = None if task is None else find(task)  # before the libraries are imported, which takes seconds
    with shown_steps() as progress:
        progress.step("importing libraries")
        with importing_libraries():
            from node.trying.answering import ask, load_models
        seed, wants_base, wants_trained = secrets.randbits(63), base is not False, base is not True
        models = load_models(
            where, config.policy, chosen, base=wants_base, trained=wants_trained, seed=seed, on_step=progress.step
        )
    if wants_trained and models[-1].checkpoint is None:
        _say(f"no checkpoint in {where.checkpoints}: the base model answers alone; starling up trains one")
    answer = partial(ask, models, temperature=temperature)
    if text is None and questions is None and sys.stdin.isatty():
        names = " and ".join(each.name for each in models)
        _say(f"{printable(config.policy.model)}, {names}; tasks: {printable(', '.join(load_tasks(config.tasks)))}")
        _say(HELP)
        _answer_all(typed_questions(_typed_line, _say, find, tokens, task), answer, as_json, is_typed=True)
    else:
        lines = sys.stdin if text is None else (text,)
        given = given_questions(lines, tokens) if of_task is None else first_questions(of_task, tokens, questions)
        _answer_all(given, answer, as_json, is_typed=False)


def _refuse_contradictions(
    text: str | None, task: str | None, questions: int | None, checkpoint: str | None, base: bool | None
) -> None:
    if text is not None and task is not None:
        raise typer.BadParameter("--task asks its own questions: leave TEXT or --task out", param_hint="TEXT")
    if questions is not None and task is None:
        raise typer.BadParameter("it needs --task", param_hint="--questions")
    if base and checkpoint is not None:
        raise typer.BadParameter("it asks no checkpoint: leave it or --checkpoint out", param_hint="--base")


def _answer_all(questions: Iterator[Question], answer: Answering, as_json: bool, *, is_typed: bool) -> None:
    """Prints each question's answers, and at the end the mean rewards. What a person typed and cannot be answered, or
    not in time, ends nothing."""
    from node.trying.tried import MeanRewards, tried_lines

    means = MeanRewards()
    try:
        for question in questions:
            try:
                with shown_steps() as progress:
                    tried = answer(question, on_step=progress.meanwhile)
            except (StarlingError, KeyboardInterrupt) as error:
                if not is_typed:
                    raise
                _say(str(error) or "interrupted")
                continue
            means.add(tried)
            shows_question = question.of_task is not None or not is_typed
            print_answer(tried, as_json, partial(tried_lines, tried, with_question=shows_question))
    finally:
        for line in () if as_json else means.lines():
            typer.echo(line)


def _typed_line() -> str | None:
    """Returns the next line that a person types; None at Ctrl-D and Ctrl-C."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - lets input() edit lines
    try:
        return input("> " if sys.stdout.isatty() else "")
    except (EOFError, KeyboardInterrupt):
        _say("")
        return None


def _say(text: str) -> None:
    typer.echo(text, err=True)
