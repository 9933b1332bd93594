"""The whole demonstration of a family: nodes of one model learn together, averaging weights, then alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from node.demo.agreement import mean_distance
from node.demo.family import FamilyReport, NodeResult, make_family_report, moments_of
from node.demo.run import (
    DemoSettings,
    Display,
    homes_of,
    learn_both_ways,
    run_in_temporary_directory,
    this_machine,
)
from node.version import VERSION

EVERY_ROUNDS = 5  # between two outer steps: there are few rounds in a few minutes


def demonstrate_family(settings: DemoSettings, display: Display) -> FamilyReport:
    """Runs the demonstration. ``settings.models`` names one model, once for each node. Raises ``DemoError`` where a
    node fails."""
    flags = ("--set", f"averaging.every_rounds={EVERY_ROUNDS}", *settings.flags)
    return run_in_temporary_directory(lambda root: _demonstrate(replace(settings, flags=flags), display, root))


async def _demonstrate(settings: DemoSettings, display: Display, root: Path) -> FamilyReport:
    ran = await learn_both_ways(settings, display, root)

    async def distance(stage: str) -> float:
        return await asyncio.to_thread(mean_distance, homes_of(root, stage, len(settings.models)))

    nodes = tuple(
        NodeResult(
            label=label,
            alone=ran.after_alone[index],
            together=ran.after_together[index],
            effort_alone=ran.alone[index].effort(),
            effort_together=ran.together[index].effort(),
            outer_steps=len(ran.together[index].averagings),
            weight_bytes=sum(event.received_bytes for event in ran.together[index].averagings),
        )
        for index, label in enumerate(settings.labels())
    )
    return make_family_report(
        ran.before[0],
        nodes,
        moments_of(ran.together),
        model=settings.models[0],
        distances=(await distance("alone"), await distance("together")),
        minutes=settings.minutes,
        seed=settings.seed,
        machine=this_machine(),
        version=VERSION,
    )
