"""One exchange of 10 M parameters over links of 50 Mbit/s each way, against hivemind's DecentralizedAverager.

Every peer has a network namespace of its own (``slow_network.py``: Linux, root). Ours are real swarm processes over
libp2p; a process per peer does the learner's part, by either rule of the node (``node.averaging.rules``): it encodes,
requests an exchange, decodes, and takes the outer step. Our peers average in pairs, as in NoLoCo; hivemind averages
all N in one group, which is its purpose, without compression and with its Float16Compression.

Seconds run from the start signal until the last peer has its result, median of ``--rounds``; bytes are those that the
peers' interfaces sent in that time, per peer; processor time is that of all processes of a peer. All peers share the
processors of one machine: on two cores, eight peers take at least four times the processor time of one. The results are
checked afterwards. The hash of each of ours must be that of the formula on the two blobs; any difference ends the
benchmark. hivemind's results are compared with the mean of all.

    sudo .venv/bin/python -m scripts.bench.averaging_exchange [--against hivemind] [--json]

``--against hivemind`` makes a virtual environment, ``.venv-hivemind`` (1.3 GB), the first time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Final

from node.averaging.rules import AveragingRule, CompressedRule, DenseRule
from scripts.bench.common.averaging_ours import starling_rounds
from scripts.bench.common.averaging_round import AveragingRound
from scripts.bench.common.processes import ensure_compute_environment
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.common.slow_network import NoSlowNetworkError, slow_network
from scripts.bench.contenders.averaging_contender import hivemind_rounds
from scripts.bench.contenders.environments import HIVEMIND_PYTHON, prepare

OURS: Final[dict[str, AveragingRule]] = {"dense bf16": DenseRule(), "compressed": CompressedRule()}
THEIRS: Final = ("hivemind float32", "hivemind float16")

Measured = dict[tuple[str, int], list[AveragingRound]]  # by contender and N


def measure(arguments: argparse.Namespace) -> Measured:
    measured: Measured = {}
    for count in arguments.peers:
        with slow_network(count, arguments.megabits) as places, tempfile.TemporaryDirectory() as folder:
            for name, rule in OURS.items():
                directory = Path(folder) / name.split()[0]
                measured[name, count] = starling_rounds(places, rule, arguments.parameters, arguments.rounds, directory)
            for name in THEIRS if arguments.against else ():
                measured[name, count] = hivemind_rounds(places, arguments.parameters, name.split()[1], arguments.rounds)
    return measured


def seconds_of(rounds: list[AveragingRound]) -> float:
    return statistics.median(r.seconds for r in rounds)


def bytes_of(rounds: list[AveragingRound]) -> float:
    return statistics.median(r.sent_bytes for r in rounds)


def figures_of(measured: Measured, arguments: argparse.Namespace) -> list[Figure]:
    figures = []
    for (name, count), rounds in measured.items():
        figures.append(Figure(f"{name}, N = {count}", seconds_of(rounds), "s", "lower"))
        figures.append(Figure(f"{name}, N = {count}: sent by a peer", bytes_of(rounds) / 1e6, "MB", "lower"))
        taken = statistics.median(r.processor_seconds for r in rounds)
        figures.append(Figure(f"{name}, N = {count}: processor time of a peer", taken, "s", "lower"))
        if name in THEIRS:
            right = statistics.fmean(r.correct_share for r in rounds)
            figures.append(Figure(f"{name}, N = {count}: peers with the right mean", right, "share", "higher"))
    most = max(arguments.peers)
    dense = {count: seconds_of(measured["dense bf16", count]) for count in arguments.peers}
    limit_seconds = 16 * arguments.parameters / (arguments.megabits * 1e6)
    limit = Figure(
        "dense bf16: N of all, against its bits at the link's rate", dense[most] / limit_seconds, "×", "lower"
    )
    flat = Figure(
        "dense bf16: slowest N against fastest", max(dense.values()) / min(dense.values()), "×", "lower", "≤ 1.2"
    )
    return [*figures, limit, flat, *(ratios(measured, most) if arguments.against else ())]


def ratios(measured: Measured, count: int) -> list[Figure]:
    figures = []
    for theirs in THEIRS:
        for ours, sooner, fewer in (("dense bf16", "≥ 2", None), ("compressed", "≥ 30", "≥ 50")):
            mine, other = measured[ours, count], measured[theirs, count]
            name = f"{ours} against {theirs}, N = {count}"
            figures.append(Figure(f"{name}: sooner", seconds_of(other) / seconds_of(mine), "×", "higher", sooner))
            figures.append(Figure(f"{name}: fewer bytes", bytes_of(other) / bytes_of(mine), "×", "higher", fewer))
    return figures


def main() -> None:
    ensure_compute_environment()
    parser = figures_parser(__doc__)
    parser.add_argument("--against", choices=["hivemind"], help="also measure hivemind, in its own environment")
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--megabits", type=float, default=50.0, help="a second, each way")
    arguments = parser.parse_args()
    if arguments.against:
        prepare(HIVEMIND_PYTHON)
    try:
        measured = measure(arguments)
    except NoSlowNetworkError as error:
        raise SystemExit(f"this machine cannot make the slow network: {error}") from error
    report("averaging_exchange", figures_of(measured, arguments), as_json=arguments.json)


if __name__ == "__main__":
    main()
