"""The tables and the conclusions at the end of the demonstration of a family."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from rich.table import Table
from rich.text import Text

from node.demo.family import FamilyReport, NodeResult, mean_reward
from node.demo.plan import lost_tasks
from node.demo.show import console_of_tables, lost_words, table_of
from node.evaluation.evaluation_result import Evaluation
from node.quantities import size


def show_family(report: FamilyReport) -> None:
    console = console_of_tables()
    for table in (tasks_table(report), moments_table(report), nodes_table(report)):
        console.print(table)
    console.print(Text("\n".join(family_conclusions(report))), soft_wrap=True)


def tasks_table(report: FamilyReport) -> Table:
    """Returns a row for every task: before, and the mean over nodes after learning alone and together."""
    title = f"{report.model}: mean reward, sampled at temperature 1, over the nodes"
    table = table_of(title, "task", "before", "alone", "together")

    def over_nodes(task: str, after: Callable[[NodeResult], Evaluation]) -> str:
        return f"{fmean(after(node).sampled[task] for node in report.nodes):.3f}"

    for task, before in report.before.sampled.items():
        cells = over_nodes(task, lambda node: node.alone), over_nodes(task, lambda node: node.together)
        table.add_row(task, f"{before:.3f}", *cells)
    table.add_section()
    means = report.mean_before, report.mean_alone, report.mean_together
    table.add_row("mean", *(f"{mean:.3f}" for mean in means), style="bold")
    return table


def moments_table(report: FamilyReport) -> Table:
    """Returns reward and distance of the weights over time, while the nodes learn together."""
    table = table_of("While learning together", "seconds", "reward", "outer steps", "replicas apart")
    for moment in report.moments:
        reward = "-" if moment.reward is None else f"{moment.reward:.3f}"
        apart = "-" if moment.distance is None else f"{moment.distance:.2%}"
        span = f"{moment.from_seconds:.0f} to {moment.until_seconds:.0f}"
        table.add_row(span, reward, str(moment.outer_steps), apart)
    return table


def nodes_table(report: FamilyReport) -> Table:
    """Returns a row for each node."""
    counts = ("tokens generated", "foreign groups", "outer steps", "weights received")
    table = table_of("The nodes", "node", "alone", "together", *counts)
    for node in report.nodes:
        effort = node.effort_together
        table.add_row(
            node.label,
            f"{mean_reward(node.alone):.3f}",
            f"{mean_reward(node.together):.3f}",
            f"{effort.tokens_generated:,}",
            f"{effort.foreign_groups_used:,}",
            f"{node.outer_steps:,}",
            size(node.weight_bytes),
        )
    return table


def family_conclusions(report: FamilyReport) -> list[str]:
    """Returns one line on the reward and one on the distance of the weights."""
    verdict = "better together" if report.better_together else "NOT better together"
    together, alone = (
        lost_tasks(report.before, {task: fmean(each.sampled[task] for each in of) for task in report.before.sampled})
        for of in ([node.together for node in report.nodes], [node.alone for node in report.nodes])
    )
    return [
        f"{report.model}, {len(report.nodes)} nodes: {verdict}: {report.mean_together:.3f} against "
        f"{report.mean_alone:.3f} alone, with equally many tokens; {report.mean_before:.3f} before."
        + lost_words(together, alone),
        f"At the end the replicas are {report.distance_together:.2%} of their weights' norm apart; after learning "
        f"alone, {report.distance_alone:.2%}.",
    ]
