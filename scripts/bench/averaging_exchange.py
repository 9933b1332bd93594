"""One exchange of 10 M parameters over links of 50 Mbit/s each way, against hivemind's DecentralizedAverager.

Every peer has a network namespace of its own (``slow_network.py``: Linux, root). Ours are real swarm processes over
libp2p; a thread for each peer does what its learner would, by either rule of the node (``node.averaging.rules``):
encodes, asks for an exchange, decodes, takes the outer step. Peers of ours average in pairs, as NoLoCo has it; hivemind
averages all N in one group, which is what it was built for, with no compression and with its Float16Compression.

Seconds are from the word "go" until the last peer has its result, median of ``--rounds``; bytes those that the peers'
interfaces sent meanwhile, per peer. Every result of ours is checked, by hash, to be that of the formula on the two
blobs; any difference ends the benchmark. hivemind's are compared with the mean of all.

    sudo python scripts/bench/averaging_exchange.py [--against hivemind] [--json]

``--against hivemind`` makes an environment of its own, ``.venv-hivemind`` (1.3 GB), the first time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).resolve().parent)]

from node.compute_environment import compute_environment  # noqa: E402

os.environ |= compute_environment(os.environ)  # as a node starts its learner; read when torch is imported

from averaging_contender import hivemind_rounds  # noqa: E402
from averaging_ours import starling_rounds  # noqa: E402
from averaging_round import Round  # noqa: E402
from hivemind_environment import prepare_hivemind  # noqa: E402
from report import Figure, add_json_flag, report  # noqa: E402
from slow_network import RefusedError, slow_network  # noqa: E402

from node.averaging.rules import AveragingRule, CompressedRule, DenseRule  # noqa: E402

OURS: Final[dict[str, AveragingRule]] = {"dense bf16": DenseRule(), "compressed": CompressedRule()}
THEIRS: Final = ("hivemind float32", "hivemind float16")

Measured = dict[tuple[str, int], list[Round]]  # by contender and N


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


def seconds_of(rounds: list[Round]) -> float:
    return statistics.median(r.seconds for r in rounds)


def bytes_of(rounds: list[Round]) -> float:
    return statistics.median(r.sent_bytes for r in rounds)


def figures_of(measured: Measured, arguments: argparse.Namespace) -> list[Figure]:
    figures = []
    for (name, count), rounds in measured.items():
        figures.append(Figure(f"{name}, N = {count}", seconds_of(rounds), "s", "lower"))
        figures.append(Figure(f"{name}, N = {count}: sent by a peer", bytes_of(rounds) / 1e6, "MB", "lower"))
        if name in THEIRS:
            right = statistics.fmean(r.right_share for r in rounds)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=["hivemind"], help="also measure hivemind, in an environment of its own")
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--megabits", type=float, default=50.0, help="a second, each way")
    add_json_flag(parser)
    arguments = parser.parse_args()
    if arguments.against:
        prepare_hivemind()
    try:
        measured = measure(arguments)
    except RefusedError as error:
        raise SystemExit(f"no slow network can be made here: {error}") from error
    report("averaging", figures_of(measured, arguments), as_json=arguments.json)


if __name__ == "__main__":
    main()
