"""Which prompts are worth generating for? Every allocator of the node against taking turns.

    python scripts/experiments/allocation.py [--rounds 400] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

A node alone with four skills that it masters to four degrees. An allocator chooses what is sampled, so its own rewards
say nothing of it: success is measured on held-out prompts every few updates, and compared at equal generated tokens.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from experiment import Condition, Experiment, Measuring, curve, over_seeds, run_plan, seconds_a_run
from intervals import Estimate, estimate, tokens_to_reach
from models import STUDENT
from plans import RunPlan, RunResult
from plots import Line, line_plot
from skills import SKILLS
from writing import Document, Figure, conditions_table, print_figures, table

ROUNDS: Final = 400
GROUPS: Final = 8
COMPLETIONS: Final = 8
LEARNING_RATE: Final = 3e-4
MEASURING: Final = Measuring(times=20, prompts=64, samples=4)
UNIFORM: Final = "uniform"
METHODS: Final[Mapping[str, str]] = {
    UNIFORM: "skills in turn, as many completions of each prompt",
    "posterior": "by expected information under a posterior a skill; completions in proportion to √(p(1-p))",
    "sgpo": "sGPO: mastered skills dropped, about 1/p completions of each prompt",
    "dps": "DPS: by the predicted probability that a prompt is partly solved",
}


def conditions() -> list[Condition]:
    learner = {"own_groups": GROUPS, "foreign_groups": 0, "completions": COMPLETIONS, "learning_rate": LEARNING_RATE}
    return [
        Condition(method, what, {"learner": learner, "allocation": {"method": method}})
        for method, what in METHODS.items()
    ]


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    nodes = {"learner": STUDENT.key}
    return run_plan("allocation", condition, seed, rounds, nodes=nodes, tasks=tuple(SKILLS), measuring=MEASURING)


EXPERIMENT: Final = Experiment(
    name="allocation",
    description=(__doc__ or "").partition("\n")[0],
    conditions=conditions(),
    plan=plan,
    rounds=ROUNDS,
    recipes=(STUDENT,),
)
Results = Mapping[str, Sequence[RunResult]]


def course(result: RunResult) -> tuple[list[float], list[float]]:
    """(tokens generated, mean sampled success) at each measurement."""
    node = result.nodes[0]
    spent = [0.0, *itertools.accumulate(node.tokens)]
    return [spent[m.round] for m in node.measurements], [
        statistics.fmean(m.sampled.values()) for m in node.measurements
    ]


def best_so_far(levels: Sequence[float]) -> list[float]:
    """What had been reached by each measurement: a later dip does not take it back."""
    return list(itertools.accumulate(levels, max))


def uniform_final(results: Results) -> float:
    """What uniform comes to at its end, mean of its seeds and of its last three measurements, against their noise."""
    return statistics.fmean(statistics.fmean(course(run)[1][-3:]) for run in results[UNIFORM])


def tokens_for(result: RunResult, level: float) -> float | None:
    tokens, levels = course(result)
    return tokens_to_reach(tokens, best_so_far(levels), level)


def share_of_uniform(results: Results, method: str) -> Estimate | None:
    """Tokens to reach what uniform came to, against those that uniform took itself; paired by seed.

    A uniform run that stays below the mean of its seeds counts with all of its tokens. None if a run of ``method``
    never reaches that level.
    """
    level = uniform_final(results)
    shares = []
    for ours, base in zip(results[method], results[UNIFORM], strict=True):
        spent = tokens_for(ours, level)
        if spent is None:
            return None
        shares.append(spent / (tokens_for(base, level) or course(base)[0][-1]))
    return estimate(shares)


def success_per_token(result: RunResult, budget_tokens: float) -> float:
    """Mean success over the first ``budget_tokens``: ∫ success d(tokens) / budget, measurements joined by lines."""
    tokens, levels = course(result)
    area = 0.0
    for index in range(1, len(tokens)):
        start, end = tokens[index - 1], min(tokens[index], budget_tokens)
        if end <= start:
            break
        slope = (levels[index] - levels[index - 1]) / (tokens[index] - tokens[index - 1])
        area += (end - start) * (levels[index - 1] + slope * (end - start) / 2)
    return area / budget_tokens


def at_tokens(result: RunResult, wanted: float) -> float:
    """Success after ``wanted`` tokens, measurements joined by lines."""
    tokens, levels = course(result)
    for index in range(1, len(tokens)):
        if tokens[index] >= wanted:
            part = (wanted - tokens[index - 1]) / (tokens[index] - tokens[index - 1])
            return levels[index - 1] + part * (levels[index] - levels[index - 1])
    return levels[-1]


def budget_of(results: Results) -> float:
    return min(course(run)[0][-1] for runs in results.values() for run in runs)


def main_table(results: Results, rounds: int) -> str:
    budget = budget_of(results)
    rows = []
    for method, runs in results.items():
        share = share_of_uniform(results, method) if UNIFORM in results else None
        rows.append(
            [
                method,
                over_seeds(runs, lambda r: success_per_token(r, budget)).text(),
                over_seeds(runs, lambda r: at_tokens(r, budget)).text(),
                over_seeds(runs, lambda r: course(r)[1][-1]).text(),
                f"{over_seeds(runs, lambda r: course(r)[0][-1]).mean:,.0f}",
                share.text(2) if share is not None else "not reached by every seed",
            ]
        )
    header = ["allocator", f"mean success over {budget:,.0f} tokens", "success after them", f"after {rounds} updates"]
    return table([*header, "tokens generated", "tokens to uniform's final success, share of uniform's"], rows)


def skills_table(results: Results) -> str:
    rows = []
    for method, runs in results.items():
        cells = [
            over_seeds(runs, lambda r, s=skill: r.nodes[0].measurements[-1].sampled[s]).text(2) for skill in SKILLS
        ]
        rows.append([method, *cells])
    first = next(iter(results.values()))
    start = [over_seeds(first, lambda r, s=skill: r.nodes[0].measurements[0].sampled[s]).text(2) for skill in SKILLS]
    return table(["final success", *SKILLS], [["at the start", *start], *rows])


def sentences(results: Results) -> str:
    said = []
    for method in results:
        if method != UNIFORM and UNIFORM in results:
            share = share_of_uniform(results, method)
            told = f"{100 * share.mean:.0f} % of the tokens" if share is not None else "not with every seed"
            said.append(f"- {method} reaches what uniform came to ({uniform_final(results):.3f}): {told}.")
    return "\n".join(said)


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"One node alone, {GROUPS * COMPLETIONS} completions an update on {len(SKILLS)} skills that it half knows, "
        f"learning rate {LEARNING_RATE:g}, {rounds} updates. Success: sampled at temperature 1 on {MEASURING.prompts} "
        f"held-out prompts a skill, {MEASURING.samples} completions each, mean of the skills. ± is the 95 % interval "
        "over seeds (Student's t)."
    )
    written = Document("allocation", "Where to spend generation", intro, command)
    counts = {name: len(runs) for name, runs in results.items()}
    written.section("Conditions", conditions_table(METHODS, counts))
    written.parts.append(seconds_a_run(results))
    written.section("Results", main_table(results, rounds))
    written.section("What happened", sentences(results))
    written.section("Final success on each skill", skills_table(results))
    budget = budget_of(results)
    grid = [budget * n / 40 for n in range(1, 41)]
    lines: list[Line] = [curve(m, grid, [[at_tokens(r, t) for t in grid] for r in runs]) for m, runs in results.items()]
    title = "Success on held-out prompts"
    written.plot("", title, line_plot(title, lines, x_label="tokens generated", y_label="success", y_range=(0.0, 1.0)))
    return written


def figures(results: Results) -> list[Figure]:
    if UNIFORM not in results:
        return []
    found, best = [], None
    for method in results:
        share = share_of_uniform(results, method) if method != UNIFORM else None
        if share is not None:
            found.append(Figure(f"{method}: tokens to uniform's final success", 100 * share.mean, "%", "lower"))
            best = share.mean if best is None else min(best, share.mean)
    if best is not None:
        found.append(Figure("best allocator: tokens to uniform's final success", 100 * best, "%", "lower", "≤ 60"))
    return found


def main() -> None:
    options = EXPERIMENT.options()
    results = EXPERIMENT.results(options)
    path = document(results, options.rounds, EXPERIMENT.command(options)).write(options.docs)
    print_figures(EXPERIMENT.name, figures(results), written=path, as_json=options.json)


if __name__ == "__main__":
    main()
