"""Shows the demonstration: its progress, and the tables at its end. Plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from node.api.gains_words import lost_sentence
from node.demo.forecast import Measuring, about
from node.demo.member import DemoNode
from node.demo.plan import DemoReport, LostTasks, ModelResult, lost_tasks
from node.quantities import size, times

TABLE_CHARACTERS = 120  # width of the tables where there is no terminal
NEW_LINE, INDENTED_LINE = "\n", "\n        "
LINES_SECONDS = 15.0  # between two reports on the nodes where there is no terminal


class DemoDisplay:
    """A ``node.demo.run.Display``; a context manager, so that it always restores the terminal."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, transient=True, refresh_per_second=2)
        self._began = time.monotonic()
        self._shown_at: float | None = None

    def __enter__(self) -> DemoDisplay:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show_stage(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        self._console.print(Text(f"{minutes:3}:{seconds:02}  {text.replace(NEW_LINE, INDENTED_LINE)}"))
        self._live.update(Text("  …"))
        self._shown_at = None

    def show_measuring(self, models: Sequence[Measuring]) -> None:
        self._show([f"        {measuring_line(model)}" for model in models])

    def show_members(self, members: Sequence[DemoNode], stage: str) -> None:
        self._show([f"        {member_line(member, stage)}" for member in members])

    def _show(self, texts: Sequence[str]) -> None:
        lines = [Text(text) for text in texts]
        if self._console.is_terminal:
            self._live.update(Group(*lines))
        elif self._shown_at is None or time.monotonic() - self._shown_at >= LINES_SECONDS:
            self._shown_at = time.monotonic()
            self._console.print(*lines, sep="\n", soft_wrap=True)


def measuring_line(measuring: Measuring) -> str:
    """Describes in one line how far one model's measurement is."""
    share = measuring.answers / measuring.answers_in_all
    whole = measuring.whole_seconds
    left = f", {about(whole - measuring.seconds)} left" if whole is not None and share < 1 else ""
    return f"{measuring.model:<16} measured {measuring.answers:,} of {measuring.answers_in_all:,} answers{left}"


def member_line(member: DemoNode, stage: str) -> str:
    """Describes in one line what one node does."""
    last, label = member.tally.last, member.plan.label
    if last is None:
        return f"{label:<16} {'first round under way' if member.tally.ready else 'loading'}"
    foreign = f", {last.foreign_groups_used_total} foreign groups used" if stage == "together" else ""
    return (
        f"{label:<16} round {last.round}, reward {last.reward:.2f}, {last.tokens_per_second:,.0f} tokens/s, "
        f"{last.tokens_generated_total:,} tokens{foreign}{_averaged(member)}"
    )


def _averaged(member: DemoNode) -> str:
    averagings = member.tally.averagings
    if not averagings:
        return ""
    distance = averagings[-1].distance
    apart = "" if distance is None else f", last {distance:.2%} apart"
    return f", averaged {times(len(averagings))}{apart}"


def show_report(report: DemoReport) -> None:
    """Prints the tables and the conclusions."""
    console = console_of_tables()
    for result in report.models:
        console.print(reward_table(result))
    console.print(effort_table(report))
    console.print(Text("\n".join(conclusions(report))), soft_wrap=True)


def console_of_tables() -> Console:
    """Returns a console as wide as the terminal, or else wide enough for every table."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=TABLE_CHARACTERS)


def table_of(title: str, *columns: str, texts: int = 1) -> Table:
    """Returns a table whose first ``texts`` columns are not figures."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < texts else "right")
    return table


def reward_table(result: ModelResult) -> Table:
    """Returns a row for every task of one model: before, alone and together. Tasks that it was weak on are marked."""
    title = f"{result.model}: mean reward, sampled at temperature 1"
    table = table_of(title, "task", "before", "alone", "together")
    weak = set(result.weak_tasks())
    for task, before in result.before.sampled.items():
        figures = (before, result.alone.sampled[task], result.together.sampled[task])
        style = "bold" if task in weak else "dim"
        table.add_row(f"{task}{' *' if task in weak else ''}", *(f"{figure:.3f}" for figure in figures), style=style)
    means = [result.weak_mean(evaluation) for evaluation in (result.before, result.alone, result.together)]
    table.add_section()
    table.add_row(
        "mean over * (weak before)", *("-" if mean is None else f"{mean:.3f}" for mean in means), style="bold"
    )
    return table


def effort_table(report: DemoReport) -> Table:
    """Returns the effort of each model, alone and together."""
    counts = ("rounds", "tokens generated", "own groups", "foreign used", "offered")
    table = table_of("Effort", "model", "run", *counts, "sent", "received", texts=2)
    for result in report.models:
        for run, effort in (("alone", result.effort_alone), ("together", result.effort_together)):
            *counted, sent, received = msgspec.structs.astuple(effort)
            table.add_row(result.model, run, *(f"{each:,}" for each in counted), size(sent), size(received))
    return table


def conclusions(report: DemoReport) -> list[str]:
    """Returns one line a model."""
    lines = []
    losses = {result.model: _losses(result) for result in report.models}
    for model, better in report.better_together.items():
        means = report.weak_means[model]
        lost = losses.get(model, "")
        if better is None or means["together"] is None or means["alone"] is None:
            lines.append(f"{model} was weak on no task.{lost}")
            continue
        verdict = "better together" if better else "NOT better together"
        lines.append(
            f"{model}: {verdict}: {means['together']:.3f} against {means['alone']:.3f} alone, on the tasks that it was "
            f"weak on.{lost}"
        )
    return lines


def _losses(result: ModelResult) -> str:
    """Returns what a model lost while it learnt, as plainly as what it gained; empty where that is nothing."""
    together, alone = (lost_tasks(result.before, each.sampled) for each in (result.together, result.alone))
    return lost_words(together, alone)


def lost_words(together: LostTasks, alone: LostTasks) -> str:
    """Returns what was lost in either run, to be put behind a verdict; empty where that is nothing."""
    runs = (("Together", lost_sentence(together)), ("Alone", lost_sentence(alone)))
    return "".join(f" {run}: {said}" for run, said in runs if said)
