"""How every benchmark reports: a table for people, one JSON object for programs."""

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
    """One measured value. ``bar`` says in words what it must reach, or None where there is no bar."""

    name: str
    value: float
    unit: str
    better: Literal["higher", "lower"]
    bar: str | None = None


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def machine() -> str:
    """Processor, cores and Python of this machine, in words."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:  # noqa: PTH123
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass  # not Linux: the platform's own word stands
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    )


def report(name: str, figures: Sequence[Figure], *, as_json: bool) -> None:
    """Prints the figures of benchmark ``name`` to standard output."""
    if as_json:
        command = shlex.join(["python", *sys.argv])
        figures_json = [asdict(f) for f in figures]
        print(json.dumps({"name": name, "command": command, "machine": machine(), "figures": figures_json}))
        return
    print(f"{name} on {machine()}")
    width = max(len(f.name) for f in figures)
    for f in figures:
        arrow = "↑" if f.better == "higher" else "↓"
        print(
            f"  {f.name:<{width}}  {f.value:>14,.4g} {f.unit:<12} {arrow}  {'bar ' + f.bar if f.bar else ''}".rstrip()
        )
