"""Four nodes with one model that learn adapters by reinforcement: what averaging brings them.

    python -m scripts.experiments.adapters [--rounds 80] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

Nodes, skills and averaging are those of ``family.py``, measured at the end. An adapter adds s B A to a matrix; nodes
average A and B each for itself, and the mean of the products is the product of the means only where the A are equal.
Controls, with and without averaging: all weights; whole weights of those matrices alone that an adapter adapts; and
adapters with the head trained beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from scripts.experiments import family
from scripts.experiments.family import AVERAGED, AVERAGING, LEARNER, LEARNING_RATE, NODES, NONE, ROUNDS
from scripts.experiments.harness.experiment import (
    Condition,
    Experiment,
    Settings,
    by_seed,
    over_nodes,
    over_seeds,
    verdict,
)
from scripts.experiments.harness.plans import RunResult
from scripts.experiments.harness.skills import SKILLS
from scripts.experiments.models import STUDENT
from scripts.experiments.reports.intervals import Estimate, estimate
from scripts.experiments.reports.report_document import Document, table
from scripts.experiments.reports.success import mean_success

RANK: Final = 8
RATE: Final = 10 * LEARNING_RATE  # as an automatic learning rate is ten times that of whole weights
BAR: Final = 0.02  # what adapters may gain less than whole weights
ALONE, SHARED = "adapters, no averaging", "adapters, averaging"
MATRICES_ALONE, MATRICES = "matrices whole, no averaging", "matrices whole, averaging"
HEAD_ALONE, HEAD = "adapters and the head, no averaging", "adapters and the head, averaging"
WHOLE: Final[Settings] = {"learner": LEARNER}
ADAPTED: Final[Settings] = {"learner": {**LEARNER, "learning_rate": RATE}, "policy": {"adapter_rank": RANK}}
SLOW_HEAD: Final = ("head at a tenth of the rate",)  # that is LEARNING_RATE
CONDITIONS: Final = (
    Condition(NONE, "all weights, each node alone", WHOLE),
    Condition(AVERAGED, "all weights, NoLoCo's outer step now and then", {**WHOLE, **AVERAGING}),
    Condition(
        MATRICES_ALONE,
        "control: whole, but only what adapters adapt: not the head, which is the embedding, and no norm",
        WHOLE,
        trained="matrices",
    ),
    Condition(MATRICES, "the same", {**WHOLE, **AVERAGING}, trained="matrices"),
    Condition(ALONE, f"rank {RANK}, learning rate {RATE:g}, each node alone; A is the family's", ADAPTED),
    Condition(
        SHARED,
        "the same outer step on A and B, each for itself; A is the family's at first, as nodes have it",
        {**ADAPTED, **AVERAGING},
    ),
    Condition(
        HEAD_ALONE,
        f"control: the head is trained beside the adapters, at {LEARNING_RATE:g}, as whole weights are",
        ADAPTED,
        ablations=SLOW_HEAD,
        trained="head",
    ),
    Condition(HEAD, "the same", {**ADAPTED, **AVERAGING}, ablations=SLOW_HEAD, trained="head"),
)
GAINS: Final = ((AVERAGED, NONE), (MATRICES, MATRICES_ALONE), (SHARED, ALONE), (HEAD, HEAD_ALONE))  # each and its base
BARRED: Final = (AVERAGED, NONE)  # that the bar compares with
CONTROLS: Final = {BARRED: "all weights", (MATRICES, MATRICES_ALONE): "whole matrices"}

EXPERIMENT: Final = Experiment(
    name="adapters",
    description=__doc__,
    conditions=CONDITIONS,
    plan=family.plan_measured_at_end,
    rounds=ROUNDS,
    recipes=(STUDENT,),
)
Results = Mapping[str, Sequence[RunResult]]


def gain(results: Results, name: str, base: str, rounds: int) -> dict[int, float]:
    """Returns by how much more ``name`` succeeds at the end than ``base``, for each seed that both have."""
    both = by_seed(results, name, base, partial(mean_success, round_number=rounds))
    return {seed: ours - theirs for seed, (ours, theirs) in both.items()}


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
                row.append(verdict(less, BAR) if less is not None else "")
        cells.append(row)
    all_weights, matrices = CONTROLS.values()
    header = ["", "success at the end, more", f"less than {all_weights} gain", f"bar ≤ {BAR}"]
    return table([*header, f"less than {matrices} gain"], cells)


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"{len(NODES)} nodes with one model that half knows {len(SKILLS)} skills, as in [family.md](family.md); "
        f"{rounds} updates each. Success: sampled, on {family.MEASURING.prompts} held-out prompts a skill, mean over "
        "skills and nodes. Apart: mean of ‖θ_i - θ_j‖ / ‖θ_i‖ of what is trained, over all pairs. kB: received by one "
        "node. ± is the 95 % interval over seeds (Student's t); differences are paired by seed."
    )
    written = EXPERIMENT.page("Averaging adapters", intro, results, command)
    written.section("Success", rows(results, rounds))
    written.section("What averaging gains", gains_table(results, rounds))
    return written


def main() -> None:
    EXPERIMENT.run(document)


if __name__ == "__main__":
    main()
