"""Weights as a sum of everybody's sparse updates, against pairs that average: replicas of a language model.

    python -m scripts.experiments.updates [--rounds 600] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

The replicas, texts and measure of ``averaging.py``. A replica adds every update of every other to its weights, in any
order (``language_model/update_sum.py``): without pairs, and without agreement on who is there. Rows with replicas that
leave and come, with updates that are late or lost, and without either; and nodes that learn by reinforcement, as in
``family.py``, measured at the end alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from scripts.experiments import family
from scripts.experiments.averaging import BATCH, EVERY, FAST_RATE, LEARNING_RATE
from scripts.experiments.family import AVERAGED, COMPRESSED, NONE
from scripts.experiments.harness.experiment import Condition, Experiment, over_nodes, seconds_a_run
from scripts.experiments.harness.plans import RunPlan, RunResult
from scripts.experiments.language_model.averaging_run import AWAY_STEPS, BASE_STEPS, ReplicaPlan, ReplicaResult
from scripts.experiments.language_model.update_sum_liar import LIES
from scripts.experiments.models import STUDENT
from scripts.experiments.reports.intervals import Estimate, estimate
from scripts.experiments.reports.report_document import Document, Figure, conditions_table, print_figures, table
from scripts.experiments.reports.success import mean_success

ROUNDS: Final = 600
REINFORCED_ROUNDS: Final = family.ROUNDS
COUNTS: Final = (2, 8)
AWAY: Final = 0.3
LATE: Final = 3
LOST: Final = 0.1
PACE: Final = 0.7  # α = PACE / √live
LONG_PACE: Final = 1.0
BYTES_BAR: Final = 20
SLICE_STRIDE: Final = 50


@dataclass(frozen=True)
class LanguageRow:
    """One condition on the language model; ``base`` names the row that it is compared with."""

    what: str
    replicas: int
    fast: bool
    rule: str
    settings: Mapping[str, object] = field(default_factory=dict)
    away: float = 0.0
    base: str | None = None
    has_bar: bool = False
    seeds_most: int | None = None


def _language_rows() -> dict[str, LanguageRow]:
    rows: dict[str, LanguageRow] = {}
    for count in COUNTS:
        for fast in (False, True):
            prefix = f"{count} replicas, {'fast' if fast else 'slow'}: "
            noloco = LanguageRow("random pairs, dense bf16", count, fast, "noloco")
            step = PACE * count**0.5  # α n
            rate = (1 - 0.3) * step
            total = {"outer_rate": rate, "consensus_rate": rate, "momentum": 0.3}  # equal: all replicas have one φ
            rows[f"{prefix}NoLoCo"] = noloco
            rows[f"{prefix}DiLoCo"] = replace(
                noloco, what=f"η / (1 - μ) = {step:.2g}, the sum's step", rule="diloco", settings=total,
                base=f"{prefix}NoLoCo", seeds_most=1,
            )  # fmt: skip
            rows[f"{prefix}sum"] = replace(
                noloco, what=f"sum of updates, α = {PACE} / √live", rule="update_sum", settings={"pace": PACE,
                "unsent_kept": 0.0}, base=f"{prefix}NoLoCo", has_bar=True,
            )  # fmt: skip
            if count == max(COUNTS):
                rows |= _disturbed_rows(prefix, noloco, rows[f"{prefix}sum"])
    return rows


def _disturbed_rows(prefix: str, noloco: LanguageRow, updates: LanguageRow) -> dict[str, LanguageRow]:
    """Returns the rows with replicas that leave and come, and with updates that are late or lost."""
    gone = f"{prefix}{AWAY:.0%} away, "
    late = {**updates.settings, "latest": LATE}
    rows = {
        f"{gone}NoLoCo": replace(noloco, what="who returns begins from another's weights", away=AWAY),
        f"{gone}sum": replace(updates, what="who returns hears what it missed", away=AWAY, base=f"{gone}NoLoCo"),
        f"{gone}late sum": replace(
            updates, what=f"the same; updates up to {LATE} outer steps late, {LOST:.0%} of them lost and fetched later",
            away=AWAY, settings={**late, "lost": LOST}, base=f"{gone}NoLoCo",
        ),
    }  # fmt: skip
    if updates.fast:
        return rows
    one = replace(updates, has_bar=False, seeds_most=1)
    for lie, times in LIES.items():
        for bounded in (False, True):
            name = f"{prefix}sum, {lie} liar{', bounded' if bounded else ''}"
            rows[name] = replace(
                one, what=f"one of eight sends its update times {times:g}; "
                f"{'each receiver shortens what is longer than usual' if bounded else 'all add it'}",
                rule="sum_with_liar", settings={**updates.settings, "lie": lie, "bounded": bounded},
            )  # fmt: skip
    drifting = {**late, "lie": "huge", "bounded": True}
    for stride in (0, SLICE_STRIDE):
        rows[f"{prefix}late sum, huge liar, bounded{', slices' if stride else ''}"] = replace(
            one, what=f"up to {LATE} outer steps late, so that receivers judge unequally"
            f"{f'; random pairs average every {stride}th weight' if stride else ''}",
            rule="sum_with_liar", settings={**drifting, "stride": stride},
        )  # fmt: skip
    return rows | {
        f"{prefix}late sum": replace(one, what=f"each update up to {LATE} outer steps late", settings=late),
        f"{prefix}sum, {LOST:.0%} lost": replace(
            one, what="never heard, nothing mended", settings={**updates.settings, "lost": LOST, "mended": False}
        ),
        f"{prefix}sum, unsent kept": replace(
            one, what="θ ← φ + e: what is not sent yet stays in one's own weights",
            settings={**updates.settings, "unsent_kept": 1.0},
        ),
    }  # fmt: skip


LANGUAGE: Final = _language_rows()
SUM, SUM_KEPT = f"sum every {family.EVERY} rounds", f"sum every {family.EVERY} rounds, unsent kept"
SUM_LONG: Final = f"{SUM_KEPT}, longer step"
SHARED: Final = {"every_rounds": family.EVERY, "pace": PACE}
OF_FAMILY: Final[Mapping[str, tuple[str, Mapping[str, object]]]] = {
    **{name: (family.CONDITIONS[name][0], {}) for name in (NONE, AVERAGED, COMPRESSED)},
    SUM: (f"sum of updates, α = {PACE} / √live", {"update_sum": {**SHARED, "unsent_kept": 0.0}}),
    SUM_KEPT: ("the same, θ ← φ + e", {"update_sum": {**SHARED, "unsent_kept": 1.0}}),
    SUM_LONG: (
        f"the same, α = {LONG_PACE} / √live",
        {"update_sum": {**SHARED, "pace": LONG_PACE, "unsent_kept": 1.0}},
    ),
}


def conditions() -> list[Condition]:
    language = [Condition(name, row.what, {}, row.seeds_most) for name, row in LANGUAGE.items()]
    return language + [
        Condition(
            name,
            what,
            family.CONDITIONS[name if name in family.CONDITIONS else NONE][1],
            seeds_most=1 if name in (SUM, SUM_KEPT) else None,
            trial=trial,
        )
        for name, (what, trial) in OF_FAMILY.items()
    ]


def plan(condition: Condition, seed: int, rounds: int) -> ReplicaPlan | RunPlan:
    if condition.name in OF_FAMILY:
        return family.plan_measured_at_end(condition, seed, REINFORCED_ROUNDS)
    return language_plan("updates", condition.name, LANGUAGE[condition.name], seed, rounds)


def language_plan(experiment: str, name: str, row: LanguageRow, seed: int, rounds: int) -> ReplicaPlan:
    return ReplicaPlan(
        experiment=experiment,
        condition=name,
        seed=seed,
        rounds=rounds,
        rule=row.rule,
        settings=dict(row.settings),
        replicas=row.replicas,
        batch=BATCH,
        learning_rate=FAST_RATE if row.fast else LEARNING_RATE,
        decays=row.fast,
        every=EVERY,
        late=0,
        away=row.away,
    )


EXPERIMENT: Final[Experiment[Any]] = Experiment(
    name="updates",
    description=(__doc__ or "").partition("\n")[0],
    conditions=conditions(),
    plan=plan,  # of two kinds
    rounds=ROUNDS,
    recipes=(STUDENT,),
)
Language = Mapping[str, Sequence[ReplicaResult]]
Reinforced = Mapping[str, Sequence[RunResult]]


def more_loss(results: Language, name: str, rows: Mapping[str, LanguageRow] = LANGUAGE) -> Estimate | None:
    """Returns by how many per cent the final loss exceeds that of the row's base, over the seeds that both have."""
    base = rows[name].base
    if base is None or base not in results:
        return None
    ours, theirs = ({run.seed: run.levels[-1].loss for run in results[each]} for each in (name, base))
    shared = sorted(ours.keys() & theirs.keys())
    return estimate([100 * (ours[seed] / theirs[seed] - 1) for seed in shared]) if shared else None


def verdict(more: Estimate) -> str:
    if more.mean > 0:
        return "missed"
    return "met by the whole interval" if more.count > 1 and more.high <= 0 else "met by the mean"


def language_table(results: Language, rows: Mapping[str, LanguageRow] = LANGUAGE) -> str:
    header = ["condition", "loss", "against NoLoCo, %", "loss of the mean", "distance", "bytes", "bar ≤ 0"]
    cells = []
    for name, runs in results.items():
        more = more_loss(results, name, rows)
        cells.append(
            [
                name,
                estimate([run.levels[-1].loss for run in runs]).text(4),
                more.text(2) if more is not None else "",
                estimate([run.levels[-1].loss_of_mean for run in runs]).text(4),
                estimate([run.levels[-1].distance for run in runs]).text(3),
                f"{statistics.fmean(run.received_bytes / run.parameters for run in runs):.4f}",
                verdict(more) if more is not None and rows[name].has_bar else "",
            ]
        )
    return table(header, cells)


def final_success(runs: Sequence[RunResult]) -> dict[int, float]:
    """Returns the success of each seed."""
    return {run.seed: mean_success(run, REINFORCED_ROUNDS) for run in runs}


def more_success(results: Reinforced, name: str, base: str) -> Estimate | None:
    """Returns by how much ``name`` succeeds more than ``base``, over the seeds that both have."""
    ours, theirs = (final_success(results.get(each, ())) for each in (name, base))
    shared = sorted(ours.keys() & theirs.keys())
    return estimate([ours[seed] - theirs[seed] for seed in shared]) if shared and name != base else None


def received_kb(runs: Sequence[RunResult]) -> float:
    return statistics.fmean(over_nodes(run, lambda node: node.averaging_bytes / 1e3) for run in runs)


def reinforced_table(results: Reinforced) -> str:
    header = ["condition", f"success after {REINFORCED_ROUNDS} rounds", "more than without averaging",
              "more than NoLoCo", "apart at the end", "kB of averaging"]  # fmt: skip
    cells = []
    for name, runs in results.items():
        more = [more_success(results, name, base) for base in (NONE, AVERAGED)]
        cells.append(
            [
                name,
                estimate(list(final_success(runs).values())).text(),
                *(each.text() if each is not None else "" for each in more),
                estimate([run.apart[-1] for run in runs]).text(4),
                f"{received_kb(runs):.0f}",
            ]
        )
    return table(header, cells)


def write_conditions(
    written: Document, experiment: Experiment[Any], language: Language, reinforced: Reinforced
) -> bool:
    """Writes which conditions were run, and how long their runs took. Returns whether any was."""
    counts = {name: len(runs) for name, runs in [*language.items(), *reinforced.items()]}
    what = {each.name: each.what for each in experiment.conditions if each.name in counts}
    written.section("Conditions", conditions_table(what, counts))
    if counts:
        written.parts.append(seconds_a_run({**language, **reinforced}))
    return bool(counts)


def document(language: Language, reinforced: Reinforced, rounds: int, command: str) -> Document:
    intro = (
        f"Replicas of a language model start from one base (after {BASE_STEPS} steps) and take {rounds} AdamW steps on "
        f"{BATCH} documents of their own each, at a learning rate of {LEARNING_RATE:g}, constant (slow), or "
        f"{FAST_RATE:g}, which decays (fast); every {EVERY} steps an outer step. Loss: nats a token on held-out "
        "documents, mean over the replicas that are there at the end, each with its own weights. Away: a replica that "
        f"leaves stays away {AWAY_STEPS} outer steps on average, and does not learn meanwhile. Bytes: taken in by one "
        "replica for one outer step, a parameter. Reinforcement: nodes as in [family.md](family.md), success "
        f"on held-out prompts after {REINFORCED_ROUNDS} updates each. ± is the 95 % interval over seeds (Student's t), "
        "of differences paired by seed. Pairs alone: [averaging.md](averaging.md)."
    )
    written = Document("updates", "Weights as a sum of sparse updates", intro, command)
    if not write_conditions(written, EXPERIMENT, language, reinforced):
        return written
    if language:
        written.section("Language", language_table(language))
    if reinforced:
        written.section("Reinforcement", reinforced_table(reinforced))
    return written


def figures(language: Language, reinforced: Reinforced) -> list[Figure]:
    found = []
    for name in language:
        more = more_loss(language, name)
        if more is not None:
            bar = "≤ 0" if LANGUAGE[name].has_bar else ""
            found.append(Figure(f"{name} against NoLoCo, final loss", more.mean, "%", "lower", bar))
    for name in (SUM, SUM_KEPT, SUM_LONG):
        more = more_success(reinforced, name, AVERAGED)
        if more is not None:
            found.append(Figure(f"{name} against NoLoCo: more success", more.mean, "", "higher", "≥ 0"))
            fewer = received_kb(reinforced[AVERAGED]) / received_kb(reinforced[name])
            found.append(Figure(f"{name}: fewer bytes than NoLoCo", fewer, "×", "higher", f"≥ {BYTES_BAR}"))
    return found


def run_both(
    experiment: Experiment[Any],
    rows: Mapping[str, LanguageRow],
    document: Callable[[Language, Reinforced, int, str], Document],
    figures: Callable[[Language, Reinforced], list[Figure]],
) -> None:
    """Runs an experiment whose ``rows`` are on the language model, and whose others learn by reinforcement."""
    options = experiment.options()
    results = experiment.results(options)
    language = {name: runs for name, runs in results.items() if name in rows}
    reinforced = {name: runs for name, runs in results.items() if name not in rows}
    path = document(language, reinforced, options.rounds, experiment.command(options)).write(options.docs)
    print_figures(experiment.name, figures(language, reinforced), written=path, as_json=options.json)


def main() -> None:
    run_both(EXPERIMENT, LANGUAGE, document, figures)


if __name__ == "__main__":
    main()
