"""Writes ``docs/figures.md`` from the records of benchmarks in ``docs/figures``, and makes these records.

    python -m scripts.figures                          writes the page
    python -m scripts.figures --check                  exits with 1 if the page differs from the records
    python -m scripts.figures record NAME -- ARGS…     runs scripts.bench.NAME or .experiments.NAME, keeps its JSON

A record has the command, the date, the machine, the load of the machine before the run, and every figure by name. A
figure that was measured before there were records has ``source`` instead of date and load. ``figure_rows.py`` has the
rows of the page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from scripts import REPOSITORY
from scripts.figure_rows import ROWS, Row

RECORDS: Final = REPOSITORY / "docs" / "figures"
PAGE: Final = REPOSITORY / "docs" / "figures.md"
MAX_LOAD_PER_CORE: Final = 1.5  # above it, other work and not the code decides times
PACKAGES: Final = ("scripts.bench", "scripts.experiments")
INTRO: Final = """# Figures

`python -m scripts.figures` writes this page from the records in [figures/](figures), one for each benchmark: its
command, the date, the machine, the machine's load before the run, and every figure that it printed. The commands run
from the root of the repository with its environment. `--json` prints figures for programs, and `python -m
scripts.figures record NAME -- ARGUMENTS` keeps them. Ratios are measured in one run, both sides in turn. A load (mean
number of runnable processes over a minute) near the number of cores means that other work slowed the run: times are
then too long, and ratios are less certain; above 1.5 per core nothing is kept.
"""


class Machine(Struct, frozen=True):
    """``vectors`` are the widest vector instructions of the processor; None where a record does not say."""

    cpu: str
    cores: int
    vectors: str | None = None

    def text(self) -> str:
        return f"{self.cpu}, {self.cores} cores" + (f", {self.vectors}" if self.vectors else "")


class Record(Struct, frozen=True, omit_defaults=True):
    """The figures of one run of a benchmark."""

    command: str
    machine: Machine
    figures: dict[str, float]
    date: str | None = None  # ISO 8601
    load_average: float | None = None  # over a minute, before the run
    source: str | None = None  # of figures that were measured before there were records
    commit: str | None = None  # the last that has the command, where it is gone


def machine_here() -> Machine:
    """Returns this machine's description, from Linux's ``/proc/cpuinfo``."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = fields.get("flags", "").split()
    vectors = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else None
    return Machine(fields.get("model name", "unknown processor"), os.cpu_count() or 1, vectors)


def load_records(folder: Path) -> dict[str, Record]:
    """Returns the records of a folder by benchmark. Raises ``msgspec.DecodeError`` for an invalid one."""
    return {path.stem: msgspec.json.decode(path.read_bytes(), type=Record) for path in sorted(folder.glob("*.json"))}


def page(records: Mapping[str, Record], rows: Sequence[Row] = ROWS) -> str:
    """Returns the page's text. Raises ``KeyError`` where a row's record or one of its figures is missing."""
    used = {row.bench: records[row.bench] for row in rows}
    machines = list(dict.fromkeys(record.machine for record in used.values()))
    letters = {machine: chr(ord("A") + number) for number, machine in enumerate(machines)}
    lines = ["| figure | measured | bar | when, where | printed by |", "|---|---|---|---|---|"]
    before = ""
    for row in rows:
        record = used[row.bench]
        ditto = row.bench == before
        where = "" if ditto else f"{_when(record)}, {letters[record.machine]}"
        command = "" if ditto else f"`{record.command}`{f' at commit {record.commit}' if record.commit else ''}"
        lines.append(f"| {row.text} | {row.measured(record.figures)} | {row.bar} | {where} | {command} |")
        before = row.bench
    known = [f"- {letters[machine]}: {machine.text()}" for machine in machines]
    sources = list(dict.fromkeys(record.source for record in used.values() if record.source is not None))
    notes = [f"“Earlier”: {source}" for source in sources]
    parts = [INTRO.strip(), "Machines, without a GPU:", "\n".join(known), *notes, "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _when(record: Record) -> str:
    if record.date is None:
        return "earlier"
    return f"{record.date}, load {record.load_average:.1f}" if record.load_average is not None else record.date


def record(name: str, arguments: Sequence[str], folder: Path, *, load_average: float) -> Path:
    """Runs a benchmark with ``--json`` and keeps its figures in ``folder``; returns the record's path.

    Ends the program, and keeps the earlier record, where the benchmark fails or lacks a figure of the page.
    """
    module = next((f"{package}.{name}" for package in PACKAGES if util.find_spec(f"{package}.{name}")), None)
    if module is None:
        raise SystemExit(f"no benchmark or experiment is called {name!r}")
    command = [sys.executable, "-m", module, *arguments, "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=REPOSITORY)
    if ended.returncode != 0:
        raise SystemExit(f"{module} ended with exit code {ended.returncode}")
    printed: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    made = Record(
        command=str(printed["command"]).removesuffix(" --json"),
        machine=machine_here(),
        figures={str(each["name"]): float(each["value"]) for each in printed["figures"]},
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        load_average=round(load_average, 2),
    )
    for row in ROWS:
        if row.bench == name:
            try:
                row.measured(made.figures)
            except KeyError as error:
                raise SystemExit(f"not kept: the page's row {row.text!r} needs the figure {error}") from None
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page differs")
    verbs = parser.add_subparsers(dest="verb")
    recording = verbs.add_parser("record", help="run one benchmark and keep its figures")
    recording.add_argument("name")
    recording.add_argument("arguments", nargs="*", help="of the benchmark, after --")
    options = parser.parse_args()
    if options.verb == "record":
        load, most = os.getloadavg()[0], MAX_LOAD_PER_CORE * (os.cpu_count() or 1)
        if load > most:
            sys.exit(f"the machine's load is {load:.1f}, above {most:g}: its figures would be those of the other work")
        print(f"written: {record(options.name, options.arguments, RECORDS, load_average=load)}")
        return
    text = page(load_records(RECORDS))
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE.relative_to(REPOSITORY)} differs from the records: run python -m scripts.figures")


if __name__ == "__main__":
    main()
