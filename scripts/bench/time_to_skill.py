"""How long until a model has learnt, against what people would use instead: success over processor seconds.

The same model, tasks, limit of tokens, threads and processor seconds for each contender, in turn:

  starling  a whole node as shipped (``starling up`` with no setting of learning), alone; all of its processes count
  trl       TRL 1.16's GRPOTrainer
  genrl     the GRPO trainer of gensyn-genrl 0.3.0, the reference implementation of SAPO (arXiv 2509.08721)

Contenders get their best: every rate and batch is tried with one seed for ``--tune-seconds``, and the largest area
under the curve is run with the others. Success is the mean reward at temperature 1 over the default swarm's tasks, on
held-out questions (``node.tasks.split``), as ``starling eval`` measures it, of the weights as they were at that time;
measuring costs nobody time. Contenders train on the same questions; ours draws its own, none of them held out.
Processor seconds are those of all processes from their start on, imports included.

Finished runs are kept in ``.experiments/time_to_skill``: the same command goes on where it was interrupted. A model's
results go into docs/against.md, in place of those of as many seconds, with curves as JSON and SVG beside it.

    python -m scripts.bench.time_to_skill --against trl,genrl [--models wren] [--seeds 5] [--seconds 240] [--json]

``--against`` makes a virtual environment for each contender (1.5 GB), the first time. ``--models heron`` first teaches
a model of ten times finch's size, in half an hour.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from scripts import REPOSITORY
from scripts.bench.common.processes import ensure_compute_environment
from scripts.bench.common.reporting import Figure, figures_parser, machine, report
from scripts.bench.skill.comparing import (
    TUNING_PARTS,
    TUNING_SEED,
    add_options,
    command_of,
    kept_or_made,
    parsed_options,
    settings_text,
)
from scripts.bench.skill.curves import Point, area, last_fifth, seconds_until, success_at
from scripts.bench.skill.models import LARGER, MODELS, prepare_model
from scripts.bench.skill.page import PAGE, write_results
from scripts.bench.skill.runs import COMPLETIONS, CONTENDERS, OURS, measured, started
from scripts.bench.skill.success import PROMPTS, QUESTIONS, Judge
from scripts.experiments.harness.experiment import curve
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import table

RATES: Final = (1e-4, 3e-4, 1e-3)
BATCHES: Final = (64, 128, 256)  # completions of one step
PARTS: Final = 8  # of a run's seconds; the weights are kept after each
GOALS: Final = (0.4, 0.5)
VERSION: Final = 1  # of the runs that are kept


class Run(Struct, frozen=True):
    contender: str
    model: str
    rate: float | None  # None: as shipped
    batch: int | None
    seed: int
    seconds: float  # allowed
    load: float  # mean of the machine over the last minute, at the end
    points: list[Point]
    error: str = ""  # why there is no more


@dataclass(frozen=True)
class Planned:
    """One run to do, or done."""

    contender: str
    model: str
    rate: float | None
    batch: int | None
    seed: int
    seconds: float
    threads: int
    parts: int = PARTS

    @property
    def path(self) -> Path:
        shape = json.dumps([VERSION, PROMPTS, QUESTIONS, COMPLETIONS, *self.__dict__.values()])
        key = hashlib.sha256(shape.encode()).hexdigest()[:12]
        settings = "" if self.rate is None else f".{self.rate:g}.{self.batch}"
        folder = REPOSITORY / ".experiments" / "time_to_skill"
        return folder / f"{self.contender}.{self.model}{settings}.seed{self.seed}.{key}.json"


def run(planned: Planned, judge: Judge) -> Run:
    """Runs ``planned`` and measures the weights that it left. An error of a contender is part of the result."""
    with tempfile.TemporaryDirectory(prefix="skill-") as name:
        begun = Point(0.0, 0, 0, judge.of_folder(planned.model, None))
        job = {key: getattr(planned, key) for key in ("rate", "batch", "seed", "threads", "seconds", "parts")}
        learning = started(planned.contender, Path(name), planned.model, **job)
        points, error = measured(learning, learning.follow(partial(_progress, planned)), judge)
    load = round(os.getloadavg()[0], 1)
    fields = (planned.contender, planned.model, planned.rate, planned.batch, planned.seed, planned.seconds)
    return Run(*fields, load, [begun, *points], error)


def _progress(planned: Planned, used: float) -> None:
    what = f"{planned.contender}, {planned.model}, {settings_text(planned.rate, planned.batch)}, seed {planned.seed}"
    print(f"{what}: {used:.0f} of {planned.seconds:g} processor seconds", file=sys.stderr, flush=True)


def run_aloud(planned: Planned, judge: Judge) -> Run:
    done = run(planned, judge)
    success = f"success {done.points[0].success:.3f} to {done.points[-1].success:.3f}"
    _progress(planned, done.points[-1].seconds)
    print(f"  {success}, load {done.load}{', ' * bool(done.error)}{done.error}", file=sys.stderr, flush=True)
    return done


def kept_or_run(planned: Planned, judge: Judge) -> Run:
    """Returns the run, from its file where there is one. One that ended with an error is not kept."""
    return kept_or_made(planned.path, Run, partial(run_aloud, planned, judge), lambda done: not done.error)


# The whole comparison


@dataclass(frozen=True)
class Compared:
    """The runs of one model; ``tried`` are those that chose each contender's rate and batch."""

    model: str
    runs: Mapping[str, Sequence[Run]]
    tried: Mapping[str, Sequence[Run]]


def compared(model: str, options: argparse.Namespace, judge: Judge) -> Compared:
    """Tunes the contenders, then runs all in turn, seed by seed."""
    tried: dict[str, list[Run]] = {}
    best: dict[str, tuple[float | None, int | None]] = {OURS: (None, None)}
    pairs = list(itertools.product(options.rates, options.batches))
    for name in options.against:
        best[name] = pairs[0]
        if len(pairs) == 1:
            continue
        shared = (TUNING_SEED, options.tune_seconds, options.threads, TUNING_PARTS)
        tried[name] = [kept_or_run(Planned(name, model, *pair, *shared), judge) for pair in pairs]
        chosen = max(tried[name], key=lambda each: (not each.error, area(each.points, options.tune_seconds)))
        best[name] = chosen.rate, chosen.batch
        print(f"{name}, {model}: rate {chosen.rate:g}, batch {chosen.batch}", file=sys.stderr, flush=True)
    runs: dict[str, list[Run]] = {name: [] for name in best}
    for seed, name in itertools.product(range(options.seeds), best):
        planned = Planned(name, model, *best[name], seed, options.seconds, options.threads)
        runs[name].append(kept_or_run(planned, judge))
    return Compared(model, runs, tried)


def median_text(values: Sequence[float], digits: int = 0) -> str:
    """Returns the median with the least and the greatest value where they differ; "never" for infinity."""

    def text(value: float) -> str:
        return f"{value:.{digits}f}" if math.isfinite(value) else "never"

    least, greatest = text(min(values)), text(max(values))
    spread = f" ({least} to {greatest})" if least != greatest else ""
    return f"{text(statistics.median(values))}{spread}"


def seconds_to_others_end(found: Compared) -> list[float]:
    """Returns after how many seconds each run of ours has the success that the better contender ends with from the same
    seed, which ran on the same machine; infinity for never. Empty where one ends no higher than it began."""
    others = [runs for name, runs in found.runs.items() if name != OURS]
    ends = [max(run.points[-1].success for run in of_seed) for of_seed in zip(*others, strict=True)]
    ours = [run.points for run in found.runs[OURS]]
    if not ends or min(ends) <= ours[0][0].success:
        return []
    return [seconds_until(points, end) for points, end in zip(ours, ends, strict=True)]


def results_table(found: Compared, seconds: float) -> str:
    rows = []
    for name, runs in found.runs.items():
        points = [run.points for run in runs]
        ends = [of_run[-1].success for of_run in points]
        rows.append(
            [
                name,
                settings_text(runs[0].rate, runs[0].batch),
                ", ".join(str(run.seed) for run in runs),
                median_text([area(of_run, seconds) for of_run in points], 3),
                *(median_text([seconds_until(of_run, goal) for of_run in points]) for goal in GOALS),
                median_text(ends, 3),
                median_text([float(of_run[-1].completions) for of_run in points]),
                median_text([run.load for run in runs], 1),
            ]
        )
    header = (
        f"contender | settings | seeds | mean success over {seconds:g} s | s until {GOALS[0]:g} | s until {GOALS[1]:g} "
        "| success at the end | completions | load"
    )
    return table(header.split(" | "), rows)


def tuning_table(found: Compared, seconds: float) -> str:
    batches = sorted({run.batch or 0 for runs in found.tried.values() for run in runs})
    rows = []
    for name, runs in found.tried.items():
        for rate in sorted({run.rate or 0.0 for run in runs}):
            of_rate = {run.batch: run for run in runs if run.rate == rate}
            cells = [of_rate[batch].error or f"{area(of_rate[batch].points, seconds):.3f}" for batch in batches]
            rows.append([name, f"{rate:g}", *cells])
    return table(["contender", "rate", *(f"batch {batch}" for batch in batches)], rows)


def picture(found: Compared, seconds: float) -> str:
    grid = [seconds * n / 40 for n in range(41)]
    lines = [
        curve(name, grid, [[success_at(run.points, at) for at in grid] for run in runs])
        for name, runs in found.runs.items()
    ]
    title = f"{found.model}: success on held-out questions"
    return line_plot(title, lines, x_label="processor seconds", y_label="success", y_range=(0.0, 1.0))


def results(found: Compared, name: str, options: argparse.Namespace) -> str:
    """Returns what the page says of a model; the picture of its curves is ``against-NAME.svg``."""
    command = command_of("scripts.bench.time_to_skill", options, {"against": options.against, "models": [found.model]})
    parts = [
        f"Written by `{command}` on {machine()}; {options.threads} thread{'s' * (options.threads != 1)} a process. "
        "Medians, with the least and the greatest value over seeds.",
        results_table(found, options.seconds),
        f"![{found.model}: success over processor seconds](against-{name}.svg)",
    ]
    if caught_up := seconds_to_others_end(found):
        sooner = median_text([options.seconds / seconds for seconds in caught_up], 1)
        parts.append(
            f"{OURS} has the success that the better of the others ends with {sooner} times sooner, after "
            f"{median_text(caught_up)} s{', seed by seed' * (len(caught_up) > 1)}."
        )
    if found.tried:
        parts += [
            f"Tuned with one seed, {options.tune_seconds:g} processor seconds each: mean success over them.",
            tuning_table(found, options.tune_seconds),
        ]
    return "\n\n".join(parts)


def figures_of(found: Compared, seconds: float) -> Iterator[Figure]:
    """Yields medians over seeds, and what is compared with a bar."""
    medians: dict[tuple[str, float], float] = {}
    for name, runs in found.runs.items():
        what = f"{found.model}, {name}"
        areas = [area(run.points, seconds) for run in runs]
        yield Figure(f"{what}: mean success over {seconds:g} processor seconds", statistics.median(areas), "", "higher")
        yield Figure(f"{what}: at the end", statistics.median(r.points[-1].success for r in runs), "", "higher")
        for goal in GOALS:
            median = medians[name, goal] = statistics.median(seconds_until(run.points, goal) for run in runs)
            if math.isfinite(median):
                yield Figure(f"{what}: until {goal:g}", median, "s", "lower")
    for goal in GOALS:
        others = min((medians[name, goal] for name in found.runs if name != OURS), default=math.inf)
        if math.isfinite(others) and math.isfinite(medians[OURS, goal]):
            ratio = medians[OURS, goal] / others
            yield Figure(f"{found.model}: until {goal:g}, against the better contender", ratio, "×", "lower", "≤ 1/5")
    if caught_up := seconds_to_others_end(found):
        name = f"{found.model}: until the success that the better contender ends with"
        yield Figure(name, statistics.median(caught_up) / seconds, "of its time", "lower", "≤ 1/5")
        yield Figure(f"{name}, slowest seed", max(caught_up) / seconds, "of its time", "lower", "≤ 1/3")
    if "trl" in found.runs:
        pairs = list(zip(found.runs[OURS], found.runs["trl"], strict=True))
        equal = [min(a.points[-1].completions, b.points[-1].completions) for a, b in pairs]
        apart = [
            last_fifth(ours.points, n) - last_fifth(theirs.points, n)
            for (ours, theirs), n in zip(pairs, equal, strict=True)
        ]
        name = f"{found.model}: last fifth at equal completions, less TRL's"
        yield Figure(name, statistics.fmean(apart), "", "higher", "within 0.03")


def parsed() -> argparse.Namespace:
    parser = figures_parser(__doc__)

    def listed(known: Sequence[str]) -> Callable[[str], list[str]]:
        def of(text: str) -> list[str]:
            wanted = [name for name in text.split(",") if name]
            if unknown := [name for name in wanted if name not in known]:
                raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
            return wanted

        return of

    parser.add_argument("--against", type=listed(tuple(CONTENDERS)), default=[], metavar="trl,genrl")
    parser.add_argument(
        "--models", type=listed((*MODELS, *LARGER)), default=list(MODELS), metavar="wren,robin,finch,heron"
    )

    add_options(parser, RATES, BATCHES, seeds=5, tune_seconds=60.0)
    parser.add_argument("--threads", type=int, default=1, help="of each process (default 1)")
    return parsed_options(parser)


def main() -> None:
    options = parsed()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    ensure_compute_environment()
    for name in options.against:
        CONTENDERS[name][1]()
    for model in options.models:
        prepare_model(model)
    found = []
    with ExitStack() as stack:
        judge = stack.enter_context(Judge())
        for model in options.models:
            one = compared(model, options, judge)
            name, title = f"{model}-{options.seconds:g}", f"{model}, {options.seconds:g} s"
            write_results(title, results(one, name, options), name, picture(one, options.seconds), one.runs)
            print(f"written: {title}, in {PAGE}", file=sys.stderr)
            found.append(one)
    report("time_to_skill", [f for each in found for f in figures_of(each, options.seconds)], as_json=options.json)


if __name__ == "__main__":
    main()
