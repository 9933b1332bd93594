"""What ``starling fit`` finds, as facts for programs and as a table for people."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from node.configuration import Config
from node.fit.alternatives import Alternative, alternatives
from node.fit.candidates import Trained
from node.fit.footprint import Phase, Place
from node.fit.machine import Machine
from node.fit.model_sizes import ModelSizes
from node.fit.plan import FittedSizes, Plan, make_plan
from node.fit.settings import DeviceKind, MemorySettings, described
from node.fit.workload import Workload
from node.printable import printable
from node.quantities import counted, size
from protocol.errors import ConfigurationError


class PhaseBytes(Struct, frozen=True, kw_only=True):
    name: str
    host_bytes: int
    device_bytes: int
    parts: dict[str, int]  # of host and device together


class FitReport(Struct, frozen=True, kw_only=True):
    """What ``starling fit --json`` prints."""

    model: str
    fits: bool
    parameters: int
    device: DeviceKind
    host_limit_bytes: int
    device_limit_bytes: int | None
    prompt_tokens: int
    answer_tokens: int
    refusal: str | None  # why nothing fits, and the remedy
    settings: MemorySettings | None  # None where nothing fits
    because: str | None
    peak: str | None  # the phase that takes most
    phases: tuple[PhaseBytes, ...] = ()
    checkpoint_bytes: int | None = None  # on disk, each
    checkpoints_kept: int
    choice: str | None  # the plan in one line
    alternatives: tuple[Alternative, ...] = ()


def fit_report(
    config: Config,
    sizes: ModelSizes,
    machine: Machine,
    workload: Workload,
    *,
    kept: Trained | None = None,
    fitted: FittedSizes | None = None,
) -> FitReport:
    """Returns the plan as a report; a model that does not fit is a report too."""
    plan, refusal = None, None
    try:
        plan = make_plan(config, sizes, machine, workload, kept=kept, fitted=fitted)
    except ConfigurationError as error:
        refusal = str(error)
    footprint = plan.footprint if plan is not None else None
    return FitReport(
        model=config.policy.model,
        fits=plan is not None,
        parameters=sizes.parameters,
        device=machine.device,
        host_limit_bytes=machine.host_bytes,
        device_limit_bytes=machine.usable_device_bytes,
        prompt_tokens=workload.prompt_tokens,
        answer_tokens=workload.answer_tokens,
        refusal=refusal,
        settings=plan.settings if plan is not None else None,
        because=plan.because if plan is not None else None,
        peak=footprint.peak("device" if machine.device == "cuda" else "host").name if footprint is not None else None,
        phases=tuple(map(phase_bytes, footprint.phases)) if footprint is not None else (),
        checkpoint_bytes=footprint.checkpoint_bytes if footprint is not None else None,
        checkpoints_kept=workload.checkpoints_kept,
        choice=choice_line(plan) if plan is not None else None,
        alternatives=tuple(alternatives(config, sizes, machine, workload)),
    )


def phase_bytes(phase: Phase) -> PhaseBytes:
    parts: dict[str, int] = {}
    for part in phase.parts:
        parts[part.name] = parts.get(part.name, 0) + part.bytes
    return PhaseBytes(name=phase.name, host_bytes=phase.bytes("host"), device_bytes=phase.bytes("device"), parts=parts)


def choice_line(plan: Plan) -> str:
    """Returns the plan in one line."""
    where: Place = "host" if plan.device_limit_bytes is None else "device"
    peak, limit = plan.footprint.peak(where), plan.device_limit_bytes or plan.host_limit_bytes
    alone = "" if plan.settings.averages else "; without averaging of weights"
    return (
        f"{described(plan.settings)}: up to {size(peak.bytes(where))} of {size(limit)}, while {peak.name}{alone} "
        f"({plan.because})"
    )


def report_lines(report: FitReport) -> Iterator[str]:
    """Yields the lines for people."""
    where = {"cpu": "on the CPU", "cuda": "on the GPU", "mps": "on the GPU, in main memory"}[report.device]
    limits = f"{size(report.host_limit_bytes)} of main memory may be used"
    if report.device_limit_bytes is not None:
        limits = f"{size(report.device_limit_bytes)} of the GPU and {limits}"
    yield f"{printable(report.model)}: {report.parameters / 1e6:,.1f} million weights, {where}; {limits}"
    yield f"prompts of up to {report.prompt_tokens} tokens, answers of up to {report.answer_tokens}"
    yield ""
    if report.choice is None or report.settings is None:
        yield printable(report.refusal or "", 1000)
    else:
        yield f"chosen: {report.choice}"
        yield ""
        yield from _part_lines(report)
        kept, each = counted(report.checkpoints_kept, "checkpoint"), size(report.checkpoint_bytes or 0)
        store = size(report.settings.store_bytes)
        yield f"on disk: {kept} of {each} each and one being written; up to {store} in the store"
    yield ""
    yield from _alternative_lines(report)


def _part_lines(report: FitReport) -> Iterator[str]:
    """Yields one line a part and one column a phase; the peak's total is marked."""
    names = list(dict.fromkeys(name for phase in report.phases for name in phase.parts))
    yield f"{'':22}" + "".join(f"{phase.name:>14}" for phase in report.phases)
    for name in names:
        cells = (size(phase.parts[name]) if name in phase.parts else "" for phase in report.phases)
        yield f"{name:22}" + "".join(f"{cell:>14}" for cell in cells)
    totals = [("main memory", [phase.host_bytes for phase in report.phases])]
    if report.device_limit_bytes is not None:
        totals.append(("GPU", [phase.device_bytes for phase in report.phases]))
    for name, amounts in totals:
        cells = (size(amount) + ("*" if amount == max(amounts) else " ") for amount in amounts)
        yield f"{name:22}" + "".join(f"{cell:>14}" for cell in cells)
    yield "* the peak"


def _alternative_lines(report: FitReport) -> Iterator[str]:
    yield "at the least:"
    for each in report.alternatives:
        of_device = "" if each.device_bytes is None else f"{size(each.device_bytes):>10} of the GPU,"
        yield f"  {each.name:34}{of_device}{size(each.host_bytes):>10} of main memory  {'fits' if each.fits else 'no'}"
