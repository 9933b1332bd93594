"""One language model in three stages: what fewer bytes between them cost in loss.

    python -m scripts.experiments.stages [--rounds 300] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

The language model and texts of ``averaging.py``, in three stages: embedding and first layer, second layer, head. Its
hidden states, and their gradients on the way back, cross both cuts in the condition's way
(``harness/crossings.py``). It goes on from a base that was trained whole, as a model does that a person brings, or is
in stages from its first step, in a subspace that it is trained for (``language_model/subspace_weights.py``).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from scripts.bench.common.reporting import Figure
from scripts.experiments.harness.crossings import Crosses
from scripts.experiments.harness.experiment import Condition, Experiment, curve, per_cent_more, verdict
from scripts.experiments.language_model.averaging_run import BASE_BATCH, BASE_RATE, BASE_STEPS
from scripts.experiments.language_model.replicas import WIDTH
from scripts.experiments.language_model.stages_run import StagesPlan, StagesResult
from scripts.experiments.reports.intervals import estimate
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import Document, table

ROUNDS: Final = 300
WIDE: Final = 4 * WIDTH
LEARNING_RATE: Final = 5e-4
BAR: Final = 1.0  # per cent
MOST_SHARE: Final = 1 / 8  # of the bytes of bfloat16
SENT_EXACTLY: Final = Crosses("all")  # bfloat16: what the bytes are compared with


@dataclass(frozen=True)
class Row:
    what: str
    crosses: Crosses
    base: str | None  # that it is compared with
    width: int = WIDTH
    from_base: bool = True
    in_subspace: bool = False
    seeds_most: int | None = None


EXACT: Final = Row("as on one machine, float32", Crosses("exact"), None)
WAYS: Final[Mapping[str, tuple[str, Crosses]]] = {
    "8 bits": ("each number in 8 bits, a scale a token", Crosses("all", bits=8)),
    "k 1/4": ("the first quarter of the principal directions, in bfloat16", Crosses("subspace", 1 / 4)),
    "k 1/16": ("a sixteenth", Crosses("subspace", 1 / 16)),
    "k 1/8": ("an eighth", Crosses("subspace", 1 / 8)),
    "6 bits": ("in 6 bits, a scale a token", Crosses("all", bits=6)),
    "4 bits": ("in 4 bits, a scale for every 16", Crosses("all", bits=4, block=16)),
    "2 bits": ("in 2 bits, a scale for every 16", Crosses("all", bits=2, block=16)),
    "k 1/2 in 8 bits": ("half of the directions, in 8 bits", Crosses("subspace", 1 / 2, bits=8)),
    "k 1/4 in 8 bits": ("a quarter, in 8 bits", Crosses("subspace", 1 / 4, bits=8)),
    "top 1/16": ("the largest sixteenth of each token", Crosses("top-k", 1 / 16)),
    "top 1/16, feedback": ("what is left out is added to the next pass", Crosses("top-k", 1 / 16, feedback=True)),
}
ONCE: Final = ("2 bits", "k 1/2 in 8 bits", "k 1/4 in 8 bits", "top 1/16", "top 1/16, feedback")  # with one seed
WIDE_WAYS: Final[Mapping[str, tuple[str, Crosses, int | None]]] = {  # with so many seeds
    "k 1/4": (*WAYS["k 1/4"], 1),
    "k 1/16": (*WAYS["k 1/16"], 1),
    "k 9/32 in 6 bits": (
        "nine of 32 directions, in 6 bits, a scale for every 24",
        Crosses("subspace", 9 / 32, bits=6, block=24),
        None,
    ),
}
ANEW, WIDE_PREFIX = "anew: ", f"{WIDE} wide: "


def _rows() -> dict[str, Row]:
    rows = {"exact": EXACT} | {
        name: Row(what, crosses, "exact", seeds_most=1 if name in ONCE else None)
        for name, (what, crosses) in WAYS.items()
    }
    anew = f"{ANEW}exact"
    rows[anew] = replace(EXACT, what="from the first step, as on one machine", from_base=False)
    for part in (4, 8, 16):
        what = f"from the first step in a fixed subspace of 1/{part}, nothing lost where it crosses"
        rows[f"{ANEW}in 1/{part}"] = Row(what, Crosses("subspace", 1 / part), anew, from_base=False, in_subspace=True)
    wide = f"{WIDE_PREFIX}exact"
    rows[wide] = replace(EXACT, width=WIDE)
    for name, (what, crosses, seeds_most) in WIDE_WAYS.items():
        rows[WIDE_PREFIX + name] = Row(what, crosses, wide, WIDE, seeds_most=seeds_most)
    return rows


ROWS: Final = _rows()


def plan(condition: Condition, seed: int, rounds: int) -> StagesPlan:
    row = ROWS[condition.name]
    return StagesPlan(
        experiment="stages",
        condition=condition.name,
        seed=seed,
        rounds=rounds,
        batch=BASE_BATCH,
        learning_rate=LEARNING_RATE if row.from_base else BASE_RATE,
        width=row.width,
        from_base=row.from_base,
        crosses=row.crosses,
        in_subspace=row.in_subspace,
    )


EXPERIMENT: Final = Experiment(
    name="stages",
    description=__doc__,
    conditions=[Condition(name, row.what, {}, row.seeds_most) for name, row in ROWS.items()],
    plan=plan,
    rounds=ROUNDS,
)
Results = Mapping[str, Sequence[StagesResult]]


def loss(run: StagesResult) -> float:
    return run.levels[-1].loss


def whole_loss(run: StagesResult) -> float:
    return run.levels[-1].whole_loss


def share_of_bytes(runs: Sequence[StagesResult]) -> float:
    """Returns the bytes at a cut, there and back, against bfloat16."""
    return statistics.fmean(run.token_bytes for run in runs) / (2 * SENT_EXACTLY.token_bytes(runs[0].plan.width))


def results_table(results: Results) -> str:
    header = [
        "condition",
        "bytes",
        "loss in stages",
        "%",
        "loss whole",
        "%",
        f"bar ≤ {BAR:g} % in stages",
        "bytes ≤ 1/8",
    ]
    cells = []
    for name, runs in results.items():
        base = ROWS[name].base
        more = None if base is None else per_cent_more(results, name, base, loss)
        more_whole = None if base is None else per_cent_more(results, name, base, whole_loss)
        sent = share_of_bytes(runs)
        cells.append(
            [
                name,
                "" if base is None else f"{sent:.3f}",
                estimate([loss(run) for run in runs]).text(4),
                "" if more is None else more.text(2),
                estimate([whole_loss(run) for run in runs]).text(4),
                "" if more_whole is None else more_whole.text(2),
                "" if more is None else verdict(more, BAR),
                "" if base is None else "met" if sent <= MOST_SHARE else "missed",
            ]
        )
    return table(header, cells)


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"A language model of two layers, {WIDTH} or {WIDE} wide, in three stages, takes {rounds} AdamW steps on "
        f"{BASE_BATCH} documents each: from a base that {BASE_STEPS} steps made whole, at a learning rate of "
        f"{LEARNING_RATE:g}, or “anew”, from its first step, at {BASE_RATE:g}. Hidden states cross both cuts in the "
        "condition's way, and so do gradients on their way back. Loss: nats a token on held-out documents, in stages, "
        "as it is trained, and whole, the same weights without cuts, as whoever gets the model uses it. Bytes: at one "
        "cut, there and back, against bfloat16, with every message that a subspace needs. ± is the 95 % interval over "
        "seeds (Student's t), of differences paired by seed. What the bytes mean on links: [stages](../stages.md)."
    )
    written = EXPERIMENT.page("Fewer bytes between the stages of a model", intro, results, command)
    written.section("Loss", results_table(results))
    lines = [
        curve(name, [x.step for x in runs[0].levels], [[x.loss for x in run.levels] for run in runs])
        for name, runs in results.items()
        if ROWS[name].width == WIDTH and ROWS[name].from_base and ROWS[name].crosses.kind != "top-k"
    ]
    title = f"Held-out loss in stages, {WIDTH} wide, from the base"
    written.plot("", title, line_plot(title, lines, x_label="steps", y_label="nats a token"))
    return written


def figures(results: Results, rounds: int) -> list[Figure]:
    found = []
    for name, runs in results.items():
        base = ROWS[name].base
        more = None if base is None else per_cent_more(results, name, base, loss)
        if more is not None:
            found.append(Figure(f"{name}: more loss in stages", more.mean, "%", "lower", f"≤ {BAR:g}"))
            found.append(
                Figure(f"{name}: bytes against bfloat16", share_of_bytes(runs), "", "lower", f"≤ {MOST_SHARE}")
            )
    return found


def main() -> None:
    EXPERIMENT.run(document, figures)


if __name__ == "__main__":
    main()
