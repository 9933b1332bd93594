"""What both comparisons with others share: how contenders are tuned, options, and runs that are kept."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from swarm.atomic_file import write_atomically

R = TypeVar("R")
TUNING_SEED: Final = 1000
TUNING_PARTS: Final = 3  # of a tuning run's seconds; the weights are kept after each


def settings_text(rate: float | None, batch: int | None) -> str:
    return "as shipped" if rate is None else f"rate {rate:g}, batch {batch}"


def kept_or_made(path: Path, kind: type[R], make: Callable[[], R], is_whole: Callable[[R], bool]) -> R:
    """Returns what is in the file, otherwise what ``make`` returns, which is kept where it is whole."""
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=kind)
    made = make()
    if is_whole(made):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.encode(made))
    return made


def add_options(
    parser: argparse.ArgumentParser, rates: Sequence[float], batches: Sequence[int], *, seeds: int, tune_seconds: float
) -> None:
    def floats(text: str) -> list[float]:
        return [float(each) for each in text.split(",")]

    def integers(text: str) -> list[int]:
        return [int(each) for each in text.split(",")]

    one_of_each = "and completions of one step; one of each is not tuned"
    parser.add_argument("--rates", type=floats, default=list(rates), help="contenders' learning rates that are tried")
    parser.add_argument("--batches", type=integers, default=list(batches), help=one_of_each)
    parser.add_argument("--seeds", type=int, default=seeds, help=f"runs of each contender (default {seeds})")
    parser.add_argument("--seconds", type=float, default=240.0, help="processor seconds of each model (default 240)")
    parser.add_argument(
        "--tune-seconds", type=float, default=tune_seconds, help=f"of each rate and batch (default {tune_seconds:g})"
    )


def parsed_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parses the command line with ``add_options``; ends with a message where a number is not above 0."""
    options = parser.parse_args()
    for name in ("seeds", "seconds", "tune_seconds", "threads"):
        if getattr(options, name, 1) <= 0:
            parser.error(f"--{name.replace('_', '-')} is above 0")
    return options


def command_of(module: str, options: argparse.Namespace, before: Mapping[str, Sequence[str]] | None = None) -> str:
    """Returns the command that runs the comparison again; ``before`` are its own options."""
    flags = {
        **{name: ",".join(values) for name, values in (before or {}).items()},
        "rates": ",".join(f"{rate:g}" for rate in options.rates),
        "batches": ",".join(map(str, options.batches)),
        "seeds": options.seeds,
        "seconds": f"{options.seconds:g}",
        "tune-seconds": f"{options.tune_seconds:g}",
    }
    return f"python -m {module}" + "".join(f" --{name} {value}" for name, value in flags.items())
