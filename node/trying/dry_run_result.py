"""What a dry run found: for people as lines, for programs as JSON. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from node.printable import one_line, printable
from node.quantities import counted, duration
from protocol.limits import NAME_BYTES

SHOWN_CHARACTERS = 200  # of a question or an answer
COLUMN = "  {:<9} {}"


class DryRunAnswer(Struct, frozen=True):
    text: str
    reward: float
    fault: str | None  # why there is no reward of its own


class DryRunGroup(Struct, frozen=True):
    """One question with its answers."""

    question: str
    right_answer: str | None  # None where the task does not tell one
    answers: tuple[DryRunAnswer, ...]

    @property
    def best_and_worst(self) -> tuple[DryRunAnswer, ...]:
        """One answer where all earn the same."""
        ordered = sorted(self.answers, key=lambda answer: -answer.reward)
        return (ordered[0], ordered[-1]) if ordered[0].reward > ordered[-1].reward else (ordered[0],)


class DryRunTask(Struct, frozen=True):
    """What was sampled of one task."""

    task: str
    groups: tuple[DryRunGroup, ...]  # none where no prompt leaves room for an answer in the model's context
    teaching: int  # groups whose answers earn different rewards
    reward: float  # mean over the answers
    timed_answers: int  # sampled and judged in ``timed_seconds``
    timed_tokens: int
    timed_seconds: float


class DryRun(Struct, frozen=True):
    """What ``starling up --dry-run --json`` prints."""

    model: str
    plan: str  # as a start chooses it, in one line
    round: int  # rounds trained
    checkpoint: str | None  # None: the model before any training
    temperature: float
    completions: int  # to each question, as in a round
    own_groups: int  # of a round
    tasks: tuple[DryRunTask, ...]
    groups: int
    teaching: int
    tokens_per_second: float  # sampled and judged
    round_seconds: float  # about, to sample and judge a round's own groups; learning comes on top
    teaches_nothing: str | None  # why some tasks teach nothing, in words; None where every task teaches
    to_do: str | None


def dry_run_lines(found: DryRun) -> Iterator[str]:
    state = f"after round {found.round}" if found.checkpoint is not None else "before any training"
    yield f"{printable(found.model, NAME_BYTES)}, {state}; plan: {one_line(found.plan, 400)}"
    yield f"{found.completions} answers to each question, at temperature {found.temperature:g}, as in a round"
    for task in found.tasks:
        yield ""
        yield from _task_lines(task)
    yield ""
    yield (
        f"{found.teaching} of {counted(found.groups, 'group')} would teach: their answers earn different rewards. To "
        f"sample and judge the {found.own_groups} groups of a round takes about {_about(found.round_seconds)} "
        f"({found.tokens_per_second:,.0f} tokens/s); learning comes on top"
    )
    if found.teaches_nothing is not None:
        yield f"Of this sample these teach nothing: {found.teaches_nothing}. To do: {found.to_do}"
    yield "Nothing was started, and nothing was written. Without --dry-run the same command trains"


def _task_lines(task: DryRunTask) -> Iterator[str]:
    name = printable(task.task, NAME_BYTES)
    if not task.groups:
        yield f"{name}: no question leaves room for an answer in the model's context"
        return
    yield (
        f"{name}: mean reward {task.reward:.2f}; {task.teaching} of {counted(len(task.groups), 'group')} would teach; "
        f"{counted(task.timed_answers, 'answer')} of {task.timed_tokens / task.timed_answers:.0f} tokens each took "
        f"{task.timed_seconds:.2g} s"
    )
    # The group that shows most: one that would teach, if there is one.
    group = max(task.groups, key=lambda each: len(each.best_and_worst))
    yield COLUMN.format("question", one_line(group.question, SHOWN_CHARACTERS))
    if group.right_answer is not None:
        yield COLUMN.format("expected", one_line(group.right_answer, SHOWN_CHARACTERS))
    for answer in group.best_and_worst:
        text = one_line(answer.text, SHOWN_CHARACTERS) or "(nothing)"
        fault = "" if answer.fault is None else f"; {one_line(answer.fault, SHOWN_CHARACTERS)}"
        yield COLUMN.format("answer", f"{text} (reward {answer.reward:.2f}{fault})")


def _about(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"
