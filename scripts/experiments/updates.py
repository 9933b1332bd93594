"""Weights as a sum of everybody's sparse updates, against pairs that average: replicas of a language model.

    python -m scripts.experiments.updates [--rounds 600] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

The replicas, texts and measure of ``averaging.py``. A replica adds every update of every other to its weights, in any
order (``language_model/update_sum.py``): without pairs, and without agreement on who is there. Rows with replicas that
leave and come and with updates that are late, and without either.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from scripts.experiments.averaging import BATCH, EVERY, FAST_RATE, LEARNING_RATE, final_loss
from scripts.experiments.harness.experiment import Condition, Experiment, per_cent_more, verdict
from scripts.experiments.language_model.averaging_run import AWAY_STEPS, BASE_STEPS, ReplicaPlan, ReplicaResult
from scripts.experiments.reports.intervals import Estimate, estimate
from scripts.experiments.reports.report_document import Document, table

ROUNDS: Final = 600
COUNTS: Final = (2, 8)
AWAY: Final = 0.3
LATE: Final = 3
LOST: Final = 0.1
PACE: Final = 0.7  # α = PACE / √live


@dataclass(frozen=True)
class Row:
    """One condition; ``base`` names the row that it is compared with."""

    what: str
    replicas: int
    fast: bool
    rule: str
    settings: Mapping[str, object] = field(default_factory=dict)
    away: float = 0.0
    base: str | None = None
    has_bar: bool = False
    seeds_most: int | None = None


def _rows() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for count in COUNTS:
        for fast in (False, True):
            prefix = f"{count} replicas, {'fast' if fast else 'slow'}: "
            noloco = Row("random pairs, dense bf16", count, fast, "noloco")
            step = PACE * count**0.5  # α n
            rate = (1 - 0.3) * step
            total = {"outer_rate": rate, "momentum": 0.3}  # equal: all replicas have one φ
            rows[f"{prefix}NoLoCo"] = noloco
            rows[f"{prefix}DiLoCo"] = replace(
                noloco, what=f"η / (1 - μ) = {step:.2g}, the sum's step", rule="diloco", settings=total,
                base=f"{prefix}NoLoCo", seeds_most=1,
            )  # fmt: skip
            rows[f"{prefix}sum"] = replace(
                noloco, what=f"sum of updates, α = {PACE} / √live", rule="update_sum", settings={"pace": PACE},
                base=f"{prefix}NoLoCo", has_bar=True,
            )  # fmt: skip
            if count == max(COUNTS):
                rows |= _disturbed_rows(prefix, noloco, rows[f"{prefix}sum"])
    return rows


def _disturbed_rows(prefix: str, noloco: Row, updates: Row) -> dict[str, Row]:
    """Returns the rows with replicas that leave and come, with updates that are late."""
    gone = f"{prefix}{AWAY:.0%} away, "
    return {
        f"{gone}NoLoCo": replace(noloco, what="who returns begins from another's weights", away=AWAY),
        f"{gone}sum": replace(updates, what="who returns hears what it missed", away=AWAY, base=f"{gone}NoLoCo"),
        f"{gone}late sum": replace(
            updates, what=f"the same; updates up to {LATE} outer steps late, {LOST:.0%} of them lost and fetched later",
            away=AWAY, settings={**updates.settings, "latest": LATE, "lost": LOST}, base=f"{gone}NoLoCo",
        ),
    }  # fmt: skip


ROWS: Final = _rows()


def plan(condition: Condition, seed: int, rounds: int) -> ReplicaPlan:
    row = ROWS[condition.name]
    return ReplicaPlan(
        experiment="updates",
        condition=condition.name,
        seed=seed,
        rounds=rounds,
        rule=row.rule,
        settings=dict(row.settings),
        replicas=row.replicas,
        batch=BATCH,
        learning_rate=FAST_RATE if row.fast else LEARNING_RATE,
        decays=row.fast,
        every=EVERY,
        away=row.away,
    )


EXPERIMENT: Final = Experiment(
    name="updates",
    description=__doc__,
    conditions=[Condition(name, row.what, {}, row.seeds_most) for name, row in ROWS.items()],
    plan=plan,
    rounds=ROUNDS,
)
Results = Mapping[str, Sequence[ReplicaResult]]


def more_loss(results: Results, name: str) -> Estimate | None:
    """Returns by how many per cent the final loss exceeds that of the row's base, over the seeds that both have."""
    base = ROWS[name].base
    return per_cent_more(results, name, base, final_loss) if base is not None else None


def results_table(results: Results) -> str:
    header = ["condition", "loss", "against NoLoCo, %", "loss of the mean", "distance", "bytes", "bar ≤ 0"]
    cells = []
    for name, runs in results.items():
        more = more_loss(results, name)
        cells.append(
            [
                name,
                estimate([final_loss(run) for run in runs]).text(4),
                more.text(2) if more is not None else "",
                estimate([run.levels[-1].loss_of_mean for run in runs]).text(4),
                estimate([run.levels[-1].distance for run in runs]).text(3),
                f"{statistics.fmean(run.received_bytes / run.parameters for run in runs):.4f}",
                verdict(more, 0.0) if more is not None and ROWS[name].has_bar else "",
            ]
        )
    return table(header, cells)


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"Replicas of a language model start from one base (after {BASE_STEPS} steps) and take {rounds} AdamW steps on "
        f"{BATCH} documents of their own each, at a learning rate of {LEARNING_RATE:g}, constant (slow), or "
        f"{FAST_RATE:g}, which decays (fast); every {EVERY} steps an outer step. Loss: nats a token on held-out "
        "documents, mean over the replicas that are there at the end, each with its own weights. Away: a replica that "
        f"leaves stays away {AWAY_STEPS} outer steps on average, and does not learn meanwhile. Bytes: taken in by one "
        "replica for one outer step, a parameter. ± is the 95 % interval over seeds (Student's t), of differences "
        "paired by seed. Pairs alone: [averaging.md](averaging.md)."
    )
    written = EXPERIMENT.page("Weights as a sum of sparse updates", intro, results, command)
    written.section("Language", results_table(results))
    return written


def main() -> None:
    EXPERIMENT.run(document)


if __name__ == "__main__":
    main()
