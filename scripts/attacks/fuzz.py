"""Gives every decoder that a stranger's bytes reach mutated and extreme inputs, and says what they did to it.

    python -m scripts.attacks.fuzz [--inputs N] [--structured N] [--seed S] [--seconds T] [--only NAME ...] [--json]

Mutated inputs are sound bytes with damage. Structured ones are valid messages whose fields are extreme but legal,
signed where a signature is needed; they are carried on behind the decoder, to what keeps, chooses and shows what was
announced.
An undeclared exception is one that is no ``StarlingError``; each is printed with the input, and with the block from
which ``--block`` draws it again. Time is CPU time of one input, of a slow one the fastest of four runs. Memory is the
peak of what Python and numpy allocate meanwhile, for a share of the inputs and for each slowest one.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from random import Random

from scripts.attacks.fuzzing.blobs import blob_targets
from scripts.attacks.fuzzing.carried import carried_targets
from scripts.attacks.fuzzing.engines import engine_targets, lending_targets
from scripts.attacks.fuzzing.library import library_targets
from scripts.attacks.fuzzing.machines import machine_targets
from scripts.attacks.fuzzing.measuring import InputWatch, Record
from scripts.attacks.fuzzing.messages import message_targets
from scripts.attacks.fuzzing.mutation import mutated
from scripts.attacks.fuzzing.name_servers import name_targets
from scripts.attacks.fuzzing.reaching import reaching_targets
from scripts.attacks.fuzzing.targets import Target, blocks_in
from scripts.bench.common.reporting import Figure, figures_parser, report

BLOCK = 256  # inputs that are drawn from one seed
PROGRESS_SECONDS = 20.0
MIB = 2**20


def all_targets() -> list[Target]:
    return [
        *message_targets(),
        *blob_targets(),
        *library_targets(),
        *reaching_targets(),
        *name_targets(),
        *machine_targets(),
        *carried_targets(),
        *engine_targets(),
        *lending_targets(),
    ]


def blocks(targets: Sequence[Target], mutations: int, structured: int) -> Iterator[tuple[Target, bool, int]]:
    """Yields the target of the next block, whether its inputs are structured, and its number.

    Targets come in turn, by their shares. Mutated and structured inputs end together.
    """
    shares = {False: sum(t.share for t in targets), True: sum(t.structured_share for t in targets)}
    left = {False: mutations * bool(shares[False]), True: structured * bool(shares[True])}
    rates = {kind: left[kind] / shares[kind] if shares[kind] else 0.0 for kind in left}
    slower = {kind: rate / max(rates.values()) for kind, rate in rates.items()}
    turn = 0
    while max(left.values()) > 0:
        turn += 1
        for target in targets:
            for kind, share in ((False, target.share), (True, target.structured_share)):
                for part in range(blocks_in(share * slower[kind], turn)):
                    if left[kind] > 0:
                        left[kind] -= BLOCK
                        yield target, kind, turn * 100 + part


def give_block(watch: InputWatch, target: Target, is_structured: bool, seed: int, number: int) -> None:
    kind = "structured" if is_structured else "mutated"
    block = f"{kind}/{seed}/{number}"
    random = Random(f"{target.name}/{block}")
    for _ in range(BLOCK):
        raw = target.make(random) if is_structured and target.make is not None else mutated(random, target.examples)
        watch.give(f"{target.name}, {kind}", target.prepare, raw, block)


def campaign(
    targets: Sequence[Target], mutations: int, structured: int, *, seed: int, seconds: float, progress: bool
) -> InputWatch:
    """Gives so many inputs, or as many as there is time for."""
    watch = InputWatch()
    began = said = time.monotonic()
    for target, is_structured, number in blocks(targets, mutations, structured):
        give_block(watch, target, is_structured, seed, number)
        now = time.monotonic()
        if now - began > seconds:
            break
        if progress and now - said > PROGRESS_SECONDS:
            said = now
            inputs = sum(record.inputs for record in watch.records.values())
            undeclared = sum(record.undeclared for record in watch.records.values())
            print(
                f"{now - began:6.0f} s: {inputs:,} inputs, {inputs / (now - began):,.0f}/s, {undeclared} undeclared",
                file=sys.stderr,
                flush=True,
            )
    return watch


def figures(watch: InputWatch) -> list[Figure]:
    records = watch.records
    slowest = max(records.values(), key=lambda record: record.slowest_seconds)

    def run(kind: str) -> int:
        return sum(record.inputs for name, record in records.items() if name.endswith(kind))

    cpu_seconds = sum(record.cpu_seconds for record in records.values())
    return [
        Figure("mutated inputs run", run("mutated"), "inputs", "higher", "10 million"),
        Figure("structured inputs run", run("structured"), "inputs", "higher", "1 million"),
        Figure("undeclared exceptions", sum(r.undeclared for r in records.values()), "", "lower", "0"),
        Figure("slowest input", slowest.slowest_seconds * 1e3, "ms", "lower", "≤ 20"),
        Figure("largest peak", max(r.largest_bytes for r in records.values()) / MIB, "MiB", "lower", "≤ 32"),
        Figure("inputs of which memory was measured", sum(r.traced for r in records.values()), "inputs", "higher"),
        Figure(
            "inputs a second of CPU", sum(r.inputs for r in records.values()) / max(cpu_seconds, 1e-9), "/s", "higher"
        ),
    ]


def print_records(watch: InputWatch) -> None:
    print(f"{'target':44} {'inputs':>10} {'refused':>8} {'µs each':>8} {'slowest ms':>10} {'peak MiB':>8}  undeclared")
    for name, record in sorted(watch.records.items(), key=lambda each: -each[1].slowest_seconds):
        print(_line(name, record))
    for record in watch.records.values():
        for fault in record.faults[:3]:
            print(f"UNDECLARED {fault.target} --block {fault.block}: {fault.error[:300]}\n  {fault.raw[:200].hex()}")


def _line(name: str, record: Record) -> str:
    each = record.cpu_seconds / record.inputs * 1e6
    return (
        f"{name:44} {record.inputs:10,} {record.refused / record.inputs:8.1%} {each:8.0f} "
        f"{record.slowest_seconds * 1e3:10.2f} {record.largest_bytes / MIB:8.2f}  {record.undeclared or ''} "
        f"{record.slowest_block}"
    )


def main() -> int:
    parser = figures_parser(__doc__)
    parser.add_argument("--inputs", type=int, default=200_000, help="mutated ones")
    parser.add_argument("--structured", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="targets whose name begins so")
    parser.add_argument("--block", help="draws one block again, as it was printed; needs --only")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # the library logs every malformed message
    targets = [t for t in all_targets() if not options.only or t.name.startswith(tuple(options.only))]
    gc.freeze()
    if options.block:
        kind, seed, number = options.block.split("/")
        watch = InputWatch()
        for target in targets:
            give_block(watch, target, kind == "structured", int(seed), int(number))
    else:
        limits = {"seed": options.seed, "seconds": options.seconds, "progress": not options.json}
        watch = campaign(targets, options.inputs, options.structured, **limits)
    if not options.json:
        print_records(watch)
    report("fuzz", figures(watch), as_json=options.json)
    return int(any(record.undeclared for record in watch.records.values()))


if __name__ == "__main__":
    sys.exit(main())
