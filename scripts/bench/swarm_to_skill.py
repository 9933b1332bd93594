"""What a swarm learns, against what a swarm of GenRL learns: three unlike nodes over loopback, each with a share of the
processor.

  starling  three nodes as shipped (``starling up``, one told the address of another), no setting of learning
  genrl     three nodes with GenRL's GRPO trainer and its back end on hivemind, half of each batch from the others, by
            the rule of SAPO (arXiv 2509.08721), whose reference implementation it is (``contenders/genrl_swarm.py``)

The nodes have the models wren, robin and finch. Each ends when all of its processes have used ``--seconds`` of the
processor, start included. Success is as of ``time_to_skill``: on held-out questions of the default swarm's tasks, the
mean of the three nodes. The other's rate and batch are tried with one seed for ``--tune-seconds``; what has the
greatest mean success over them is run. Everything is within a network namespace of its own, whose bytes on the loopback
interface are counted: one copy of each packet, with its headers.

Finished runs are kept in ``.experiments/swarm_to_skill``: the same command goes on where it was interrupted. It writes
its results into docs/against.md. Needs ``unshare`` and ``ip``, and a virtual environment (1.5 GB) that it makes the
first time.

    python -m scripts.bench.swarm_to_skill [--seeds 3] [--seconds 240] [--json]
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from scripts import REPOSITORY
from scripts.bench.common.processes import ensure_compute_environment
from scripts.bench.common.reporting import Figure, figures_parser, machine, report
from scripts.bench.contenders.environments import prepare_genrl
from scripts.bench.skill.comparing import (
    TUNING_PARTS,
    TUNING_SEED,
    add_options,
    command_of,
    kept_or_made,
    parsed_options,
    settings_text,
)
from scripts.bench.skill.curves import Point, area, success_at
from scripts.bench.skill.models import MODELS
from scripts.bench.skill.page import PAGE, write_results
from scripts.bench.skill.runs import OURS, Learning, measured, started
from scripts.bench.skill.success import Judge
from scripts.experiments.harness.experiment import curve
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import table
from scripts.private_cluster_machines import INSIDE, inside_namespaces

THEIRS: Final = "genrl"
PARTS: Final = 6  # of a run's seconds; the weights are kept after each
RATES: Final = (1e-5, 3e-5, 1e-4)
BATCHES: Final = (256,)  # completions of one step; ``time_to_skill`` found the largest best
VERSION: Final = 1  # of the runs that are kept


class SwarmRun(Struct, frozen=True):
    contender: str
    rate: float | None  # None: as shipped
    batch: int | None
    seed: int
    seconds: float  # of each node
    load: float  # mean of the machine over the last minute, at the end
    sent_bytes: int
    foreign_groups: int  # of other nodes, trained on by all of them
    nodes: dict[str, list[Point]]
    errors: list[str]  # why there is no more

    def success_at(self, seconds: float) -> float:
        """Returns the mean of the nodes' success when each has used so many seconds."""
        return statistics.fmean(success_at(points, seconds) for points in self.nodes.values())

    @property
    def area(self) -> float:
        return statistics.fmean(area(points, self.seconds) for points in self.nodes.values())

    @property
    def gained(self) -> float:
        return self.success_at(self.seconds) - self.success_at(0.0)

    @property
    def completions(self) -> int:
        return sum(points[-1].completions for points in self.nodes.values())


@dataclass(frozen=True)
class Planned:
    """One run to do, or done."""

    contender: str
    rate: float | None
    batch: int | None
    seed: int
    seconds: float
    parts: int = PARTS

    @property
    def path(self) -> Path:
        key = hashlib.sha256(json.dumps([VERSION, *asdict(self).values()]).encode()).hexdigest()[:12]
        return REPOSITORY / ".experiments" / "swarm_to_skill" / f"{self.contender}.seed{self.seed}.{key}.json"

    def __str__(self) -> str:
        return f"{self.contender}, {settings_text(self.rate, self.batch)}, seed {self.seed}"


def run(planned: Planned, judge: Judge) -> SwarmRun:
    """Runs a swarm to its end and measures what its nodes kept. An error of a node is part of the result."""
    job = {"threads": 1, **{key: getattr(planned, key) for key in ("rate", "batch", "seconds", "parts")}}
    first_seed = planned.seed * len(MODELS)
    begun = {model: Point(0.0, 0, 0, judge.of_folder(model, None)) for model in MODELS}
    with tempfile.TemporaryDirectory(prefix="swarm-") as name, ThreadPoolExecutor(len(MODELS)) as threads:
        before = loopback_bytes()
        nodes: dict[str, Learning] = {}
        address = ""
        for number, model in enumerate(MODELS):
            folder = Path(name) / model
            folder.mkdir()
            nodes[model] = started(planned.contender, folder, model, **job, seed=first_seed + number, swarm=address)
            address = address or nodes[model].address()
        follow = [threads.submit(node.follow, partial(_progress, planned, model)) for model, node in nodes.items()]
        found = [each.result() for each in follow]
        load, sent = round(os.getloadavg()[0], 1), loopback_bytes() - before
        foreign = sum(kept[-1].foreign_groups for kept, _ in found if kept)
        points, errors = {}, []
        for (model, node), kept in zip(nodes.items(), found, strict=True):
            after, error = measured(node, kept, judge)
            points[model] = [begun[model], *after]
            errors += [f"{model}: {error}"] * bool(error)
    settings = (planned.contender, planned.rate, planned.batch, planned.seed, planned.seconds)
    return SwarmRun(*settings, load, sent, foreign, points, errors)


def loopback_bytes() -> int:
    """Returns the bytes that the namespace's loopback interface has carried."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    raise RuntimeError("there is no loopback interface")


def _progress(planned: Planned, model: str, used: float) -> None:
    print(f"{planned}, {model}: {used:.0f} of {planned.seconds:g} processor seconds", file=sys.stderr, flush=True)


def run_aloud(planned: Planned, judge: Judge) -> SwarmRun:
    done = run(planned, judge)
    what = f"{done.success_at(0.0):.3f} to {done.success_at(done.seconds):.3f}, load {done.load}"
    print(f"{planned}: {what}{''.join(f'; {error}' for error in done.errors)}", file=sys.stderr, flush=True)
    return done


def kept_or_run(planned: Planned, judge: Judge) -> SwarmRun:
    """Returns the run, from its file where there is one. One with an error is not kept."""
    return kept_or_made(planned.path, SwarmRun, partial(run_aloud, planned, judge), lambda done: not done.errors)


def compared(options: argparse.Namespace, judge: Judge) -> tuple[dict[str, list[SwarmRun]], list[SwarmRun]]:
    """Returns the runs of each contender, and those that chose the settings of the other."""
    tune = [
        Planned(THEIRS, rate, batch, TUNING_SEED, options.tune_seconds, TUNING_PARTS)
        for rate, batch in itertools.product(options.rates, options.batches)
    ]
    tried = [kept_or_run(each, judge) for each in tune] if len(tune) > 1 else []
    best = max(tried, key=lambda each: (not each.errors, each.area)) if tried else tune[0]
    runs: dict[str, list[SwarmRun]] = {OURS: [], THEIRS: []}
    for seed in range(options.seeds):
        runs[OURS].append(kept_or_run(Planned(OURS, None, None, seed, options.seconds), judge))
        runs[THEIRS].append(kept_or_run(Planned(THEIRS, best.rate, best.batch, seed, options.seconds), judge))
    return runs, tried


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Returns the mean, with the least and the greatest value."""
    many = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{many}"


def results(runs: Mapping[str, Sequence[SwarmRun]], tried: Sequence[SwarmRun], options: argparse.Namespace) -> str:
    rows = []
    for name, of_name in runs.items():
        first = of_name[0]
        nodes = ", ".join(
            f"{model} {statistics.fmean(run.nodes[model][-1].success for run in of_name):.3f}" for model in MODELS
        )
        rows.append(
            [
                name,
                settings_text(first.rate, first.batch),
                ", ".join(str(run.seed) for run in of_name),
                spread([run.success_at(0.0) for run in of_name]),
                spread([run.success_at(run.seconds) for run in of_name]),
                spread([run.gained for run in of_name]),
                nodes,
                spread([run.completions for run in of_name], 0),
                spread([run.foreign_groups for run in of_name], 0),
                spread([run.sent_bytes / 1e6 for run in of_name], 1),
                spread([run.load for run in of_name], 1),
            ]
        )
    header = (
        "contender | settings | seeds | before | after | gained | of each | completions | groups of others "
        "| MB on loopback | load"
    )
    command = command_of("scripts.bench.swarm_to_skill", options)
    parts = [
        f"Written by `{command}` on {machine()}. Mean success of the three nodes before, and when each has used "
        f"{options.seconds:g} s of the processor; with the least and the greatest value over seeds.",
        table(header.split(" | "), rows),
        "![success of three nodes over processor seconds](against-swarm.svg)",
    ]
    if tried:
        parts += [
            f"Tuned with one seed, {options.tune_seconds:g} s of the processor for each node: mean success over them.",
            table(
                ["contender", "rate", "batch", "mean success"],
                [[t.contender, f"{t.rate:g}", str(t.batch), "; ".join(t.errors) or f"{t.area:.3f}"] for t in tried],
            ),
        ]
    return "\n\n".join(parts)


def picture(runs: Mapping[str, Sequence[SwarmRun]], seconds: float) -> str:
    grid = [seconds * n / 40 for n in range(41)]
    lines = [
        curve(name, grid, [[run.success_at(at) for at in grid] for run in of_name]) for name, of_name in runs.items()
    ]
    title = "wren, robin and finch in a swarm: success on held-out questions"
    return line_plot(title, lines, x_label="processor seconds of each", y_label="success", y_range=(0.0, 0.5))


def figures_of(runs: Mapping[str, Sequence[SwarmRun]]) -> Iterator[Figure]:
    gained = {name: statistics.fmean(run.gained for run in of_name) for name, of_name in runs.items()}
    for name, of_name in runs.items():
        yield Figure(f"{name}: success gained by three nodes", gained[name], "", "higher")
        megabytes = statistics.fmean(run.sent_bytes for run in of_name) / 1e6
        yield Figure(f"{name}: bytes on loopback", megabytes, "MB", "lower")
    if gained[THEIRS] > 0:
        yield Figure("success gained, against the other", gained[OURS] / gained[THEIRS], "×", "higher", "≥ 3")


def parsed() -> argparse.Namespace:
    parser = figures_parser(__doc__)
    add_options(parser, RATES, BATCHES, seeds=3, tune_seconds=90.0)
    return parsed_options(parser)


def main() -> None:
    options = parsed()
    os.environ["OMP_NUM_THREADS"] = "1"
    ensure_compute_environment()
    if INSIDE not in os.environ:
        prepare_genrl()  # from the network, which is out of reach inside
    inside_namespaces("scripts.bench.swarm_to_skill")
    del os.environ[INSIDE]  # nodes take it for a setting
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with Judge() as judge:
        runs, tried = compared(options, judge)
    text = results(runs, tried, options)
    write_results("A swarm against a swarm", text, "swarm", picture(runs, options.seconds), runs)
    print(f"written: {PAGE}", file=sys.stderr)
    report("swarm_to_skill", list(figures_of(runs)), as_json=options.json)


if __name__ == "__main__":
    main()
