"""The whole demonstration of a family: nodes of one model learn together, averaging weights, then alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from node.demo.agreement import mean_distance
from node.demo.family import FamilyReport, NodeResult, make_family_report, moments_of
from node.demo.forecast import DemoPart
from node.demo.measuring import measure_policies
from node.demo.run import (
    DemoSettings,
    Display,
    ShownParts,
    environment_of_members,
    learn_alone,
    learn_together,
    run_in_temporary_directory,
    this_machine,
)
from node.evaluation.evaluation_result import Evaluation
from node.version import VERSION

EVERY_ROUNDS = 5  # between two outer steps: there are few rounds in a few minutes


def demonstrate_family(settings: DemoSettings, display: Display) -> FamilyReport:
    """Runs the demonstration. ``settings.models`` names one model, once for each node. Raises ``DemoError`` where a
    node fails."""
    flags = ("--set", f"averaging.every_rounds={EVERY_ROUNDS}", *settings.flags)
    return run_in_temporary_directory(lambda root: _demonstrate(replace(settings, flags=flags), display, root))


async def _demonstrate(settings: DemoSettings, display: Display, root: Path) -> FamilyReport:
    count, model = len(settings.models), settings.models[0]
    environment = environment_of_members(os.environ, count, os.cpu_count() or 1)

    shown = await ShownParts.planned(settings, display, first=1)

    def measured(homes: Sequence[Path]) -> Coroutine[Any, Any, list[Evaluation]]:
        return measure_policies([(home, model) for home in homes], settings.prompts, environment, shown.on_measuring)

    def homes(stage: str) -> list[Path]:
        return [root / stage / str(index) for index in range(count)]

    async def distance(stage: str) -> float:
        return await asyncio.to_thread(mean_distance, homes(stage))

    (before,) = await shown.part(DemoPart.BEFORE, measured([root / "before"]))
    together = await shown.part(DemoPart.TOGETHER, learn_together(settings, display, root / "together", environment))
    after_together = await shown.part(DemoPart.MEASURED_TOGETHER, measured(homes("together")))
    budgets = [tally.effort().tokens_generated for tally in together]
    alone = await shown.part(DemoPart.ALONE, learn_alone(settings, display, root / "alone", environment, budgets))
    after_alone = await shown.part(DemoPart.MEASURED_ALONE, measured(homes("alone")))
    nodes = tuple(
        NodeResult(
            label=label,
            alone=after_alone[index],
            together=after_together[index],
            effort_alone=alone[index].effort(),
            effort_together=together[index].effort(),
            outer_steps=len(together[index].averagings),
            weight_bytes=sum(event.received_bytes for event in together[index].averagings),
        )
        for index, label in enumerate(settings.labels())
    )
    return make_family_report(
        before,
        nodes,
        moments_of(together),
        model=model,
        distances=(await distance("alone"), await distance("together")),
        minutes=settings.minutes,
        seed=settings.seed,
        machine=this_machine(),
        version=VERSION,
    )
