"""What ``starling fit --with`` finds: for programs as facts, for people as a table."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from node.fit.settings import described
from node.fit.stages.plan import HeldLayers, Pace, StagePlan
from node.printable import printable
from node.quantities import counted, duration, layer_span, size


class StageFit(Struct, frozen=True, kw_only=True):
    """What ``starling fit --with … --json`` prints."""

    model: str
    fits: bool
    layers: int
    pace: Pace  # of this machine, as measured now; the others are taken to be as fast
    plan: StagePlan | None
    refusal: str | None  # why no plan fits, and what is missing


def stage_fit_lines(fit: StageFit) -> Iterator[str]:
    """Yields the lines for people."""
    yield f"{printable(fit.model)}: {fit.layers} layers"
    if fit.plan is None:
        yield printable(fit.refusal or "", 1000)
        return
    yield from stage_plan_lines(fit.plan, fit.layers)
    rate = f"{fit.pace.flops / 1e12:.2f} TFLOP/s, {fit.pace.bytes_a_second / 1e9:.1f} GB/s"
    yield f"expected of machines that are all as fast as this one ({rate}, measured now), at 1 Gbit/s"


def stage_plan_lines(plan: StagePlan, layers: int) -> Iterator[str]:
    """Yields which layers each machine holds, a line each, and what a round takes."""
    at_once = f"up to {plan.order.begun} passes at once, rows in {counted(plan.batches, 'part')}"
    yield f"{described(plan.settings)}; {at_once}"
    for each in plan.held:
        yield f"{printable(each.name, 64):24}{held_text(each, layers):40}waits {100 * each.idle:.0f} % of a step"
    yield (
        f"a round of the longest answers: {duration(plan.generating_seconds)} to generate, "
        f"{duration(plan.training_seconds)} to learn; {size(plan.sent_bytes)} from this machine, and as much back"
    )


def held_text(held: HeldLayers, layers: int) -> str:
    """Returns the layers in words, counted from 1, and what they take."""
    taken = f"{size(held.expected_bytes)} of {size(held.usable_bytes)}"
    return f"{layer_span(held.first, held.last)} of {layers}, {taken}"
