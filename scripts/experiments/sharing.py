"""Does sharing rollouts help, and by which rule? Nodes that each have one skill of four, two of eight, or all in part.

    python -m scripts.experiments.sharing [--rounds 120] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

SAPO (arXiv 2509.08721) shares I own and J foreign groups of 8 an update and finds +94 % cumulative reward for 4/4 over
8/0. It drops only foreign groups of equal rewards. The paper lacks a control, which is run here: 8/0 that drops its own
groups of equal rewards and draws again (``learner.resample``), to separate filtering from sharing. I and J are in units
of ``GROUPS`` groups here, 8 units an update as in the paper. HACPO (arXiv 2603.02604) is at home where all can do all,
to different degrees; all its agents' rollouts teach, once, so it fetches every group announced. "as shipped" has no
setting at all, and peers are strangers whose influence is to be earned.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from scripts.bench.common.reporting import Figure
from scripts.experiments.harness.experiment import (
    WINDOW,
    Condition,
    Experiment,
    Measuring,
    curve,
    mean_rewards,
    over_nodes,
    over_seeds,
    reward_plot,
    run_plan,
)
from scripts.experiments.harness.plans import NodeHistory, RunPlan, RunResult
from scripts.experiments.harness.skills import EIGHT_SKILLS, SKILLS, SkillTask
from scripts.experiments.models import OVERLAPPING, PAIRS, SPECIALISTS, SkillRecipe
from scripts.experiments.reports.intervals import Estimate, over_tokens
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import Document, table

ROUNDS: Final = 120
GROUPS: Final = 4  # in one unit of I and J: 8 of them make an update
COMPLETIONS: Final = 4
LEARNING_RATE: Final = 3e-4
RESAMPLE: Final = 4
MEASURING: Final = Measuring(times=5, prompts=100, samples=0)
LACKED: Final = 0.3  # greedy success at the start, below which a node lacks a skill


@dataclass(frozen=True)
class Setting:
    """Which models have which skills at the start. ``name`` ends the names of its conditions."""

    name: str
    what: str
    recipes: tuple[SkillRecipe, ...]
    skills: Mapping[str, SkillTask]

    def of(self, condition: str) -> str:
        return f"{condition}, {self.name}" if self.name else condition


FOUR: Final = Setting("", "each with one of them at the start", SPECIALISTS, SKILLS)
EIGHT_LACKED: Final = Setting(
    "eight skills", "each with an easy one and a harder one at the start", PAIRS, EIGHT_SKILLS
)
OVERLAP: Final = Setting("overlapping skills", "all with all of them, to different degrees", OVERLAPPING, SKILLS)
SETTINGS: Final = (FOUR, EIGHT_LACKED, OVERLAP)

SAPO: Final = {"foreign_advantage": "group", "foreign_choice": "uniform"}
HACPO: Final = {
    "foreign_advantage": "capability",
    "foreign_choice": "uniform",
    "loss": "gspo",
    "clip_high": 4e-4,
}
RULES: Final[Mapping[str, tuple[str, Mapping[str, Mapping[str, object]]]]] = {
    "sapo": (
        "group advantage; foreign groups of equal rewards dropped, the rest drawn uniformly; no correction",
        {"objective": {"correction": "none", "research": SAPO}},
    ),
    "f_tis": (
        "group advantage; drawn as under sapo; truncated token ratios with the divergence filter, no floor",
        {"objective": {"correction": "f_tis", "ratio_floor": 0.0, "research": SAPO}},
    ),
    "hacpo": (
        "advantage by capability; every group announced, once; mean ratio of a completion in [.8, 1], squared; gspo",
        {"objective": {"correction": "hacpo", "ratio_floor": 0.0, "clip": 3e-4, "research": HACPO}},
    ),
    "learner-relative": (
        "advantage over the learner's own success; foreign groups by expected gain; the defaults' objective",
        {},
    ),
}
BEST: Final = "learner-relative 4/4"
EIGHT: Final = f"{BEST}, 8 nodes"
ALONE, CONTROL, SHIPPED = "8/0", "8/0 resampled", "as shipped"


def _settings(own: int, foreign: int, **learner: object) -> dict[str, object]:
    sizes = {"own_groups": own * GROUPS, "foreign_groups": foreign * GROUPS, "share_groups": own * GROUPS}
    return {**sizes, "completions": COMPLETIONS, "learning_rate": LEARNING_RATE, **learner}


def conditions() -> list[Condition]:
    found: list[Condition] = []
    for setting in SETTINGS:
        found.append(Condition(setting.of(ALONE), "own groups alone", {"learner": _settings(8, 0)}))
        for rule, (what, settings) in RULES.items():
            learner = _settings(4, 4)
            if rule == "hacpo":
                learner = _settings(4, 4 * (len(setting.recipes) - 1), foreign_uses=1)
            found.append(Condition(setting.of(f"{rule} 4/4"), what, {**settings, "learner": learner}))
        what = "no setting: 32 own groups, right answers of peers seen again, peers start as strangers"
        found.append(Condition(setting.of(SHIPPED), what, {}, strangers=True))
    what = f"own groups alone; those of equal rewards dropped, up to {RESAMPLE} times as many prompts drawn for them"
    found.append(Condition(CONTROL, what, {"learner": _settings(8, 0, resample=RESAMPLE)}))
    found.append(Condition(EIGHT, f"as {BEST}; two nodes of each skill", {"learner": _settings(4, 4)}))
    return found


def setting_of(condition: Condition) -> Setting:
    return next(each for each in reversed(SETTINGS) if condition.name.endswith(each.name))


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    setting = setting_of(condition)
    nodes = {recipe.name: recipe.key for recipe in setting.recipes}
    if condition.name == EIGHT:
        nodes |= {f"{recipe.name}-2": recipe.key for recipe in setting.recipes}
    return run_plan("sharing", condition, seed, rounds, nodes=nodes, tasks=tuple(setting.skills), measuring=MEASURING)


EXPERIMENT: Final = Experiment(
    name="sharing",
    description=__doc__,
    conditions=conditions(),
    plan=plan,
    rounds=ROUNDS,
    recipes=lambda condition: setting_of(condition).recipes,
)

# The results of one run: means over its nodes


def mean_reward(result: RunResult, rounds: int) -> float:
    """Returns the mean sampled reward over the first ``rounds`` updates; times ``rounds``, it is the cumulative one."""
    return over_nodes(result, lambda node: statistics.fmean(node.reward[:rounds]))


def reward_at_equal_tokens(result: RunResult, budget_tokens: int) -> float:
    return over_nodes(result, lambda node: over_tokens(node.reward, node.tokens, budget_tokens))


def skills_with(node: NodeHistory, holds: Callable[[float], bool]) -> list[str]:
    """Returns the skills for whose greedy success at the start ``holds`` is true."""
    return [name for name, success in node.measured(0).greedy.items() if holds(success)]


def final_success(result: RunResult, rounds: int, *, lacked: bool) -> float:
    """Returns the greedy success after ``rounds`` on the skills that each node lacked, or had, at the start: the mean
    over the nodes that have such skills. Raises ``StatisticsError`` where none has."""
    of_nodes = []
    for node in result.nodes:
        skills = skills_with(node, lambda success: (success < LACKED) is lacked)
        if skills:
            of_nodes.append(statistics.fmean(node.measured(rounds).greedy[name] for name in skills))
    return statistics.fmean(of_nodes)


def success_of_all(result: RunResult, rounds: int) -> float:
    """Returns the greedy success after ``rounds`` on all skills, mean of all nodes."""
    return over_nodes(result, lambda node: statistics.fmean(node.measured(rounds).greedy.values()))


def kept(result: RunResult, rounds: int) -> float:
    """Returns the change of greedy success on the skills that each node had."""
    return final_success(result, rounds, lacked=False) - final_success(result, 0, lacked=False)


def fetched_share(result: RunResult) -> float:
    """Returns the bytes fetched per foreign completion trained on, as a share of fetching every announced group."""
    fetched = sum(node.bytes_fetched for node in result.nodes)
    return fetched / max(1, sum(node.bytes_announced for node in result.nodes))


def generated_tokens(runs: Sequence[RunResult]) -> int:
    """Returns the fewest tokens that a node of any run generated."""
    return min(sum(node.tokens) for result in runs for node in result.nodes)


def token_budget(results: Mapping[str, Sequence[RunResult]]) -> int:
    """Returns the tokens at which conditions are compared: as many as those with half foreign groups, or none, all
    generate. Others, whose few own groups or short answers generate less, are not in that comparison."""
    return min(generated_tokens(results[name]) for name in _compared(results) or results)


def _compared(results: Mapping[str, Sequence[RunResult]]) -> list[str]:
    return [name for name in (ALONE, CONTROL, *(f"{rule} 4/4" for rule in RULES), SHIPPED) if name in results]


# The report

Results = Mapping[str, Sequence[RunResult]]


def change(results: Results, name: str, base: str, rounds: int) -> float:
    """Returns by how many per cent the cumulative reward of ``name`` exceeds that of ``base``."""
    ours, theirs = (over_seeds(results[n], lambda r: mean_reward(r, rounds)).mean for n in (name, base))
    return 100.0 * (ours / theirs - 1.0)


def processor_seconds(runs: Sequence[RunResult]) -> float:
    """Returns those of a run, mean over ``runs``."""
    return statistics.fmean(run.cpu_seconds for run in runs)


def of_setting(results: Results, setting: Setting) -> Results:
    """Returns the results of one setting, with its conditions named as in the first."""
    names = (ALONE, CONTROL, *(f"{rule} 4/4" for rule in RULES), SHIPPED, EIGHT)
    return {name: results[setting.of(name)] for name in names if setting.of(name) in results}


def main_table(results: Results, rounds: int) -> str:
    """Returns the results of one setting."""
    rows = []
    for name, runs in results.items():
        against = f"{change(results, name, ALONE, rounds):+.0f} %" if ALONE in results and name != ALONE else ""
        rows.append(
            [
                name,
                str(len(runs)),
                over_seeds(runs, lambda r: rounds * mean_reward(r, rounds)).text(1),
                against,
                over_seeds(runs, lambda r: final_success(r, rounds, lacked=True)).text(),
                over_seeds(runs, lambda r: kept(r, rounds)).text(),
                over_seeds(runs, lambda r: success_of_all(r, rounds)).text(),
                f"{over_seeds(runs, lambda r: over_nodes(r, lambda n: sum(n.tokens[:rounds]))).mean:,.0f}",
                f"{processor_seconds(runs):.0f}",
                f"{over_seeds(runs, fetched_share).mean:.2f}" if name not in (ALONE, CONTROL) else "",
            ]
        )
    header = (
        f"condition | seeds | cumulative reward, {rounds} updates | against 8/0 | final success, skills lacked "
        "| change, skills had | final success, all skills | tokens generated | processor seconds "
        "| bytes fetched / announced"
    )
    return table(header.split(" | "), rows)


def success_of_lacking(result: RunResult, skill: str, rounds: int) -> float:
    """Returns the final success on one skill, mean of the nodes that lacked it."""
    lacking = [node for node in result.nodes if node.measured(0).greedy[skill] < LACKED]
    return statistics.fmean(node.measured(rounds).greedy[skill] for node in lacking)


def skills_table(results: Results, rounds: int, skills: Sequence[str]) -> str:
    rows = []
    for name, runs in results.items():
        cells = [over_seeds(runs, partial(success_of_lacking, skill=skill, rounds=rounds)).text(2) for skill in skills]
        rows.append([name, *cells])
    return table(["condition", *skills], rows)


def sentences(results: Results, rounds: int) -> str:
    """Returns what the numbers of one setting say of each condition against those without foreign groups."""
    said = []
    for name, runs in results.items():
        for base, words in ((ALONE, "8/0"), (CONTROL, "the control")):
            if base in results and name not in (ALONE, CONTROL):
                ours, theirs = (over_seeds(results[n], lambda r: mean_reward(r, rounds)) for n in (name, base))
                apart = "overlap" if ours.overlaps(theirs) else "do not overlap"
                more = change(results, name, base, rounds)
                said.append(f"- {name} against {words}: {more:+.0f} % cumulative reward; the intervals {apart}.")
        had = over_seeds(runs, lambda r: kept(r, rounds))
        if had.high < 0:
            said.append(f"- {name}: a loss beyond the interval on skills that were had, {had.text()}.")
    return "\n".join(said)


def plots(document: Document, results: Results, rounds: int, budget: int) -> None:
    shown = _compared(results)
    title = f"Sampled reward, mean of 4 nodes and {WINDOW} updates"
    document.plot("", title, reward_plot(title, {name: results[name] for name in shown}, rounds, mean_rewards))
    grid = [budget * n // 40 for n in range(1, 41)]
    lines = [curve(n, grid, [[reward_at_equal_tokens(run, t) for t in grid] for run in results[n]]) for n in shown]
    title = "Mean reward so far, at equal generated tokens"
    document.plot("-tokens", title, line_plot(title, lines, x_label="tokens a node generated", y_label="mean reward"))
    at = [m.round for m in next(iter(results.values()))[0].nodes[0].measurements]
    lines = [curve(n, at, [[final_success(run, t, lacked=True) for t in at] for run in results[n]]) for n in shown]
    title = "Greedy success on the skills that were lacked"
    document.plot("-lacked", title, line_plot(title, lines, x_label="updates", y_label="success", y_range=(0.0, 1.0)))


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"Four nodes (eight where it says so) learn from their own groups and from each other's. {COMPLETIONS} "
        f"completions a group, {8 * GROUPS} groups an update at 8/0, learning rate {LEARNING_RATE:g}. A skill is "
        f"lacked where greedy success at the start is below {LACKED:g}. Means over nodes; ± is the 95 % interval over "
        "seeds (Student's t)."
    )
    written = EXPERIMENT.page("Sharing rollouts: own and foreign groups", intro, results, command)
    for setting in SETTINGS:
        found = of_setting(results, setting)
        if not found:
            continue
        heading = f"Results: {setting.name or 'four skills'}"
        what = f"Four models and the skills {', '.join(setting.skills)}, {setting.what}."
        written.section(heading, what, main_table(found, rounds), sentences(found, rounds))
        if setting is not OVERLAP:
            written.parts += [
                "Final success on each skill, nodes that lacked it:",
                skills_table(found, rounds, list(setting.skills)),
            ]
    if first := of_setting(results, FOUR):
        plots(written, first, rounds, token_budget(first))
    return written


def figures(results: Results, rounds: int) -> list[Figure]:
    """Returns the figures with a bar whose conditions have results."""
    found: list[Figure] = []

    def reward(name: str) -> Estimate:
        return over_seeds(results[name], lambda r: mean_reward(r, rounds))

    def add(name: str, value: float, unit: str, bar: str, *, lower: bool = False) -> None:
        found.append(Figure(name, value, unit, "lower" if lower else "higher", bar))

    for setting in SETTINGS:
        of_it, words = of_setting(results, setting), f", {setting.name or 'four skills'}"
        if SHIPPED in of_it and ALONE in of_it:
            bar = "≥ +150" if setting is FOUR else "> 0"
            more = change(of_it, SHIPPED, ALONE, rounds)
            add(f"as shipped against 8/0, cumulative reward at equal updates{words}", more, "%", bar)
            longer = processor_seconds(of_it[SHIPPED]) / processor_seconds(of_it[ALONE])
            add(f"as shipped against 8/0, processor time{words}", longer, "×", "", lower=True)
        if SHIPPED in of_it and "hacpo 4/4" in of_it:
            more = change(of_it, SHIPPED, "hacpo 4/4", rounds)
            add(f"as shipped against hacpo, cumulative reward at equal updates{words}", more, "%", "> 0")
        if SHIPPED in of_it and setting is not OVERLAP:
            lacked = over_seeds(of_it[SHIPPED], lambda r: final_success(r, rounds, lacked=True))
            add(f"as shipped: final success on skills lacked{words}", lacked.mean, "", "≥ 0.6")
    if BEST in results and ALONE in results:
        add("4/4 against 8/0, cumulative reward at equal updates", change(results, BEST, ALONE, rounds), "%", "≥ +50")
    if BEST in results and CONTROL in results:
        more = change(results, BEST, CONTROL, rounds)
        add("4/4 against the control, cumulative reward at equal updates", more, "%", "> 0")
        gap = reward(BEST).low - reward(CONTROL).high
        add("4/4 against the control: gap between the 95 % intervals", gap, "reward", "> 0")
    for name in (BEST, ALONE, CONTROL):
        if name in results:
            lacked = over_seeds(results[name], lambda r: final_success(r, rounds, lacked=True))
            bar = "≥ 0.6" if name == BEST else "< 0.1"
            add(f"{name}: final success on skills lacked", lacked.mean, "", bar, lower=name != BEST)
            half = f"{name}: final success on skills lacked, half of its interval"
            found.append(Figure(half, lacked.half_width, "", "lower"))
    if BEST in results:
        loss = over_seeds(results[BEST], lambda r: kept(r, rounds))
        add("change on skills had, upper end of the interval", loss.high, "success", "≥ 0")
        for rule in ("sapo", "f_tis", "hacpo"):
            if f"{rule} 4/4" in results:
                more = change(results, BEST, f"{rule} 4/4", rounds)
                add(f"learner-relative against {rule}, 4/4, cumulative reward", more, "%", "> 0")
    for name, nodes in ((BEST, 4), (EIGHT, 8)):
        if name in results:
            share = over_seeds(results[name], fetched_share).mean
            add(f"bytes fetched against fetching every group announced, {nodes} nodes", share, "", "≤ 0.25", lower=True)
    return found


def main() -> None:
    EXPERIMENT.run(document, figures)


if __name__ == "__main__":
    main()
