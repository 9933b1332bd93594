"""``starling tasks``: what there is to train on, a sample question, and what an answer earns."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import HomeOption, JsonOption, SetOption, assignments, home_of, print_answer
from node.printable import printable_lines

if TYPE_CHECKING:
    from node.configuration import ChatMode, TasksSection
    from node.environments.conversation import ConversationTask, Exchange
    from node.home import Home
    from node.policy.shown_prompt import ShownPrompt
    from node.tasks.task import Prompt

PLAYED_CHARACTERS = 10_000


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
    play: Annotated[bool, typer.Option("--play", help="Have the conversation yourself: a line is an action.")] = False,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit", help="Look whether equal actions give equal conversations; exit 1 if not. A set: each of it."
        ),
    ] = False,
    home: HomeOption = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tasks, show a question or conversation of one, score an answer, play, or audit.

    Examples:

    starling tasks

    starling tasks sapo

    starling tasks reasoning:gcd --seed 7 --model Qwen/Qwen3-0.6B

    starling tasks reasoning:gcd --seed 7 --score "It is <answer>4</answer>"

    starling tasks reasoning_gym:chain_sum --set tasks.reasoning_gym.chain_sum.min_terms=2

    starling tasks gsm8k --set tasks.jsonl=gsm8k.jsonl --score "#### 42" --json

    starling tasks sums --set tasks.jsonl=sums.jsonl --set tasks.jsonl_reward=reward.py:close --score 41

    starling tasks guess_number --seed 7 --play

    starling tasks database:large --audit

    starling tasks countdown.py:countdown --audit

    starling tasks conversations --audit
    """
    from node.cli.tasks_text import judged_lines, list_lines, sample_lines
    from node.configuration.sources import load_config
    from node.doctor.task_check import check_generators
    from node.tasks.catalogue import find_conversation, find_task, judge, sample, summaries
    from node.tasks.plugins import task_names
    from node.tasks.registry import TASK_SETS

    where = home_of(home)
    config = load_config(where.path, os.environ, assignments(sets))
    check_generators(config.tasks)
    if play or audit:
        if name is None or (play and audit):
            raise typer.BadParameter("--play and --audit, one at a time, need the name of a task", param_hint="NAME")
        if play:
            _play(find_conversation(config.tasks, name), seed, as_json=as_json)
        else:
            _audit(where, config.tasks, name, as_json=as_json)
    elif name is None or name in TASK_SETS:
        if score is not None or model is not None:
            raise typer.BadParameter("--score and --model need the name of one task", param_hint="NAME")
        listed = summaries(config.tasks, name)
        print_answer(listed, as_json, lambda: list_lines(listed, task_names()))
    else:
        task = find_task(config.tasks, name)
        asked = sample(task, seed)
        if score is None:
            shown = None if model is None else _shown(model, config.policy.chat, task.prompt(task.ref(seed)))
            answer: object = {"sample": asked, "prompt": shown}
            lines: Iterable[str] = sample_lines(asked, shown, name)
        else:
            judged = judge(task, seed, sys.stdin.read() if score == "-" else score)
            answer, lines = {"sample": asked, "judged": judged}, judged_lines(asked, judged)
        print_answer(answer, as_json, lambda: lines)


def _audit(where: Home, section: TasksSection, name: str, *, as_json: bool) -> None:
    """Audits a conversation, or each of a set, and keeps what was found in the data directory."""
    from node.cli.tasks_text import audit_lines
    from node.environments.audit import audit
    from node.environments.audited import note_audit
    from node.tasks.registry import TASK_SETS

    where.prepare()
    passed = True
    for each in [task.name for task in TASK_SETS[name]] if name in TASK_SETS else [name]:
        found = audit(section, each)
        note_audit(where.audits, found)
        print_answer(found, as_json, partial(audit_lines, found))
        passed = passed and found.passed
    if not passed:
        raise typer.Exit(1)


def _play(task: ConversationTask, seed: int, *, as_json: bool) -> None:
    """Reads an action a line from standard input. Each is answered by playing the episode from its beginning, as in
    training."""
    from node.cli.tasks_text import exchange_lines

    prompt, actions, played = task.prompt(task.ref(seed)), list[str](), list["Exchange"]()
    if not as_json:
        typer.echo(printable_lines(prompt.text, PLAYED_CHARACTERS))
    for line in sys.stdin:
        actions.append(line.rstrip("\n"))
        played = task.exchanges(prompt.ref, actions)
        if not as_json:
            typer.echo("\n".join([*exchange_lines(played[-1])][1:]))
        if played[-1].done or len(played) == task.environment.max_turns:
            break
    reward = played[-1].reward if played else 0.0
    ended = {
        "task": task.name,
        "seed": prompt.ref.seed,
        "prompt": prompt.text,
        "conversation": played,
        "reward": reward,
    }
    said = f"reward {reward:g} after {len(played)} of at most {task.environment.max_turns} turns"
    print_answer(ended, as_json, lambda: [said])


def _shown(model: str, chat: ChatMode, prompt: Prompt) -> ShownPrompt:
    from node.library_imports import importing_libraries

    with importing_libraries():
        from node.policy.shown_prompt import shown_prompt
    return shown_prompt(model, chat, prompt.text, prompt.tools)
