"""Does a node that generates on vLLM learn as one on the embedded engine does? The three built-in models, together.

    starling engine install vllm --build cpu
    python -m scripts.experiments.engines [--rounds 300] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

wren, robin and finch learn the default swarm's six tasks and share rollouts. In one condition all have the embedded
engine, in the others wren's is elsewhere: the embedded engine in a process of its own, which samples from weights in
bfloat16, or vLLM, which also has other kernels. Success is measured by the embedded engine in all of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from scripts.experiments.harness.experiment import (
    WINDOW,
    Condition,
    Experiment,
    Measuring,
    difference,
    over_seeds,
    reward_plot,
    run_plan,
)
from scripts.experiments.harness.plans import RunPlan, RunResult
from scripts.experiments.heterogeneous import MODELS, TASKS
from scripts.experiments.reports.intervals import Estimate
from scripts.experiments.reports.report_document import Document, table
from scripts.experiments.reports.success import effective_share, mean_success, member, member_success

ROUNDS: Final = 300
GROUPS: Final = 12  # own, and as many foreign ones; two for each task
COMPLETIONS: Final = 4
ELSEWHERE: Final = "wren"  # the node whose engine differs
MEASURING: Final = Measuring(times=1, prompts=50, samples=2)

EMBEDDED, PROCESS, VLLM = "embedded", "wren in a process", "wren on vLLM"
BACKENDS: Final = {EMBEDDED: "torch", PROCESS: "process", VLLM: "vllm"}  # wren's
LEARNER: Final = {"own_groups": GROUPS, "foreign_groups": GROUPS, "share_groups": GROUPS, "completions": COMPLETIONS}
CONDITIONS: Final = (
    Condition(EMBEDDED, "every node samples in its learner's process", {"learner": LEARNER}),
    Condition(PROCESS, "wren's embedded engine is a process of its own", {"learner": LEARNER}),
    Condition(VLLM, "wren's completions are vLLM's, on the processor", {"learner": LEARNER}),
)


def plan(condition: Condition, seed: int, rounds: int) -> RunPlan:
    nodes = {name: f"builtin:{name}" for name in MODELS}
    found = run_plan("engines", condition, seed, rounds, nodes=nodes, tasks=TASKS, measuring=MEASURING)
    engines = {ELSEWHERE: {"engine": {"backend": BACKENDS[condition.name]}}}
    changed = (msgspec.structs.replace(n, settings={**n.settings, **engines.get(n.name, {})}) for n in found.nodes)
    return msgspec.structs.replace(found, nodes=tuple(changed))


EXPERIMENT: Final = Experiment(
    name="engines",
    description=__doc__,
    conditions=CONDITIONS,
    plan=plan,
    rounds=ROUNDS,
)
Results = Mapping[str, Sequence[RunResult]]


def main_table(results: Results, rounds: int) -> str:
    header = ["condition", *MODELS, "mean", f"mean sampled reward, {ELSEWHERE}", f"effective sample share, {ELSEWHERE}"]
    start = next(iter(results.values()))
    rows = [["at the start", *_cells(start, 0), "", ""]]
    for condition, runs in results.items():
        reward = over_seeds(runs, lambda run: statistics.fmean(member(run, ELSEWHERE).reward))
        share = over_seeds(runs, lambda run: effective_share(member(run, ELSEWHERE)))
        rows.append([condition, *_cells(runs, rounds), reward.text(), share.text(4)])
    return table(header, rows)


def _cells(runs: Sequence[RunResult], round_number: int) -> list[str]:
    of_members = [over_seeds(runs, partial(member_success, name=n, round_number=round_number)).text() for n in MODELS]
    return [*of_members, over_seeds(runs, partial(mean_success, round_number=round_number)).text()]


def differences(results: Results, condition: str, rounds: int) -> dict[str, Estimate]:
    """Returns final success under ``condition`` less that with embedded engines, paired by seed: of each member, and of
    their mean; without what no seed has in both."""
    values = {name: partial(member_success, name=name, round_number=rounds) for name in MODELS}
    values["mean"] = partial(mean_success, round_number=rounds)
    found = {name: difference(results, condition, EMBEDDED, value) for name, value in values.items()}
    return {name: more for name, more in found.items() if more is not None}


def sentences(results: Results, rounds: int) -> str:
    said = ["Final success, less that with embedded engines, differences paired by seed:", ""]
    for condition in results:
        found = differences(results, condition, rounds)
        if condition != EMBEDDED and found:
            said.append(f"- {condition}: {', '.join(f'{name} {each.text()}' for name, each in found.items())}.")
    return "\n".join(said)


def document(results: Results, rounds: int, command: str) -> Document:
    intro = (
        f"The three built-in models on the default swarm's {len(TASKS)} tasks; {ELSEWHERE}'s engine is in its "
        f"learner's process, in one of its own, or vLLM on the processor. {GROUPS} own and up to {GROUPS} foreign "
        f"groups of {COMPLETIONS} an update, default settings, {rounds} updates. Success is sampled at temperature 1 "
        f"on {MEASURING.prompts} held-out prompts a task, {MEASURING.samples} completions each, by the embedded "
        "engine. ± is the 95 % interval over seeds (Student's t)."
    )
    further = " The engines' own processes are not counted in these."
    written = EXPERIMENT.page("One node on vLLM", intro, results, command, further)
    written.section("Final success", main_table(results, rounds))
    written.section("What happened", sentences(results, rounds))
    title = f"{ELSEWHERE}: sampled reward, mean of {WINDOW} updates"
    written.plot("", title, reward_plot(title, results, rounds, lambda run: member(run, ELSEWHERE).reward))
    return written


def main() -> None:
    EXPERIMENT.run(document)


if __name__ == "__main__":
    main()
