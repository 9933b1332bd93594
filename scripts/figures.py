"""Writes ``docs/figures.md`` from the records of benchmarks in ``docs/figures``, and makes these records.

    python -m scripts.figures                          writes the page
    python -m scripts.figures --check                  exits with 1 if the page differs from the records
    python -m scripts.figures stale                    lists what has no record, or one of other code, and the commands
    python -m scripts.figures record NAME [-- ARGS…]   runs scripts.bench.NAME or .experiments.NAME, keeps its JSON

A record has the command, the date, the commit, the machine, its load before the run, and every figure by name. Every
record is also a line of ``ledger.jsonl``, with the figures that the page or a test needs, so that one sees a figure
over time. ``figure_rows.py`` has the rows of the page, ``figure_sources.py`` what each benchmark measures.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
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
from scripts.figure_sources import SOURCES, changed_since

RECORDS: Final = REPOSITORY / "docs" / "figures"
LEDGER: Final = "ledger.jsonl"
PAGE: Final = REPOSITORY / "docs" / "figures.md"
STALE_NAMED: Final = 3  # changed files in a line
MAX_LOAD_PER_CORE: Final = 1.5  # above it, other work and not the code decides times
PACKAGES: Final = ("scripts.bench", "scripts.experiments")
INTRO: Final = """# Figures

`python -m scripts.figures` writes this page from the records in [figures/](figures), one for each benchmark: its
command, the date, the commit, the machine, the machine's load before the run, and every figure that it printed. The
commands run from the root of the repository with its environment; `python -m scripts.figures record NAME` keeps what
they print. [figures/ledger.jsonl](figures/ledger.jsonl) has every record that there was. Ratios are measured in one
run, both sides in turn. A load (mean number of runnable processes over a minute) near the number of cores means that
other work slowed the run: times are then too long, and ratios are less certain; above 1.5 per core no times are kept.
`python -m scripts.figures stale` names every figure whose code has changed since its commit.
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
    date: str  # ISO 8601
    load_average: float  # over a minute, before the run
    commit: str  # of the code that was measured


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
    """Returns the page's text. Raises ``KeyError`` where a record lacks a figure of one of its rows."""
    used = {row.bench: records[row.bench] for row in rows if row.bench in records}
    machines = list(dict.fromkeys(record.machine for record in used.values()))
    letters = {machine: chr(ord("A") + number) for number, machine in enumerate(machines)}
    lines = ["| figure | measured | bar | when, where, commit | printed by |", "|---|---|---|---|---|"]
    before = ""
    for row in rows:
        if row.bench not in used:
            continue
        record = used[row.bench]
        ditto = row.bench == before
        measured_at = f"{record.date}, load {record.load_average:.1f}, {letters[record.machine]}, {record.commit}"
        where, command = ("", "") if ditto else (measured_at, f"`{record.command}`")
        lines.append(f"| {row.text} | {row.measured(record.figures)} | {row.bar} | {where} | {command} |")
        before = row.bench
    known = [f"- {letters[machine]}: {machine.text()}" for machine in machines]
    parts = [INTRO.strip(), "Machines, without a GPU:", "\n".join(known), "\n".join(lines), *_without(records, rows)]
    return "\n\n".join(parts) + "\n"


def _without(records: Mapping[str, Record], rows: Sequence[Row]) -> list[str]:
    """Returns the part of the page that names the rows without a record."""
    missing = [row for row in rows if row.bench not in records]
    if not missing:
        return []
    lines = ["| figure | bar | command | takes about |", "|---|---|---|---|"]
    for row in missing:
        lines.append(f"| {row.text} | {row.bar} | `{_command(row.bench)}` | {SOURCES[row.bench].minutes:g} min |")
    told = "What was measured before records named a commit is struck, and stands here until it is measured again:"
    return ["## Without a figure", told, "\n".join(lines)]


def _command(name: str) -> str:
    return f"python -m scripts.figures record {name}"


def stale(records: Mapping[str, Record]) -> list[str]:
    """Returns a line for each benchmark of the page that has no record, or one of other code than the present."""
    lines = []
    for name, source in SOURCES.items():
        if name not in records:
            lines.append(f"{name}: no record; {_command(name)} takes {source.minutes:g} min")
            continue
        made = records[name]
        own = [f"scripts/{folder}/{name}.py" for folder in ("bench", "experiments")]
        changed = changed_since(made.commit, [*source.measures, *own], REPOSITORY)
        if changed:
            some = ", ".join(changed[:STALE_NAMED]) + (" …" if len(changed) > STALE_NAMED else "")
            lines.append(
                f"{name}: {len(changed)} files since {made.commit} of {made.date} ({some}); {_command(name)} takes "
                f"{source.minutes:g} min"
            )
    return lines


def record(name: str, arguments: Sequence[str], folder: Path, *, load_average: float, commit: str) -> Path:
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
        commit=commit,
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
    with (folder / LEDGER).open("ab") as ledger:
        ledger.write(ledger_line(name, made))
    return path


def ledger_line(name: str, made: Record) -> bytes:
    """Returns a record as a line of the ledger, with the figures that the page shows; of ``counts`` all."""
    shown = {figure for row in ROWS if row.bench == name for figure in row.figures()}
    figures = {figure: value for figure, value in made.figures.items() if figure in shown or name == "counts"}
    return (
        msgspec.json.encode({"bench": name, **msgspec.to_builtins(msgspec.structs.replace(made, figures=figures))})
        + b"\n"
    )


def _commit() -> str:
    """Returns the commit of the working tree. Ends the program where it has changes that no commit has."""
    changed = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no", "--", "node", "swarm", "protocol", "scripts"],
        check=True, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY,
    ).stdout  # fmt: skip
    if changed:
        sys.exit(f"a record names its commit, and these changes are in none: commit them first\n{changed}")
    head = ["git", "rev-parse", "--short=7", "HEAD"]
    return subprocess.run(head, check=True, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page differs")
    verbs = parser.add_subparsers(dest="verb")
    recording = verbs.add_parser("record", help="run one benchmark and keep its figures")
    recording.add_argument("name")
    recording.add_argument("arguments", nargs="*", help="of the benchmark, after --; without any, those of the page")
    recording.add_argument("--busy", action="store_true", help="on a machine with other work: for what is no time")
    verbs.add_parser("stale", help="what has no record, or one of other code than the present")
    options = parser.parse_args()
    if options.verb == "record":
        load, most = os.getloadavg()[0], MAX_LOAD_PER_CORE * (os.cpu_count() or 1)
        if load > most and not options.busy:
            sys.exit(f"the machine's load is {load:.1f}, above {most:g}: its figures would be those of the other work")
        of_page = SOURCES[options.name].arguments if options.name in SOURCES else ""
        arguments = options.arguments or shlex.split(of_page)
        if options.name in SOURCES and not options.arguments:
            print(
                f"{options.name} takes about {SOURCES[options.name].minutes:g} min on two free cores", file=sys.stderr
            )
        print(f"written: {record(options.name, arguments, RECORDS, load_average=load, commit=_commit())}")
        return
    if options.verb == "stale":
        try:
            lines = stale(load_records(RECORDS))
        except subprocess.CalledProcessError as error:
            sys.exit(f"{error}: this checkout lacks the history of the records; git fetch --unshallow brings it")
        print("\n".join(lines) or "every figure is of the present code")
        return
    text = page(load_records(RECORDS))
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit(f"{PAGE.relative_to(REPOSITORY)} differs from the records: run python -m scripts.figures")


if __name__ == "__main__":
    main()
