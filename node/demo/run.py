"""The whole demonstration: measure, learn together, measure, learn alone with equal budgets of tokens, measure.

It uses only the loopback interface and one temporary directory. No process and no file outlives the call, however it
ends.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from node.demo.forecast import DemoForecast, DemoPart, Measuring, about, measured_core_shares, others_beside, plan_lines
from node.demo.measuring import measure_policies
from node.demo.member import DemoError, DemoNode, MemberPlan, Tally
from node.demo.plan import DemoReport, ModelResult, make_report
from node.evaluation.evaluation_result import Evaluation
from node.quantities import counted
from node.version import VERSION

LISTEN = "/ip4/127.0.0.1/tcp/0"
PREPARE_SECONDS = 180.0  # for a node to import, load and connect
END_SECONDS = 180.0  # for a node to finish its step and checkpoint
MAX_ALONE_FACTOR = 6.0  # learning alone may take this many times as long as learning together
DISPLAY_SECONDS = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DemoSettings:
    models: tuple[str, ...]
    minutes: float | None  # that the nodes learn together; None: until each has generated ``tokens``
    prompts: int  # a task, for each measurement
    seed: int
    flags: tuple[str, ...] = ()  # more flags of ``starling up`` for every node
    tokens: int | None = None  # that each node generates while all are connected

    def amount(self) -> str:
        """Returns how much the nodes learn together, in words."""
        if self.minutes is None:
            return f"{self.tokens:,} tokens each"
        return f"{self.minutes:g} minute{'' if self.minutes == 1 else 's'}"

    @property
    def learning_seconds(self) -> float | None:
        return None if self.minutes is None else self.minutes * 60.0

    def labels(self) -> tuple[str, ...]:
        """Returns a name for each node: its model, numbered where all nodes have the same one."""
        if len(set(self.models)) == len(self.models):
            return self.models
        return tuple(f"{model} {number}" for number, model in enumerate(self.models, 1))


class Display(Protocol):
    """Shows the progress of the demonstration."""

    def show_stage(self, text: str) -> None: ...

    def show_measuring(self, models: Sequence[Measuring]) -> None:
        """Called whenever a model came further in its measurement."""

    def show_members(self, members: Sequence[DemoNode], stage: str) -> None:
        """Called about once a second while nodes learn. ``stage``: "together" or "alone"."""


def demonstrate(settings: DemoSettings, display: Display) -> DemoReport:
    """Runs the demonstration of different models. Raises ``DemoError`` where a node fails."""
    ran = run_in_temporary_directory(lambda root: learn_both_ways(settings, display, root))
    efforts = ([tally.effort() for tally in tallies] for tallies in (ran.alone, ran.together))
    columns = (settings.models, ran.before, ran.after_alone, ran.after_together, *efforts)
    results = tuple(ModelResult(*row) for row in zip(*columns, strict=True))
    return make_report(results, minutes=settings.minutes, seed=settings.seed, machine=this_machine(), version=VERSION)


def run_in_temporary_directory(demonstration: Callable[[Path], Coroutine[Any, Any, T]]) -> T:
    """Runs ``demonstration`` with a temporary directory, which it removes afterwards. SIGTERM and SIGHUP act as
    Ctrl-C; the latter not where it is ignored already, as under nohup."""
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue
            before = signal.signal(number, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
            stack.callback(signal.signal, number, before)
        root = Path(tempfile.mkdtemp(prefix="starling-demo-"))
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        return asyncio.run(demonstration(root))


def this_machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


@dataclass(frozen=True, slots=True)
class BothWays:
    """What was measured and done; each list but ``before`` has an entry for each node."""

    before: list[Evaluation]  # of each model
    together: list[Tally]
    after_together: list[Evaluation]
    alone: list[Tally]
    after_alone: list[Evaluation]


async def learn_both_ways(settings: DemoSettings, display: Display, root: Path) -> BothWays:
    """Measures the models, lets the nodes learn together, and alone with as many tokens each, and measures both. Data
    directories are ``homes_of`` "together" and "alone"."""
    environment = environment_of_members(os.environ, len(settings.models), os.cpu_count() or 1)
    different = tuple(dict.fromkeys(settings.models))
    shown = await ShownParts.planned(settings, display, first=len(different))

    def measured(stage: str, models: Sequence[str]) -> Coroutine[Any, Any, list[Evaluation]]:
        places = list(zip(homes_of(root, stage, len(models)), models, strict=True))
        return measure_policies(places, settings.prompts, environment, shown.on_measuring)

    before = await shown.part(DemoPart.BEFORE, measured("before", different))
    together = await shown.part(DemoPart.TOGETHER, learn_together(settings, display, root / "together", environment))
    after_together = await shown.part(DemoPart.MEASURED_TOGETHER, measured("together", settings.models))
    budgets = [tally.effort().tokens_generated for tally in together]
    alone = await shown.part(DemoPart.ALONE, learn_alone(settings, display, root / "alone", environment, budgets))
    after_alone = await shown.part(DemoPart.MEASURED_ALONE, measured("alone", settings.models))
    return BothWays(before, together, after_together, alone, after_alone)


def homes_of(root: Path, stage: str, count: int) -> list[Path]:
    return [root / stage / str(index) for index in range(count)]


class ShownParts:
    """Runs the parts of a demonstration one after another, and says of each what is left."""

    def __init__(self, settings: DemoSettings, display: Display, forecast: DemoForecast, *, first: int) -> None:
        self._settings, self._display, self._first = settings, display, first
        self._forecast = forecast
        self._now: DemoPart | None = None
        self._corrected = False

    @classmethod
    async def planned(cls, settings: DemoSettings, display: Display, *, first: int) -> ShownParts:
        """Measures how busy the machine is, which takes a second, and shows the plan. ``first``: how many models are
        measured before training."""
        nodes, cores = len(settings.models), os.cpu_count() or 1
        shares = await asyncio.to_thread(measured_core_shares, nodes)
        forecast = DemoForecast(
            nodes=nodes,
            cores=cores,
            others=others_beside(shares, cores),
            learning_seconds=settings.learning_seconds,
            prompts=settings.prompts,
            first=first,
        )
        display.show_stage("\n".join(plan_lines(forecast)))
        return cls(settings, display, forecast, first=first)

    async def part(self, part: DemoPart, work: Coroutine[Any, Any, T]) -> T:
        """Awaits ``work``, which is that part."""
        self._now, began = part, time.monotonic()
        self._display.show_stage(f"{self._text(part)}{self._left(part)}")
        result = await work
        self._forecast.on_end(part, time.monotonic() - began)
        return result

    def on_measuring(self, models: Sequence[Measuring]) -> None:
        self._display.show_measuring(models)
        if self._now is DemoPart.BEFORE and len(models) == self._first and self._forecast.on_measuring(models):
            whole = self._forecast.whole_seconds
            if not self._corrected and whole is not None:
                self._display.show_stage(f"By the first answers, it takes {about(whole)} in all.")
            self._corrected = True

    def _text(self, part: DemoPart) -> str:
        text = str(part).capitalize()
        match part:
            case DemoPart.TOGETHER:
                return f"{text} for {self._settings.amount()}."
            case DemoPart.BEFORE:
                return f"{text}, on {counted(self._settings.prompts, 'prompt')} of each task."
            case _:
                return f"{text}."

    def _left(self, part: DemoPart) -> str:
        left = self._forecast.left_seconds(part)
        return "" if left is None or part is DemoPart.BEFORE else f" {about(left).capitalize()} left."


def environment_of_members(environment: Mapping[str, str], members: int, cores: int) -> dict[str, str]:
    """Returns the environment of every node: without the user's own configuration, without LAN discovery, and with an
    equal share of the cores."""
    inherited = {name: text for name, text in environment.items() if not name.upper().startswith("STARLING_")}
    threads = str(max(1, cores // members))
    return {"OMP_NUM_THREADS": threads, **inherited, "STARLING_SWARM__LAN_DISCOVERY": "false"}


async def learn_together(
    settings: DemoSettings, display: Display, root: Path, environment: dict[str, str]
) -> list[Tally]:
    """Runs all nodes at the same time, connected to each other, and returns the figures of each."""
    members = _members(settings, root, environment)

    async def flow(start: Callable[[DemoNode], None]) -> None:
        first, *others = members
        start(first)
        async with asyncio.timeout(PREPARE_SECONDS):  # wait_for of Python 3.11 can lose a Ctrl-C at its end
            address = await first.address()
        for member in others:
            member.plan = replace(member.plan, flags=(*member.plan.flags, "--peer", address))
            start(member)
        async with asyncio.timeout(PREPARE_SECONDS):
            await asyncio.gather(*(member.until_ready() for member in members))
        if settings.minutes is not None:
            await asyncio.sleep(settings.minutes * 60.0)
        elif settings.tokens is not None:
            await asyncio.gather(*(member.until_generated(settings.tokens) for member in members))
        for member in members:
            member.stop()

    limit_seconds = _limit_seconds(settings, PREPARE_SECONDS * 2 + END_SECONDS, 1.0)
    await _run_members(members, flow, display, "together", limit_seconds)
    return [member.tally for member in members]


async def learn_alone(
    settings: DemoSettings, display: Display, root: Path, environment: dict[str, str], budgets: Sequence[int]
) -> list[Tally]:
    """Runs all nodes at the same time, not connected, each until it has generated its budget of tokens; returns the
    figures of each."""
    members = _members(settings, root, environment)
    for member, budget in zip(members, budgets, strict=True):
        member.plan = replace(member.plan, flags=(*member.plan.flags, "--tokens", str(budget)))

    async def flow(start: Callable[[DemoNode], None]) -> None:
        for member in members:
            start(member)

    limit_seconds = _limit_seconds(settings, PREPARE_SECONDS + END_SECONDS, MAX_ALONE_FACTOR)
    await _run_members(members, flow, display, "alone", limit_seconds)
    return [member.tally for member in members]


def _limit_seconds(settings: DemoSettings, fixed_seconds: float, factor: float) -> float | None:
    """Returns ``fixed_seconds`` plus ``factor`` times the minutes; None where tokens are the bound."""
    return None if settings.minutes is None else fixed_seconds + settings.minutes * 60.0 * factor


def _members(settings: DemoSettings, root: Path, environment: dict[str, str]) -> list[DemoNode]:
    labelled = enumerate(zip(settings.models, settings.labels(), strict=True))
    return [
        DemoNode(MemberPlan(model, root / str(index), environment, label, _flags(settings, index)))
        for index, (model, label) in labelled
    ]


async def _run_members(
    members: Sequence[DemoNode],
    flow: Callable[[Callable[[DemoNode], None]], Awaitable[None]],
    display: Display,
    stage: str,
    limit_seconds: float | None,
) -> None:
    """Runs ``flow``, which starts members, until all have ended. A member that fails ends all others."""
    runs: list[asyncio.Task[None]] = []
    try:
        async with asyncio.timeout(limit_seconds), asyncio.TaskGroup() as group:
            showing = group.create_task(_show(members, display, stage))
            await flow(lambda member: runs.append(group.create_task(member.run())))
            await asyncio.gather(*runs)
            showing.cancel()
    except TimeoutError:
        raise DemoError(
            f"learning {stage} did not end within {limit_seconds:.0f} s: is the machine overloaded?"
        ) from None
    except ExceptionGroup as failures:
        raise _first_reason(failures) from None


def _first_reason(failures: ExceptionGroup[Exception]) -> Exception:
    """Returns the failure of a node, where one ended the nodes; otherwise the group, which holds a bug of ours."""
    for failure in failures.exceptions:
        if isinstance(failure, DemoError):
            return failure
        if isinstance(failure, TimeoutError):
            return DemoError(f"a node was not ready within {PREPARE_SECONDS:.0f} s: is the machine overloaded?")
    return failures


async def _show(members: Sequence[DemoNode], display: Display, stage: str) -> None:
    while True:
        display.show_members(members, stage)
        await asyncio.sleep(DISPLAY_SECONDS)


def _flags(settings: DemoSettings, index: int) -> tuple[str, ...]:
    seed = settings.seed * 1000 + index  # nodes with equal seeds would train on the same prompts
    unmeasured = "evaluation.every_rounds=0"  # the demonstration itself measures, before and after
    ours = "learner.trust_peers=true"  # all nodes are, and minutes are too short to get to know them
    return ("--listen", LISTEN, "--set", f"seed={seed}", "--set", unmeasured, "--set", ours, *settings.flags)
