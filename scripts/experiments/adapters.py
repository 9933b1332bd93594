"""Four nodes with one model that learn adapters by reinforcement: what averaging brings them, and whose A.

    python -m scripts.experiments.adapters [--rounds 80] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

Nodes, skills and averaging are those of ``family.py``, measured at the end. An adapter adds s B A to a matrix; nodes
average A and B each for itself, and the mean of the products is the product of the means only where the A are equal.
Controls, with and without averaging: all weights; whole weights of those matrices alone that an adapter adapts; and
adapters with the head trained beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import structs

from scripts.experiments import family
from scripts.experiments.family import AVERAGED, EVERY, LEARNER, LEARNING_RATE, NODES, NONE, ROUNDS
from scripts.experiments.harness.experiment import (
    Condition,
    Experiment,
    over_nodes,
    over_seeds,
    seconds_a_run,
)
from scripts.experiments.harness.plans import RunPlan, RunResult
from scripts.experiments.harness.skills import SKILLS
from scripts.experiments.models import STUDENT
from scripts.experiments.reports.intervals import Estimate, estimate
from scripts.experiments.reports.report_document import Document, Figure, conditions_table, table
from scripts.experiments.reports.success import mean_success

RANK: Final = 8
HIGH_RANK: Final = 96  # that of the matrices themselves
RATE: Final = 10 * LEARNING_RATE  # as an automatic learning rate is ten times that of whole weights
HIGH_RANK_RATE: Final = 1e-3
BAR: Final = 0.02  # what adapters may gain less than whole weights
Settings = Mapping[str, Mapping[str, object]]
AVERAGING: Final[Settings] = {"averaging": {"every_rounds": EVERY, "encoding": "dense-bf16"}}
ALONE, SHARED = "adapters, no averaging", "adapters, averaging"
MATRICES_ALONE, MATRICES = "matrices whole, no averaging", "matrices whole, averaging"
HEAD_ALONE, HEAD = "adapters and the head, no averaging", "adapters and the head, averaging"
OWN: Final = "adapters, A of each node's own, averaging"
FROZEN_ALONE, FROZEN = "adapters, A frozen, no averaging", "adapters, A frozen, averaging"
FAST_HEAD_ALONE: Final = "adapters and the head, fast, no averaging"
HIGH_RANK_ALONE, SLOW_ALONE = "adapters of full rank, no averaging", "adapters, slow, no averaging"
SLOW_HEAD: Final = ("head at a tenth of the rate",)  # that is LEARNING_RATE


def adapted(learning_rate: float = RATE, rank: int = RANK) -> Settings:
    return {"learner": {**LEARNER, "learning_rate": learning_rate}, "policy": {"adapter_rank": rank}}


WHOLE: Final[Settings] = family.CONDITIONS[NONE][1]
# name: what it is, settings, what nodes do not do themselves, seeds at most
CONDITIONS: Final[Mapping[str, tuple[str, Settings, Mapping[str, object], int | None]]] = {
    NONE: ("all weights, each node alone", WHOLE, {}, None),
    AVERAGED: ("all weights, NoLoCo's outer step now and then", family.CONDITIONS[AVERAGED][1], {}, None),
    MATRICES_ALONE: (
        "control: whole, but only what adapters adapt: not the head, which is the embedding, and no norm",
        WHOLE,
        {"trained": "matrices"},
        None,
    ),
    MATRICES: ("the same", {**WHOLE, **AVERAGING}, {"trained": "matrices"}, None),
    ALONE: (f"rank {RANK}, learning rate {RATE:g}, each node alone; A is the family's", adapted(), {}, None),
    SHARED: (
        "the same outer step on A and B, each for itself; A is the family's at first, as nodes have it",
        {**adapted(), **AVERAGING},
        {},
        None,
    ),
    HEAD_ALONE: (
        f"control: the head is trained beside the adapters, at {LEARNING_RATE:g}, as whole weights are",
        adapted(),
        {"trained": "head"},
        None,
    ),
    HEAD: ("the same", {**adapted(), **AVERAGING}, {"trained": "head"}, None),
    OWN: (
        "A is drawn from each node's name at first",
        {**adapted(), **AVERAGING},
        {"first_factors": "own"},
        1,
    ),
    FROZEN_ALONE: ("B alone is trained, each node alone", adapted(), {"first_factors": "frozen"}, 1),
    FROZEN: ("B alone is trained and averaged", {**adapted(), **AVERAGING}, {"first_factors": "frozen"}, 1),
    FAST_HEAD_ALONE: (f"the head at {RATE:g}, too", adapted(), {"trained": "head"}, 1),
    SLOW_ALONE: (f"learning rate {LEARNING_RATE:g}, as whole weights'", adapted(LEARNING_RATE), {}, 1),
    HIGH_RANK_ALONE: (
        f"rank {HIGH_RANK}, learning rate {HIGH_RANK_RATE:g}",
        adapted(HIGH_RANK_RATE, HIGH_RANK),
        {},
        1,
    ),
}
# each against its base
GAINS: Final = (
    (AVERAGED, NONE),
    (MATRICES, MATRICES_ALONE),
    (SHARED, ALONE),
    (HEAD, HEAD_ALONE),
    (OWN, ALONE),
    (FROZEN, FROZEN_ALONE),
)
BARRED: Final = (AVERAGED, NONE)  # that the bar compares with
CONTROLS: Final = {BARRED: "all weights", (MATRICES, MATRICES_ALONE): "whole matrices"}


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    made = family.plan_measured_at_end(condition, seed, rounds)
    return structs.replace(made, ablations=SLOW_HEAD) if condition.name in (HEAD_ALONE, HEAD) else made


EXPERIMENT: Final = Experiment(
    name="adapters",
    description=(__doc__ or "").partition("\n")[0],
    conditions=[
        Condition(name, what, settings, seeds_most, trial)
        for name, (what, settings, trial, seeds_most) in CONDITIONS.items()
    ],
    plan=plan,
    rounds=ROUNDS,
    recipes=(STUDENT,),
)
Results = Mapping[str, Sequence[RunResult]]


def gain(results: Results, name: str, base: str, rounds: int) -> dict[int, float]:
    """Returns by how much more ``name`` succeeds at the end than ``base``, for each seed that both have."""
    ours, theirs = ({run.seed: mean_success(run, rounds) for run in results.get(each, ())} for each in (name, base))
    return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}


def less_than(control: tuple[str, str], results: Results, name: str, base: str, rounds: int) -> Estimate | None:
    """Returns by how much less averaging gains under ``name`` than under ``control``, over the seeds of both."""
    most, found = gain(results, *control, rounds), gain(results, name, base, rounds)
    shared = sorted(most.keys() & found.keys())
    return estimate([most[seed] - found[seed] for seed in shared]) if shared else None


def rows(results: Results, rounds: int) -> str:
    header = ["condition", f"success after {rounds} rounds", "apart at the end", "outer steps",
              "kB of averaging"]  # fmt: skip
    cells = [
        [
            name,
            over_seeds(runs, lambda run: mean_success(run, rounds)).text(),
            over_seeds(runs, family.last_apart).text(4),
            f"{over_seeds(runs, lambda run: over_nodes(run, lambda node: node.outer_steps)).mean:.1f}",
            f"{over_seeds(runs, lambda run: over_nodes(run, lambda node: node.averaging_bytes / 1e3)).mean:.0f}",
        ]
        for name, runs in results.items()
    ]
    return table(header, cells)


def gains_table(results: Results, rounds: int) -> str:
    cells = []
    for name, base in GAINS:
        more = gain(results, name, base, rounds)
        if not more:
            continue
        row = [f"{name} against {base}", estimate(list(more.values())).text()]
        for control in CONTROLS:
            less = less_than(control, results, name, base, rounds) if (name, base) not in CONTROLS else None
            row.append(less.text() if less is not None else "")
            if control == BARRED:
                row.append(verdict(less) if less is not None else "")
        cells.append(row)
    all_weights, matrices = CONTROLS.values()
    header = ["", "success at the end, more", f"less than {all_weights} gain", f"bar ≤ {BAR}"]
    return table([*header, f"less than {matrices} gain"], cells)


def verdict(less: Estimate) -> str:
    if less.mean > BAR:
        return "missed"
    return "met by the whole interval" if less.count > 1 and less.high <= BAR else "met by the mean"


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"{len(NODES)} nodes with one model that half knows {len(SKILLS)} skills, as in [family.md](family.md); "
        f"{rounds} updates each. Success: sampled, on {family.MEASURING.prompts} held-out prompts a skill, mean over "
        "skills and nodes. Apart: mean of ‖θ_i - θ_j‖ / ‖θ_i‖ of what is trained, over all pairs. kB: received by one "
        "node. ± is the 95 % interval over seeds (Student's t); differences are paired by seed."
    )
    written = Document("adapters", "Averaging adapters", intro, command)
    counts = {name: len(runs) for name, runs in results.items()}
    written.section("Conditions", conditions_table({name: what for name, (what, *_) in CONDITIONS.items()}, counts))
    if not results:
        return written
    written.parts.append(seconds_a_run(results))
    written.section("Success", rows(results, rounds))
    written.section("What averaging gains", gains_table(results, rounds))
    return written


def figures(results: Results, rounds: int) -> list[Figure]:
    found = []
    for name, base in GAINS:
        more = gain(results, name, base, rounds)
        if more:
            mean = estimate(list(more.values())).mean
            found.append(Figure(f"{name} against {base}: more success at the end", mean, "", "higher", ""))
        for control, what in CONTROLS.items():
            less = less_than(control, results, name, base, rounds) if (name, base) not in CONTROLS else None
            if less is not None:
                bar = f"≤ {BAR}" if name == SHARED and control == BARRED else ""
                found.append(Figure(f"{name}: gain less than that of {what}", less.mean, "", "lower", bar))
    return found


def main() -> None:
    EXPERIMENT.run(document, figures)


if __name__ == "__main__":
    main()
