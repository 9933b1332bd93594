"""The swarm, as its heartbeats report it, as lines of text: nodes and success by model and by task. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from node.api.types import ModelView, SwarmAnswer, TaskView
from node.quantities import counted
from node.top.text import Column, Line, Span, number, percent, share_bar, table, wrapped

BAR_CELLS = 10
_MODELS = (
    Column("model", 22, grows=1),
    Column("family", 8),
    Column("nodes", 5, right=True),
    Column("tokens/s", 8, right=True),
    Column("round", 6, right=True),
    Column("success", 7, right=True),
    Column("", BAR_CELLS),
)
_TASKS = (
    Column("task", 23, grows=1),
    Column("nodes", 5, right=True),
    Column("success", 7, right=True),
    Column("low – high", 13, right=True),
    Column("best", 20, grows=2),
)


def swarm_lines(swarm: SwarmAnswer, cells: int) -> list[Line]:
    """Returns totals, models, tasks, phases and versions."""
    sums = (
        f"{counted(swarm.nodes, 'node')} {'reports' if swarm.nodes == 1 else 'report'}, "
        f"{swarm.connected:,} connected to this one; "
        f"{swarm.silent:,} silent, {swarm.banned:,} banned. {number(swarm.tokens_per_second)} tokens/s, "
        f"{swarm.groups_offered:,} groups offered, {swarm.groups_used:,} used. Reports of peers are not checked."
    )
    lines: list[Line] = [(Span(part),) for part in wrapped(sums, cells, 3)]
    lines += [(), *table(_MODELS, [_model(model) for model in swarm.models], cells)]
    lines += _more(swarm.models_left_out, "models")
    lines += [(), *table(_TASKS, [_task(task) for task in swarm.tasks], cells)]
    lines += _more(swarm.tasks_left_out, "tasks")
    for title, counts in (("phases", swarm.phases), ("versions", swarm.software)):
        parts = wrapped(_counts(counts), cells - 10, 3)
        lines.append(())
        lines += [(Span(f"{title if row == 0 else '':10}", "faint"), Span(part)) for row, part in enumerate(parts)]
    return lines


def _model(model: ModelView) -> tuple[Span, ...]:
    return (
        Span(f"ours: {model.model}" if model.ours else model.model, "good" if model.ours else ""),
        Span(model.family[:8]),
        Span(number(model.nodes)),
        Span(number(model.tokens_per_second)),
        Span(number(model.round_most)),
        Span(percent(model.success)),
        Span("" if model.success is None else share_bar(model.success, BAR_CELLS), "good"),
    )


def _task(task: TaskView) -> tuple[Span, ...]:
    return (
        Span(task.task),
        Span(number(task.nodes)),
        Span(percent(task.success)),
        Span(f"{percent(task.success_least)} – {percent(task.success_most)}"),
        Span(f"{task.best_name}, {task.best_model}"),
    )


def _more(left_out: int, noun: str) -> list[Line]:
    return [(Span(f"and {left_out:,} more {noun}", "faint"),)] if left_out else []


def _counts(by: Mapping[str, int]) -> str:
    return ", ".join(f"{name or 'unknown'} {count:,}" for name, count in by.items()) or "–"
