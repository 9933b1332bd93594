"""Runs every CUDA and Triton path against its reference, then times it against what this card can do. Prints one JSON.

    python -m scripts.bench.gpu [--json FILE] [--only NAME ...] [--quick] [--first | --timed]
    python -m scripts.bench.gpu --interpret

It takes less than nine minutes. In at most two of them all sections run at tiny sizes, several at a time, which answers
whether each path runs and agrees; ``--first`` ends there, and ``--timed`` begins behind it. Each section runs in a
process of its own and within its own time, so that a failure is recorded with its traceback and the others
go on; FILE is written after each. A section whose packages are not installed says so and is skipped. ``--interpret``
runs all of it at tiny sizes on this CPU, Triton's kernels in its interpreter.

Exit codes: 0 where all checks passed, 1 where one did not or a section ended early, 69 on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

if "--interpret" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import torch

from node.kernels import dispatch
from node.version import VERSION
from scripts import REPOSITORY
from scripts.bench.gpu.bench import Bench, Scale
from scripts.bench.gpu.processes import run_apart
from scripts.bench.gpu.results import SectionResult, end_line, line_of, run_section, shares
from scripts.bench.gpu.sections import FIRST_BUDGET, FIRST_SECONDS, SECTIONS, TOTAL_SECONDS
from swarm.exit_codes import ExitCode

Part = Literal["first", "sections"]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.child:
        return _child(options)
    if not options.interpret and not torch.cuda.is_available():
        print("no GPU: torch finds no CUDA device; --interpret checks the kernels on this CPU", file=sys.stderr)
        return ExitCode.UNREACHABLE
    # Where starling is not installed, the processes that sections start find it here.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    names = options.only or list(SECTIONS)
    found = _Found(options)
    if options.interpret:
        found.device = _facts(torch.device("cpu"))
        for name in names:
            found.add("sections", name, _run_interpreted(name))
    else:
        scale: Scale = "quick" if options.quick else "full"
        with ThreadPoolExecutor(_side_by_side()) as several:  # a time of this part means nothing
            list(several.map(found.run_first, names if not options.timed else ()))
        for name in names if not options.first else ():
            found.run("sections", name, scale, min(SECTIONS[name].seconds, TOTAL_SECONDS - found.seconds))
    found.end()
    return ExitCode.DONE if found.passed else ExitCode.FAULT


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON here instead of printing it")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), metavar="NAME", help=", ".join(SECTIONS))
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--first", action="store_true", help="the first part alone: does each path run and agree")
    part.add_argument("--timed", action="store_true", help="the second part alone, at full size")
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--interpret", action="store_true", help="tiny sizes on this CPU, in Triton's interpreter")
    for internal in ("--child", "--scale", "--into"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _side_by_side() -> int:
    """Returns how many sections of the first part may run at a time, each with two cores and 4 GiB of the card."""
    card = torch.cuda.get_device_properties(0).total_memory
    return max(1, min((os.cpu_count() or 1) // 2, card // (4 << 30)))


def _child(options: argparse.Namespace) -> int:
    with Path(options.into).open("w", buffering=1) as told:
        device = torch.device("cuda")
        facts = _facts(device)
        bench = Bench(device, options.scale, lambda result: print(line_of(result), end="", file=told))
        status, because = run_section(SECTIONS[options.child], bench)
        told.write(end_line(status, because, facts))
    return ExitCode.DONE


def _run_interpreted(name: str) -> SectionResult:
    result = SectionResult()
    began = time.monotonic()
    with _cpu_as_gpu():
        result.status, result.because = run_section(SECTIONS[name], Bench(torch.device("cpu"), "tiny", result.add))
    result.seconds = time.monotonic() - began
    return result


@contextmanager
def _cpu_as_gpu() -> Iterator[None]:
    """Within the context CPU tensors go to Triton, on one thread: its interpreter does not support several."""
    devices, threads = dispatch.TRITON_DEVICES, torch.get_num_threads()
    dispatch.TRITON_DEVICES = {"cpu"}
    torch.set_num_threads(1)
    try:
        yield
    finally:
        dispatch.TRITON_DEVICES = devices
        torch.set_num_threads(threads)


def _facts(device: torch.device) -> dict[str, Any]:
    try:
        from triton import __version__ as triton
    except ModuleNotFoundError:
        triton = None
    facts: dict[str, Any] = {
        "torch": str(torch.__version__),
        "triton": triton,
        "python": platform.python_version(),
        "name": platform.machine(),
    }
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        facts |= {
            "name": card.name,
            "capability": f"{card.major}.{card.minor}",
            "multiprocessors": card.multi_processor_count,
            "memory_bytes": card.total_memory,
            "cuda": torch.version.cuda,
        }
    return facts


class _Found:
    """The results of both parts; the file of ``--json`` always holds what is there."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._began = time.monotonic()
        self._adding = threading.Lock()
        self.device: dict[str, Any] = {}
        self._parts: dict[Part, dict[str, SectionResult]] = {"first": {}, "sections": {}}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def passed(self) -> bool:
        return not any(result.bad for results in self._parts.values() for result in results.values())

    def run(self, part: Part, name: str, scale: Scale, budget: float) -> None:
        result, facts = run_apart(name, scale, budget)
        self.device = self.device or facts
        self.add(part, name, result)

    def run_first(self, name: str) -> None:
        self.run("first", name, "tiny", min(FIRST_BUDGET, FIRST_SECONDS - self.seconds))

    def add(self, part: Part, name: str, result: SectionResult) -> None:
        with self._adding:
            self._parts[part][name] = result
            _say(f"{name}{' (first part)' if part == 'first' else ''}: {_summary(result)}")
            if self._options.json is not None:
                self._options.json.write_text(self._text())

    def end(self) -> None:
        """Prints the table of figures, and the JSON where it has no file."""
        for name, result in self._parts["sections"].items():
            for figure in result.figures:
                reached = shares(figure, self._limits())
                said = ", ".join(f"{share:.1%} {key.replace('_', ' ')}" for key, share in reached.items())
                _say(f"  {name:<26} {figure.name:<56} {figure.value:>12.4g} {figure.unit:<9} {said}")
        if self._options.json is None:
            print(self._text(), end="")

    def _limits(self) -> dict[str, float]:
        measured = self._parts["sections"].get("limits", SectionResult()).figures
        return {figure.name: figure.value for figure in measured if figure.unit in ("B/s", "FLOP/s")}

    def _text(self) -> str:
        limits = self._limits()
        found = {
            "name": "gpu",
            "version": VERSION,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "scale": "interpreted" if self._options.interpret else "quick" if self._options.quick else "full",
            "device": self.device,
            "limits": limits,
            "passed": self.passed,
            "seconds": round(self.seconds, 1),
        } | {
            part: {name: result.as_json(limits) for name, result in results.items()}
            for part, results in self._parts.items()
        }
        return json.dumps(found, indent=1) + "\n"


def _summary(result: SectionResult) -> str:
    good = sum(check.passed for check in result.checks)
    because = f": {result.because}" if result.because else ""
    return f"{result.status} in {result.seconds:.1f} s, {good} of {len(result.checks)} checks passed{because}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
