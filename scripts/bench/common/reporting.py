"""The output of every benchmark: a table for people, or one JSON object for programs."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True)
class Figure:
    """One measured value. ``bar`` is the limit that it must meet, in words, or None where there is none."""

    name: str
    value: float
    unit: str
    better: Literal["higher", "lower"]
    bar: str | None = None


def figures_parser(documentation: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a command that reports figures: its module's ``documentation`` is the help."""
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def machine() -> str:
    """Returns processor, cores and Python of this machine, in words."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:  # noqa: PTH123
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass  # not Linux: the platform's own name remains
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    )


def command_line() -> str:
    """Returns the command that runs this program again from the root of the repository."""
    spec = sys.modules["__main__"].__spec__
    program = [sys.argv[0]] if spec is None else ["-m", spec.name]
    return shlex.join(["python", *program, *sys.argv[1:]])


def report(name: str, figures: Sequence[Figure], *, as_json: bool) -> None:
    """Prints the figures of benchmark ``name`` to standard output. Raises ``ValueError`` if two have one name."""
    names = [figure.name for figure in figures]
    if len(set(names)) < len(names):
        raise ValueError(f"{name}: figures with one name: {sorted(n for n in names if names.count(n) > 1)}")
    if as_json:
        figures_json = [asdict(f) for f in figures]
        print(json.dumps({"name": name, "command": command_line(), "machine": machine(), "figures": figures_json}))
        return
    print(f"{name} on {machine()}")
    width = max(len(f.name) for f in figures)
    for f in figures:
        arrow = "↑" if f.better == "higher" else "↓"
        print(
            f"  {f.name:<{width}}  {f.value:>14,.4g} {f.unit:<12} {arrow}  {'bar ' + f.bar if f.bar else ''}".rstrip()
        )
