"""``starling tasks``: what there is to train on, a sample question, and what an answer earns."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import HomeOption, JsonOption, SetOption, assignments, home_of, print_answer

if TYPE_CHECKING:
    from node.configuration import ChatMode
    from node.policy.shown_prompt import ShownPrompt


def tasks(
    name: Annotated[str | None, typer.Argument(help="A task to show, or a set of tasks to list.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Which of the task's questions.")] = 0,
    score: Annotated[
        str | None,
        typer.Option(metavar="ANSWER", help="Score this completion of the question; - is standard input."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Show the prompt as this model gets it."),
    ] = None,
    home: HomeOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tasks, show a question of one, or score an answer to it.

    Examples:

    starling tasks

    starling tasks sapo

    starling tasks reasoning:gcd --seed 7 --model Qwen/Qwen3-0.6B

    starling tasks reasoning:gcd --seed 7 --score "It is <answer>4</answer>"

    starling tasks reasoning_gym:chain_sum --set tasks.reasoning_gym.chain_sum.min_terms=2

    starling tasks gsm8k --set tasks.jsonl=gsm8k.jsonl --score "#### 42" --json

    starling tasks sums --set tasks.jsonl=sums.jsonl --set tasks.jsonl_reward=reward.py:close --score 41
    """
    from node.cli.tasks_text import judged_lines, list_lines, sample_lines
    from node.configuration import load_config
    from node.doctor.task_check import check_generators
    from node.tasks.catalogue import find_task, judge, sample, summaries
    from node.tasks.plugins import task_names
    from node.tasks.registry import TASK_SETS

    config = load_config(home_of(home).path, os.environ, assignments(sets))
    check_generators(config.tasks)
    if name is None or name in TASK_SETS:
        if score is not None or model is not None:
            raise typer.BadParameter("--score and --model need the name of one task", param_hint="NAME")
        listed = summaries(config.tasks, name)
        answer: object = listed
        lines: Iterable[str] = list_lines(listed, task_names())
    else:
        task = find_task(config.tasks, name)
        asked = sample(task, seed)
        if score is None:
            shown = None if model is None else _shown(model, config.policy.chat, asked.question)
            answer, lines = {"sample": asked, "prompt": shown}, sample_lines(asked, shown)
        else:
            judged = judge(task, seed, sys.stdin.read() if score == "-" else score)
            answer, lines = {"sample": asked, "judged": judged}, judged_lines(asked, judged)
    print_answer(answer, as_json, lambda: lines)


def _shown(model: str, chat: ChatMode, question: str) -> ShownPrompt:
    from node.compute_environment import importing_libraries

    with importing_libraries():
        from node.policy.shown_prompt import shown_prompt
    return shown_prompt(model, chat, question)
