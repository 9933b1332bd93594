"""Runs every CUDA and Triton path against its reference, then times it against what this card can do. Prints one JSON.

    python -m scripts.bench.gpu [--json FILE] [--only NAME ...] [--quick]
    python -m scripts.bench.gpu --interpret

It takes less than eight minutes. Each section runs in a process of its own and within its own time, so that a failure
is recorded with its traceback and the others go on. A section whose packages are not installed says so and is skipped.
``--interpret`` runs all of it at tiny sizes on this CPU, Triton's kernels in its interpreter.

Exit codes: 0 where all checks passed, 1 where one did not or a section ended early, 69 on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

if "--interpret" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import torch

from node.kernels import dispatch
from node.version import VERSION
from scripts.bench.gpu.bench import Bench
from scripts.bench.gpu.processes import run_apart
from scripts.bench.gpu.results import SectionResult, end_line, line_of, run_section, shares
from scripts.bench.gpu.sections import SECTIONS, TOTAL_SECONDS
from swarm.exit_codes import ExitCode


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.child:
        return _child(options)
    if not options.interpret and not torch.cuda.is_available():
        print("no GPU: torch finds no CUDA device; --interpret checks the kernels on this CPU", file=sys.stderr)
        return ExitCode.UNREACHABLE
    names = options.only or list(SECTIONS)
    results: dict[str, SectionResult] = {}
    device: dict[str, Any] = {}
    began = time.monotonic()
    for name in names:
        _say(f"{name} …")
        if options.interpret:
            results[name], device = _run_interpreted(name), _facts(torch.device("cpu"))
        else:
            left = TOTAL_SECONDS - (time.monotonic() - began)
            budget = min(SECTIONS[name].seconds, left)
            results[name], facts = run_apart(name, "quick" if options.quick else "full", budget)
            device = device or facts
        _say(_summary(results[name]))
    passed = not any(result.bad for result in results.values())
    _write(options, device, results, passed=passed, seconds=time.monotonic() - began)
    return ExitCode.DONE if passed else ExitCode.FAULT


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON here instead of printing it")
    parser.add_argument("--only", action="append", choices=list(SECTIONS), metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--interpret", action="store_true", help="tiny sizes on this CPU, in Triton's interpreter")
    for internal in ("--child", "--scale", "--into"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


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


def _write(
    options: argparse.Namespace,
    device: dict[str, Any],
    results: dict[str, SectionResult],
    *,
    passed: bool,
    seconds: float,
) -> None:
    measured = results.get("limits", SectionResult()).figures
    limits = {figure.name: figure.value for figure in measured if figure.unit in ("B/s", "FLOP/s")}
    found = {
        "name": "gpu",
        "version": VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "scale": "interpreted" if options.interpret else "quick" if options.quick else "full",
        "device": device,
        "limits": limits,
        "passed": passed,
        "seconds": round(seconds, 1),
        "sections": {name: result.as_json(limits) for name, result in results.items()},
    }
    for name, result in results.items():
        for figure in result.figures:
            reached = ", ".join(f"{share:.1%} {key.replace('_', ' ')}" for key, share in shares(figure, limits).items())
            _say(f"  {name:<26} {figure.name:<56} {figure.value:>12.4g} {figure.unit:<9} {reached}")
    text = json.dumps(found, indent=1)
    if options.json is None:
        print(text)
    else:
        options.json.write_text(text + "\n")


def _summary(result: SectionResult) -> str:
    good = sum(check.passed for check in result.checks)
    because = f": {result.because}" if result.because else ""
    return f"  {result.status} in {result.seconds:.1f} s, {good} of {len(result.checks)} checks passed{because}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
