"""Runs nodes under disturbances and prints the results: ``docs/chaos.md``. Ends with 1 if anything was violated.

sudo nice python -m scripts.chaos --nodes 24 --minutes 10 --seed 0 [--json]
sudo nice python -m scripts.chaos --nodes 4 --minutes 0.5 --asleep 10
sudo nice python -m scripts.chaos --nodes 8 --minutes 10 --only "no more memory" --only "lying name servers"
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.chaos.chaos_run import CALM_SECONDS, DIRECTORY_BYTES, ChaosRun
from scripts.chaos.disturbances import Kind
from scripts.chaos.marked_processes import LEARNER, SUPERVISOR, SWARM
from scripts.chaos.process_watch import ORPHAN_SECONDS, median_of, most_of

MIB = 1 << 20
MEDIAN_GROWTH_MIB, MOST_GROWTH_MIB = 4.0, 24.0  # from the middle of a process's life to its end
MEDIAN_DESCRIPTORS, MOST_DESCRIPTORS = 4.0, 24.0


def judge_growth(chaos: ChaosRun) -> list[str]:
    """Returns in words which kind of process grew."""
    found = []
    for kind in (SUPERVISOR, SWARM):
        for name, of, bound_mib, bound in (
            ("median", median_of, MEDIAN_GROWTH_MIB, MEDIAN_DESCRIPTORS),
            ("most", most_of, MOST_GROWTH_MIB, MOST_DESCRIPTORS),
        ):
            grown_bytes, descriptors = of(chaos.growth, kind)
            if grown_bytes > bound_mib * MIB or descriptors > bound:
                found.append(f"{kind}: {name} growth {grown_bytes / MIB:.1f} MiB, {descriptors:.1f} descriptors")
    return found


def figures_of(chaos: ChaosRun) -> list[Figure]:
    orphaned_seconds, directory_mib = chaos.watch.longest_orphan_seconds, chaos.most_directory_bytes / MIB
    figures = [
        Figure("violations", len(chaos.violations), "", "lower", "0"),
        Figure("nodes", chaos.nodes, "", "higher"),
        Figure("disturbances", sum(chaos.done.values()), "", "higher"),
        *(Figure(str(kind), count, "times", "higher") for kind, count in sorted(chaos.done.items())),
        Figure("processes that the kernel ended for memory", chaos.killed_for_memory, "", "lower"),
        Figure("starts of supervisors", sum(node.starts for node in chaos.members), "", "lower"),
        Figure("rounds", sum(node.rounds for node in chaos.members), "", "higher"),
        Figure("checkpoints told", sum(node.events["checkpoint"] for node in chaos.members), "", "higher"),
        Figure("starts of learners that continued", sum(node.events["ready"] for node in chaos.members), "", "higher"),
        Figure("groups of others used", sum(node.foreign_used for node in chaos.members), "", "higher"),
        Figure("disturbances due to be told", chaos.due_to_be_told, "", "higher"),
        Figure("first meeting", chaos.start_seconds, "s", "lower"),
        Figure("one swarm again after calm began", chaos.reconnect_seconds, "s", "lower", f"≤ {CALM_SECONDS:.0f}"),
        Figure("longest without a supervisor", orphaned_seconds, "s", "lower", f"≤ {ORPHAN_SECONDS:.0f}"),
        Figure("largest data directory", directory_mib, "MiB", "lower", f"≤ {DIRECTORY_BYTES / MIB:.0f}"),
    ]
    for kind in (SUPERVISOR, SWARM, LEARNER):
        figures += figures_of_kind(chaos, kind, judged=kind != LEARNER)
    return figures


def figures_of_kind(chaos: ChaosRun, kind: str, *, judged: bool) -> list[Figure]:
    """Returns growth, memory, descriptors and CPU time of one kind of process."""

    def grown(what: str, value: float, unit: str, bound: float) -> Figure:
        return Figure(f"{kind}: growth{what}", value, unit, "lower", f"≤ {bound:g}" if judged else None)

    (median_bytes, median_fds), (most_bytes, most_fds) = median_of(chaos.growth, kind), most_of(chaos.growth, kind)
    return [
        Figure(f"{kind}: processes judged for growth", sum(g.kind == kind for g in chaos.growth), "", "higher"),
        grown(", median", median_bytes / MIB, "MiB", MEDIAN_GROWTH_MIB),
        grown(", most", most_bytes / MIB, "MiB", MOST_GROWTH_MIB),
        grown(" of descriptors, median", median_fds, "", MEDIAN_DESCRIPTORS),
        grown(" of descriptors, most", most_fds, "", MOST_DESCRIPTORS),
        Figure(f"{kind}: most memory", chaos.watch.most_memory_bytes[kind] / MIB, "MiB", "lower"),
        Figure(f"{kind}: most in swap", chaos.watch.most_swapped_bytes[kind] / MIB, "MiB", "higher"),
        Figure(f"{kind}: most descriptors", chaos.watch.most_descriptors[kind], "", "lower"),
        Figure(f"{kind}: CPU a node, of all its starts", chaos.watch.cpu_seconds(kind) / chaos.nodes, "s", "lower"),
    ]


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--nodes", type=int, default=24)
    parser.add_argument("--minutes", type=float, default=10.0, help="of disturbances; start, calm and end come besides")
    parser.add_argument("--asleep", type=float, default=0.0, help="minutes for which all processes are stopped then")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="draw disturbances with this in their name alone; repeatable"
    )
    parser.add_argument("--quiet", action="store_true", help="do not print on standard error what happens")
    arguments = parser.parse_args()
    kinds = frozenset(kind for kind in Kind if any(text in kind for text in arguments.only or [""]))
    if not kinds:
        parser.error(f"--only: one of {', '.join(Kind)}, or a part of it")
    signal.signal(signal.SIGTERM, _interrupt)
    chaos = ChaosRun(arguments.nodes, arguments.seed, aloud=not arguments.quiet, kinds=kinds)
    chaos.run(arguments.minutes, asleep_minutes=arguments.asleep)
    chaos.violations += judge_growth(chaos)
    report("chaos", figures_of(chaos), as_json=arguments.json)
    for text in (*chaos.missing, *chaos.violations):
        print(text, file=sys.stderr)
    sys.exit(1 if chaos.violations else 0)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
