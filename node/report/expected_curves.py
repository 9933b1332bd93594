"""A run over the band of seeded runs: pure functions of its facts and of a curve that ships with the package.

The curves are mean rewards over windows of rounds, one row a seed (``python -m scripts.expected``). The band of a
window is where the next seed falls about 19 times in 20:

    m ± 2 s √(1 + 1/n)      m: mean over the n seeds; s²: their variance, averaged with that of ``NEIGHBOURS`` windows
                            on either side, since that of a few seeds in one window is mostly chance; cut at 0 and 1
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from importlib import resources
from typing import Final

import msgspec
from msgspec import Struct

from node.printable import printable
from node.quantities import counted
from node.report.facts import RunFacts
from protocol.errors import ConfigurationError

NEIGHBOURS: Final = 3
DEVIATIONS: Final = 2.0
MAX_ROWS: Final = 10  # windows that are printed
PREFIX: Final = "expected:"
FOLDER: Final = resources.files("node.report") / "expected"


class ExpectedCurve(Struct, frozen=True, forbid_unknown_fields=True):
    """Seeded runs of one kind. A row has one value a window; the first window is rounds 1 to ``window_rounds``."""

    expected: str  # what it is called, behind ``PREFIX``
    command: str
    commit: str
    date: str
    window_rounds: int
    runs: tuple[tuple[float, ...], ...]  # by seed: mean reward of each window
    tasks: dict[str, tuple[tuple[float, ...], ...]]


class Band(Struct, frozen=True):
    low: float
    mean: float
    high: float


class ComparedWindow(Struct, frozen=True):
    """One window of rounds that both have."""

    first_round: int
    last_round: int
    reward: float
    expected: Band

    @property
    def side(self) -> int:
        """-1 below the band, 1 above it, 0 within."""
        return (self.reward > self.expected.high) - (self.reward < self.expected.low)


class AgainstExpected(Struct, frozen=True):
    """What ``starling report --against expected:NAME`` found."""

    expected: str
    seeds: int
    windows: tuple[ComparedWindow, ...]
    tasks: dict[str, ComparedWindow]  # the last window, by task that both have
    sentence: str


def expected_names() -> list[str]:
    return sorted(file.name.removesuffix(".json") for file in FOLDER.iterdir() if file.name.endswith(".json"))


def expected_curve(name: str) -> ExpectedCurve:
    """Returns a curve that ships with the package. Raises ``ConfigurationError`` for another name."""
    if name not in expected_names():
        known = ", ".join(PREFIX + each for each in expected_names())
        raise ConfigurationError(f"there is no curve {PREFIX}{printable(name, 64)}: there are {known}")
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=ExpectedCurve)


def bands(runs: Sequence[Sequence[float]]) -> list[Band]:
    """Returns the band of each window that all runs have; of a single run it has no width."""
    windows = list(zip(*runs, strict=False))
    variances = [statistics.variance(window) if len(window) > 1 else 0.0 for window in windows]
    found = []
    for index, window in enumerate(windows):
        near = variances[max(0, index - NEIGHBOURS) : index + NEIGHBOURS + 1]
        half = DEVIATIONS * math.sqrt(statistics.fmean(near) * (1 + 1 / len(window)))
        mean = statistics.fmean(window)
        found.append(Band(max(0.0, mean - half), mean, min(1.0, mean + half)))
    return found


def against(facts: RunFacts, curve: ExpectedCurve) -> AgainstExpected:
    """Returns a run beside the band of ``curve``, over the windows of rounds that both have in full."""
    windows = _compared(facts, None, curve.runs, curve.window_rounds)
    tasks = {
        printable(task, 64): compared[-1]
        for task, runs in sorted(curve.tasks.items())
        if (compared := _compared(facts, task, runs, curve.window_rounds))
    }
    sentence = _sentence(windows, facts, curve)
    return AgainstExpected(curve.expected, len(curve.runs), windows, tasks, sentence)


def against_lines(found: AgainstExpected) -> list[str]:
    """Returns what ``starling report --against expected:NAME`` prints."""
    every = max(1, -(-len(found.windows) // MAX_ROWS))
    table = [("rounds", "this run", f"{PREFIX}{found.expected}")]
    table += [(f"{each.first_round} to {each.last_round}", *_cells(each)) for each in found.windows[every - 1 :: every]]
    table += [(f"{task}, {each.first_round} to {each.last_round}", *_cells(each)) for task, each in found.tasks.items()]
    widths = [max(len(row[column]) for row in table) for column in range(2)]
    lines = [f"{first:<{widths[0]}}  {second:<{widths[1]}}  {third}" for first, second, third in table]
    return [*lines, found.sentence]


def _cells(window: ComparedWindow) -> tuple[str, str]:
    said = {-1: ", below it", 0: "", 1: ", above it"}[window.side]
    return f"{window.reward:.3f}", f"{window.expected.low:.3f} to {window.expected.high:.3f}{said}"


def _compared(
    facts: RunFacts, task: str | None, runs: Sequence[Sequence[float]], window_rounds: int
) -> tuple[ComparedWindow, ...]:
    rewards = window_means(facts, task, window_rounds)
    return tuple(
        ComparedWindow(index * window_rounds + 1, (index + 1) * window_rounds, reward, band)
        for index, (reward, band) in enumerate(zip(rewards, bands(runs), strict=False))
        if reward is not None
    )


def window_means(facts: RunFacts, task: str | None, window_rounds: int) -> list[float | None]:
    """Returns the mean reward of each whole window of rounds, of one task or of all; None where none is recorded."""
    steps, rewards = facts.series("round"), facts.series("reward", task)
    if steps is None or rewards is None:
        return []
    known = [
        (int(step), reward)
        for step, reward in zip(steps.values, rewards.values, strict=True)
        if step is not None and reward is not None
    ]
    inside: list[list[float]] = [[] for _ in range(facts.rounds // window_rounds)]
    for step, reward in known:
        window = (step - 1) // window_rounds
        if window < len(inside):
            inside[window].append(reward)
    return [statistics.fmean(each) if each else None for each in inside]


def _sentence(windows: Sequence[ComparedWindow], facts: RunFacts, curve: ExpectedCurve) -> str:
    rounds = curve.window_rounds
    if not windows:
        return f"Nothing to compare yet: the curve has one value every {rounds} rounds, this run has {facts.rounds}."
    outside = [each for each in windows if each.side]
    last = windows[-1]
    where = {-1: "below", 0: "within", 1: "above"}[last.side]
    said = (
        f"After {counted(last.last_round, 'round')} this run is {where} the band of {counted(len(curve.runs), 'seed')}"
        f": {last.reward:.3f}, expected {last.expected.low:.3f} to {last.expected.high:.3f}; "
    )
    said += (
        f"{len(outside)} of {counted(len(windows), 'window')} of {rounds} rounds outside"
        if outside
        else "no window outside"
    )
    trained = {task.task for task in facts.gains.tasks}
    if trained and trained != set(curve.tasks):
        said += ". It trained other tasks than the curve's runs, so that the two need not agree"
    return f"{said}."
