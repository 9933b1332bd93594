"""What the record of a run takes: bytes a round in ``metrics.jsonl``, and memory of the charts once they are full.

    python -m scripts.bench.record METRICS [--tasks 64] [--json]

METRICS is the ``metrics.jsonl`` of any node. Its lines are written again as this version records them. Then its rounds
are added to new charts over and over, until these are as full as they ever are; with ``--tasks`` each round has so many
tasks, which repeat the node's own under other names.
"""

from __future__ import annotations

import argparse
import itertools
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from node.api.history import History
from node.api.record import recorded_line
from node.api.series import MAX_STRETCHES
from node.events import Event, RoundDone, decode_event
from node.supervision.reporting import METRICS_BYTES
from scripts.bench.common.reporting import Figure, add_json_flag, report

FULL_ROUNDS: Final = 2 * MAX_STRETCHES - 1  # the most stretches, of two rounds each, and the newest rounds


def learner_events(metrics: Path) -> list[tuple[bytes, Event]]:
    found = []
    for line in metrics.read_bytes().splitlines():
        try:
            found.append((line, decode_event(line)))
        except msgspec.DecodeError:
            continue  # the supervisor's own, or another version's
    return found


def with_tasks(done: RoundDone, tasks: int) -> RoundDone:
    def repeated(by_task: dict[str, float]) -> dict[str, float]:
        cycled = itertools.islice(itertools.cycle(by_task.items()), tasks)
        return {f"{task} {copy}": value for copy, (task, value) in enumerate(cycled)}

    return msgspec.structs.replace(
        done, reward_by_task=repeated(done.reward_by_task), success_by_task=repeated(done.success_by_task)
    )


def record_figures(rounds: Sequence[RoundDone], tasks: int | None) -> list[Figure]:
    name = "charts of this run" if tasks is None else f"charts of {tasks} tasks"
    history = History()
    tracemalloc.start()
    for done in itertools.islice(itertools.cycle(rounds), FULL_ROUNDS):
        history.add_round(done if tasks is None else with_tasks(done, tasks))
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    began = time.process_time()
    history.answer()
    return [
        Figure(f"{name}: memory", held_bytes / 1e6, "MB", "lower"),
        Figure(f"{name}: an answer, CPU", 1e3 * (time.process_time() - began), "ms", "lower"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metrics", type=Path)
    parser.add_argument("--tasks", type=int, default=64)
    add_json_flag(parser)
    arguments = parser.parse_args()
    events = learner_events(arguments.metrics)
    rounds = [event for _, event in events if isinstance(event, RoundDone)]
    if not rounds:
        parser.error(f"{arguments.metrics} holds no round")
    there = sum(len(line) + 1 for line, _ in events) / len(rounds)
    recorded = sum(len(recorded_line(line, event)) + 1 for line, event in events) / len(rounds)
    figures = [
        Figure("a round in that file", there, "B", "lower"),
        Figure("a round as it is recorded", recorded, "B", "lower"),
        Figure("rounds that fit metrics.jsonl", METRICS_BYTES / recorded, "rounds", "higher"),
        *record_figures(rounds, None),
        *record_figures(rounds, arguments.tasks),
    ]
    report("record", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
