"""The whole demonstration of a family: nodes of one model learn together, averaging weights, then alone."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

from node.demo.agreement import mean_distance
from node.demo.family import FamilyReport, NodeResult, make_family_report, moments_of
from node.demo.member import measure_policy
from node.demo.run import (
    DemoSettings,
    Display,
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

    async def measure(stage: str) -> list[Evaluation]:
        homes = [root / stage / str(index) for index in range(count)]
        return await asyncio.gather(*(measure_policy(home, model, settings.prompts, environment) for home in homes))

    async def distance(stage: str) -> float:
        homes = [root / stage / str(index) for index in range(count)]
        return await asyncio.to_thread(mean_distance, homes)

    display.show_stage(f"Measuring {model} before training.")
    began = time.monotonic()
    before = await measure_policy(root / "before", model, settings.prompts, environment)
    left = settings.left(count * (time.monotonic() - began))  # later, every node is measured
    display.show_stage(f"Learning together for {settings.amount()}, averaging weights.{left}")
    together = await learn_together(settings, display, root / "together", environment)
    display.show_stage("Measuring the nodes after learning together.")
    after_together = await measure("together")
    display.show_stage("Learning alone, each node with as many generated tokens as it had together.")
    budgets = [tally.effort().tokens_generated for tally in together]
    alone = await learn_alone(settings, display, root / "alone", environment, budgets)
    display.show_stage("Measuring the nodes after learning alone.")
    after_alone = await measure("alone")
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
