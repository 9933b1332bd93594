"""A node that learns by reinforcement with its training passes in stages: what fewer bytes between them cost.

    python -m scripts.experiments.stages_reinforced [--rounds 40] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

One node alone, the node's own learner, with the model and skills of ``family.py``; every weight is trained. A cut
stands behind each of its two layers, and hidden states and their gradients cross it in the condition's way
(``harness/crossings.py``). The engine draws from the whole model.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from scripts.bench.common.reporting import Figure
from scripts.experiments.family import LEARNER
from scripts.experiments.harness.crossings import Crosses
from scripts.experiments.harness.experiment import (
    WINDOW,
    Condition,
    Experiment,
    Measuring,
    difference,
    mean_rewards,
    over_seeds,
    reward_plot,
    run_plan,
)
from scripts.experiments.harness.plans import RunResult
from scripts.experiments.harness.skills import SKILLS
from scripts.experiments.harness.staged_run import StagedPlan, StagedResult
from scripts.experiments.models import SHAPE, STUDENT
from scripts.experiments.reports.report_document import Document, table
from scripts.experiments.reports.success import mean_success
from scripts.experiments.stages import EXACT, SENT_EXACTLY, WAYS

ROUNDS: Final = 40
MEASURING: Final = Measuring(times=2, prompts=100, samples=4)
WHOLE: Final = "exact"
CROSSES: Final[Mapping[str, tuple[str, Crosses]]] = {
    WHOLE: (EXACT.what, EXACT.crosses),
    **{name: WAYS[name] for name in ("8 bits", "4 bits", "k 1/4", "k 1/8", "k 1/16")},
}
CONDITIONS: Final = tuple(Condition(name, what, {"learner": LEARNER}) for name, (what, _) in CROSSES.items())


def plan(condition: Condition, seed: int, rounds: int) -> StagedPlan:
    nodes = {"node-a": STUDENT.key}
    found = run_plan(
        "stages_reinforced", condition, seed, rounds, nodes=nodes, tasks=tuple(SKILLS), measuring=MEASURING
    )
    crosses = CROSSES[condition.name][1]
    return StagedPlan(**{name: getattr(found, name) for name in found.__struct_fields__}, crosses=crosses)


EXPERIMENT: Final = Experiment(
    name="stages_reinforced",
    description=__doc__,
    conditions=CONDITIONS,
    plan=plan,
    rounds=ROUNDS,
    recipes=lambda condition: (STUDENT,),
)
Results = Mapping[str, Sequence[StagedResult]]


def reward(run: RunResult) -> float:
    return statistics.fmean(mean_rewards(run))


def share_of_bytes(runs: Sequence[StagedResult]) -> float:
    """Returns the bytes at a cut, there and back, against bfloat16."""
    return statistics.fmean(run.token_bytes for run in runs) / (2 * SENT_EXACTLY.token_bytes(SHAPE["hidden_size"]))


def results_table(results: Results, rounds: int) -> str:
    header = [
        "condition",
        "bytes",
        "success at the start",
        f"after {rounds} rounds",
        "against exact",
        "mean reward",
        "against exact",
    ]
    cells = []
    success = partial(mean_success, round_number=rounds)
    for name, runs in results.items():
        more, more_reward = (difference(results, name, WHOLE, value) for value in (success, reward))
        is_base = name == WHOLE
        cells.append(
            [
                name,
                "" if is_base else f"{share_of_bytes(runs):.3f}",
                over_seeds(runs, lambda run: mean_success(run, 0)).text(),
                over_seeds(runs, success).text(),
                "" if is_base or more is None else more.text(),
                over_seeds(runs, reward).text(),
                "" if is_base or more_reward is None else more_reward.text(),
            ]
        )
    return table(header, cells)


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"One node alone trains a model of two layers, {SHAPE['hidden_size']} wide, that half knows {len(SKILLS)} "
        f"skills, {rounds} rounds of {LEARNER['own_groups']} groups of {LEARNER['completions']} at a learning rate of "
        f"{LEARNER['learning_rate']:g}. In training passes hidden states cross behind each layer in the condition's "
        "way, and so do gradients on their way back; completions are drawn from the whole model, which also measures: "
        f"success, sampled, on {MEASURING.prompts} held-out prompts a skill. Reward: mean over all rounds. Bytes: at a "
        "cut, there and back, against bfloat16, with every message that a subspace needs. ± is the 95 % interval over "
        "seeds (Student's t), of differences paired by seed. The same on a language model: [stages](stages.md)."
    )
    written = EXPERIMENT.page("Fewer bytes between stages, in reinforcement", intro, results, command)
    written.section("Success", results_table(results, rounds))
    title = f"Sampled reward, mean of {WINDOW} updates"
    written.plot("", title, reward_plot(title, results, rounds, mean_rewards))
    return written


def figures(results: Results, rounds: int) -> list[Figure]:
    found = []
    for name in results:
        more = difference(results, name, WHOLE, partial(mean_success, round_number=rounds))
        if name != WHOLE and more is not None:
            found.append(Figure(f"{name}: more success at the end than exact", more.mean, "", "higher"))
    return found


def main() -> None:
    EXPERIMENT.run(document, figures)


if __name__ == "__main__":
    main()
