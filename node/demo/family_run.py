"""The demonstration of a family from top to bottom: like nodes learn together, averaging weights, then alone."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

from node.demo.agreement import mean_distance
from node.demo.family import FamilyReport, NodeResult, make_family_report, moments_of
from node.demo.member import evaluate
from node.demo.run import (
    DemoSettings,
    Show,
    contained,
    environment_of_members,
    learn_alone,
    learn_together,
    this_machine,
)
from node.evaluation.evaluation_result import Evaluation
from node.version import VERSION

EVERY_ROUNDS = 5  # between two outer steps: a few minutes hold few rounds


def demonstrate_family(settings: DemoSettings, show: Show) -> FamilyReport:
    """Runs it all; ``settings.models`` names one model, once for each node. Raises ``DemoError`` where a node fails."""
    flags = ("--set", f"averaging.every_rounds={EVERY_ROUNDS}", *settings.flags)
    return contained(lambda root: _demonstrate(replace(settings, flags=flags), show, root))


async def _demonstrate(settings: DemoSettings, show: Show, root: Path) -> FamilyReport:
    count, model = len(settings.models), settings.models[0]
    environment = environment_of_members(os.environ, count, os.cpu_count() or 1)

    async def measure(stage: str) -> list[Evaluation]:
        homes = [root / stage / str(index) for index in range(count)]
        return await asyncio.gather(*(evaluate(home, model, settings.prompts, environment) for home in homes))

    async def distance(stage: str) -> float:
        homes = [root / stage / str(index) for index in range(count)]
        return await asyncio.to_thread(mean_distance, homes)

    show.stage(f"Measuring what {model} can do before.")
    before = await evaluate(root / "before", model, settings.prompts, environment)
    show.stage(f"Learning together for {settings.minutes:g} minutes, averaging weights.")
    together = await learn_together(settings, show, root / "together", environment)
    show.stage("Measuring what they can do after learning together.")
    after_together = await measure("together")
    show.stage("Learning alone, each on as many generated tokens as it had together.")
    budgets = [tally.effort().tokens_generated for tally in together]
    alone = await learn_alone(settings, show, root / "alone", environment, budgets)
    show.stage("Measuring what they can do after learning alone.")
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
