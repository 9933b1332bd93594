"""The demonstration from top to bottom: measure, learn together, measure, learn alone on equal budgets, measure.

Everything happens on the loopback interface and in one temporary directory, and ends with the call, however it ends.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import signal
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from node.demo.member import DemoError, DemoNode, MemberPlan, Tally, evaluate
from node.demo.plan import DemoReport, ModelResult, make_report
from node.evaluation.evaluation_result import Evaluation
from node.version import VERSION

LISTEN = "/ip4/127.0.0.1/tcp/0"
PREPARE_SECONDS = 180.0  # for a node to import, load and connect
END_SECONDS = 180.0  # for a node to finish its step and checkpoint
ALONE_FACTOR = 6.0  # as many times the minutes together may the same tokens take alone, before something is wrong
SHOW_SECONDS = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DemoSettings:
    models: tuple[str, ...]
    minutes: float
    prompts: int  # a task, for each measurement
    seed: int
    flags: tuple[str, ...] = ()  # more flags of ``starling up`` for every node

    def labels(self) -> tuple[str, ...]:
        """What the nodes are called: by their models, numbered where those are alike."""
        if len(set(self.models)) == len(self.models):
            return self.models
        return tuple(f"{model} {number}" for number, model in enumerate(self.models, 1))


class Show(Protocol):
    """Tells whoever waits how far it is."""

    def stage(self, text: str) -> None: ...

    def members(self, members: Sequence[DemoNode], note: str) -> None:
        """About once a second while nodes learn."""


def demonstrate(settings: DemoSettings, show: Show) -> tuple[ModelResult, ...]:
    """Runs it all. Raises ``DemoError`` where a node fails."""
    return contained(lambda root: _demonstrate(settings, show, root))


def contained(story: Callable[[Path], Coroutine[Any, Any, T]]) -> T:
    """Runs ``story`` in a temporary directory of its own, which goes with it; signals end it as a Ctrl-C does."""
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):  # end as a Ctrl-C does, tidily
            before = signal.signal(number, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
            stack.callback(signal.signal, number, before)
        root = Path(tempfile.mkdtemp(prefix="starling-demo-"))
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        return asyncio.run(story(root))


def describe_run(settings: DemoSettings, results: tuple[ModelResult, ...]) -> DemoReport:
    """The report on what was measured here."""
    return make_report(results, minutes=settings.minutes, seed=settings.seed, machine=this_machine(), version=VERSION)


def this_machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


async def _demonstrate(settings: DemoSettings, show: Show, root: Path) -> tuple[ModelResult, ...]:
    environment = environment_of_members(os.environ, len(settings.models), os.cpu_count() or 1)

    async def measure(stage: str) -> list[Evaluation]:
        homes = [root / stage / str(index) for index in range(len(settings.models))]
        places = zip(homes, settings.models, strict=True)
        return await asyncio.gather(*(evaluate(h, m, settings.prompts, environment) for h, m in places))

    show.stage("Measuring what each model can do before.")
    before = await measure("before")
    show.stage(f"Learning together for {settings.minutes:g} minutes.")
    tallies_together = await learn_together(settings, show, root / "together", environment)
    show.stage("Measuring what they can do after learning together.")
    together = await measure("together")
    show.stage("Learning alone, each on as many generated tokens as it had together.")
    efforts_together = [tally.effort() for tally in tallies_together]
    budgets = [effort.tokens_generated for effort in efforts_together]
    tallies_alone = await learn_alone(settings, show, root / "alone", environment, budgets)
    efforts_alone = [tally.effort() for tally in tallies_alone]
    show.stage("Measuring what they can do after learning alone.")
    alone = await measure("alone")
    columns = (settings.models, before, alone, together, efforts_alone, efforts_together)
    return tuple(ModelResult(*row) for row in zip(*columns, strict=True))


def environment_of_members(environment: Mapping[str, str], members: int, cores: int) -> dict[str, str]:
    """The environment of every node: no configuration of the user's own, no multicast, a fair share of the cores."""
    inherited = {name: text for name, text in environment.items() if not name.upper().startswith("STARLING_")}
    threads = str(max(1, cores // members))
    return {"OMP_NUM_THREADS": threads, **inherited, "STARLING_SWARM__LAN_DISCOVERY": "false"}


async def learn_together(settings: DemoSettings, show: Show, root: Path, environment: dict[str, str]) -> list[Tally]:
    """All nodes at once, connected; what each said."""
    members = _members(settings, root, environment)

    async def flow(start: Callable[[DemoNode], None]) -> None:
        first, *others = members
        start(first)
        async with asyncio.timeout(PREPARE_SECONDS):  # wait_for of Python 3.11 can lose a Ctrl-C that comes at its end
            address = await first.address()
        for member in others:
            member.plan = replace(member.plan, flags=(*member.plan.flags, "--peer", address))
            start(member)
        async with asyncio.timeout(PREPARE_SECONDS):
            await asyncio.gather(*(member.until_ready() for member in members))
        await asyncio.sleep(settings.minutes * 60.0)
        for member in members:
            member.stop()

    await _run_members(members, flow, show, "together", PREPARE_SECONDS * 2 + settings.minutes * 60.0 + END_SECONDS)
    return [member.tally for member in members]


async def learn_alone(
    settings: DemoSettings, show: Show, root: Path, environment: dict[str, str], budgets: Sequence[int]
) -> list[Tally]:
    """All nodes at once, of which none knows another, each until it has generated its budget of tokens."""
    members = _members(settings, root, environment)
    for member, budget in zip(members, budgets, strict=True):
        member.plan = replace(member.plan, flags=(*member.plan.flags, "--tokens", str(budget)))

    async def flow(start: Callable[[DemoNode], None]) -> None:
        for member in members:
            start(member)

    limit_seconds = PREPARE_SECONDS + settings.minutes * 60.0 * ALONE_FACTOR + END_SECONDS
    await _run_members(members, flow, show, "alone", limit_seconds)
    return [member.tally for member in members]


def _members(settings: DemoSettings, root: Path, environment: dict[str, str]) -> list[DemoNode]:
    labelled = enumerate(zip(settings.models, settings.labels(), strict=True))
    return [
        DemoNode(MemberPlan(model, root / str(index), environment, label, _flags(settings, index)))
        for index, (model, label) in labelled
    ]


async def _run_members(
    members: Sequence[DemoNode],
    flow: Callable[[Callable[[DemoNode], None]], Awaitable[None]],
    show: Show,
    note: str,
    limit_seconds: float,
) -> None:
    """Runs ``flow``, which starts members, until all have ended. One that fails ends all."""
    lives: list[asyncio.Task[None]] = []
    try:
        async with asyncio.timeout(limit_seconds), asyncio.TaskGroup() as group:
            showing = group.create_task(_show(members, show, note))
            await flow(lambda member: lives.append(group.create_task(member.live())))
            await asyncio.gather(*lives)
            showing.cancel()
    except TimeoutError:
        raise DemoError(
            f"learning {note} did not end within {limit_seconds:.0f} s: is the machine overloaded?"
        ) from None
    except ExceptionGroup as failures:
        raise _first_reason(failures) from None


def _first_reason(failures: ExceptionGroup[Exception]) -> Exception:
    """Why the nodes were ended, where that was a node's failure; a bug of ours stays in its group."""
    for failure in failures.exceptions:
        if isinstance(failure, DemoError):
            return failure
        if isinstance(failure, TimeoutError):
            return DemoError(f"a node was not ready within {PREPARE_SECONDS:.0f} s: is the machine overloaded?")
    return failures


async def _show(members: Sequence[DemoNode], show: Show, note: str) -> None:
    while True:
        show.members(members, note)
        await asyncio.sleep(SHOW_SECONDS)


def _flags(settings: DemoSettings, index: int) -> tuple[str, ...]:
    seed = settings.seed * 1000 + index  # nodes with equal seeds would practise on the same prompts
    return ("--listen", LISTEN, "--set", f"seed={seed}", *settings.flags)
