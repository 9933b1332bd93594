"""Sparse updates: what becomes of what an update has no room for, and how much room it should have.

    python -m scripts.experiments.unsent [--rounds 600] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

Replicas of a language model as in ``averaging.py``, and nodes that learn by reinforcement as in ``family.py``, that
average by pairs in few bytes (``node.averaging.compressed``) or as a sum of updates (``update_sum.py``). What an update
has no room for, e, is undone until it is sent, θ ← φ, or stays in a replica's own weights, θ ← φ + κ e; an update has
64 elements of 4096, or more.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, Final

from node.averaging.rules import COMPRESSED as COMPRESSED_CONSTANTS
from scripts.experiments import family
from scripts.experiments.averaging import BATCH, EVERY, FAST_RATE, LEARNING_RATE
from scripts.experiments.family import AVERAGED, COMPRESSED, NONE
from scripts.experiments.harness.experiment import Condition, Experiment
from scripts.experiments.harness.plans import RunPlan
from scripts.experiments.language_model.averaging_run import BASE_STEPS, ReplicaPlan
from scripts.experiments.models import STUDENT
from scripts.experiments.reports.report_document import Document, Figure, table
from scripts.experiments.updates import (
    BYTES_BAR,
    REINFORCED_ROUNDS,
    ROUNDS,
    Language,
    LanguageRow,
    Reinforced,
    language_plan,
    language_table,
    more_loss,
    more_success,
    received_kb,
    reinforced_table,
    run_both,
    write_conditions,
)

MORE: Final = (192, 256, 352)  # elements of 4096
LONGER: Final = 1.4  # α: what dense averaging applies of an update in all, η / (1 - μ)
BUDGET: Final = 0.1  # bytes a parameter and outer step: 1/20 of dense bf16
KEPT: Final = "unsent kept"
UNDONE: Final[Mapping[str, float]] = {"unsent_kept": 0.0, "outer_rate": 1.0}
KEPT_WHOLE: Final[Mapping[str, float]] = {"unsent_kept": 1.0, "outer_rate": 1.0}
PAIRS: Final[Mapping[str, tuple[str, Mapping[str, float]]]] = {
    "pairs, unsent undone": ("θ ← φ, 64 of 4096: a node before", {"kept": 64, **UNDONE}),
    f"pairs, {KEPT}": ("θ ← φ + e, 64 of 4096", {"kept": 64, **KEPT_WHOLE}),
    "pairs, unsent undone, 256 of 4096": ("θ ← φ", {"kept": 256, **UNDONE}),
    **{f"pairs, {KEPT}, {kept} of 4096": ("θ ← φ + e", {"kept": kept, **KEPT_WHOLE}) for kept in MORE},
    **{
        f"pairs, {KEPT}, longer step, {kept} of 4096": (
            f"θ ← φ + e, α = {LONGER}" + (": a node from now on" if kept == COMPRESSED_CONSTANTS.kept else ""),
            {"kept": kept, **KEPT_WHOLE, "outer_rate": LONGER},
        )
        for kept in (256, 352)
    },
}
SUMS: Final[Mapping[str, tuple[str, Mapping[str, float]]]] = {
    f"sum, unsent {'kept' if kappa else 'undone'}": (
        f"α = 1 / √live; as many elements as {BUDGET} bytes a parameter buy a replica at an outer step",
        {"pace": 1.0, "budget": BUDGET, "unsent_kept": kappa},
    )
    for kappa in (0.0, 1.0)
}


def _language_rows() -> dict[str, LanguageRow]:
    rows: dict[str, LanguageRow] = {}
    for count, rules in ((8, {"compressed": PAIRS, "update_sum": SUMS}), (2, {"update_sum": SUMS})):
        for fast in (False, True):
            prefix = f"{count} replicas, {'fast' if fast else 'slow'}: "
            rows[f"{prefix}NoLoCo"] = LanguageRow("random pairs, dense bf16", count, fast, "noloco")
            for rule, of_rule in rules.items():
                for name, (what, settings) in of_rule.items():
                    rows[prefix + name] = LanguageRow(
                        what, count, fast, rule, settings, base=f"{prefix}NoLoCo", has_bar=rule == "update_sum"
                    )
    return rows


LANGUAGE: Final = _language_rows()


def _reinforced_rows() -> dict[str, Condition]:
    settings = {name: settings for name, (_, settings) in family.CONDITIONS.items()}
    found = [Condition(name, family.CONDITIONS[name][0], settings[name]) for name in (NONE, AVERAGED)]
    for name, (what, of_rule) in PAIRS.items():
        found.append(Condition(name, what, settings[COMPRESSED], trial={"compressed": of_rule}))
    for name, (what, of_rule) in SUMS.items():
        shared = {"every_rounds": family.EVERY, **of_rule}
        found.append(Condition(name, what, settings[NONE], trial={"update_sum": shared}))
    return {condition.name: condition for condition in found}


REINFORCED: Final = _reinforced_rows()


def plan(condition: Condition, seed: int, rounds: int) -> ReplicaPlan | RunPlan:
    if condition.name in REINFORCED:
        return family.plan_measured_at_end(condition, seed, REINFORCED_ROUNDS)
    return language_plan("unsent", condition.name, LANGUAGE[condition.name], seed, rounds)


EXPERIMENT: Final[Experiment[Any]] = Experiment(
    name="unsent",
    description=(__doc__ or "").partition("\n")[0],
    conditions=[*(Condition(name, row.what, {}) for name, row in LANGUAGE.items()), *REINFORCED.values()],
    plan=plan,
    rounds=ROUNDS,
    recipes=(STUDENT,),
)


def course_table(results: Language) -> str:
    """The loss in the course of a run, with own weights and with the mean of all."""
    steps = [level.step for level in next(iter(results.values()))[0].levels[1:]]
    cells = []
    for name, runs in results.items():
        levels = [[run.levels[1 + index] for run in runs] for index in range(len(steps))]
        own, mean = (
            [statistics.fmean(getattr(each, field) for each in at) for at in levels]
            for field in ("loss", "loss_of_mean")
        )
        cells.append([name, *(f"{a:.3f} ({b:.3f})" for a, b in zip(own[::3], mean[::3], strict=True))])
    return table(["loss (of the mean) after step", *map(str, steps[::3])], cells)


def document(language: Language, reinforced: Reinforced, rounds: int, command: str) -> Document:
    intro = (
        f"Language: replicas start from one base (after {BASE_STEPS} steps) and take {rounds} AdamW steps on {BATCH} "
        f"documents of their own each, at a learning rate of {LEARNING_RATE:g}, constant (slow), or {FAST_RATE:g}, "
        f"which decays (fast); every {EVERY} steps an outer step. Loss: nats a token on held-out documents, mean over "
        "the replicas, each with its own weights. Bytes: taken in by one replica for one outer step, a parameter. "
        "Reinforcement: nodes as in [family.md](family.md), success on held-out prompts after "
        f"{REINFORCED_ROUNDS} updates each. φ: what all that was sent adds up to; e: what was not sent yet; θ: what a "
        "replica goes on from. ± is the 95 % interval over seeds (Student's t), of differences paired by seed."
    )
    written = Document("unsent", "What an update has no room for", intro, command)
    if not write_conditions(written, EXPERIMENT, language, reinforced):
        return written
    if reinforced:
        written.section("Reinforcement", reinforced_table(reinforced))
    if language:
        written.section("Language", language_table(language, LANGUAGE))
        written.section("In the course of a run", course_table(language))
    return written


def figures(language: Language, reinforced: Reinforced) -> list[Figure]:
    found = []
    for name in reinforced:
        for base in (NONE, AVERAGED):
            more = more_success(reinforced, name, base)
            if more is not None and name not in (NONE, AVERAGED):
                bar = "≥ 0" if base == AVERAGED else ""
                found.append(Figure(f"{name} against {base}: more success", more.mean, "", "higher", bar))
        if name not in (NONE, AVERAGED) and AVERAGED in reinforced:
            fewer = received_kb(reinforced[AVERAGED]) / received_kb(reinforced[name])
            found.append(Figure(f"{name}: fewer bytes than dense", fewer, "×", "higher", f"≥ {BYTES_BAR}"))
    for name in language:
        more = more_loss(language, name, LANGUAGE)
        if more is not None:
            bar = "≤ 0" if LANGUAGE[name].has_bar else ""
            found.append(Figure(f"{name} against NoLoCo, final loss", more.mean, "%", "lower", bar))
    return found


def main() -> None:
    run_both(EXPERIMENT, LANGUAGE, document, figures)


if __name__ == "__main__":
    main()
