"""Replicas of one model, each on its own texts: the gain of averaging their weights, and its bytes.

    python -m scripts.experiments.averaging [--rounds 600] [--seeds 3] [--only PATTERN] [--jobs 2] [--json]

Eight replicas of a language model of 77,000 parameters start from one base and take equally many inner steps, each on
its own documents of a made-up language (``language.py``). Every ``EVERY`` steps they exchange weights by
the rule of the condition. The measure is held-out loss, mean over the replicas, each with its own weights.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from node.averaging.compressed import CompressedConstants
from scripts.bench.common.reporting import Figure
from scripts.experiments.harness.experiment import Condition, Experiment, curve, per_cent_more, verdict
from scripts.experiments.language_model.averaging_liars import (
    HONEST_REFUSED,
    HONEST_TAKEN,
    HONEST_WEIGHT,
    LIES_REFUSED,
    LIES_TAKEN,
    LIES_WEIGHT,
)
from scripts.experiments.language_model.averaging_run import BASE_STEPS, Level, ReplicaPlan, ReplicaResult
from scripts.experiments.reports.intervals import estimate
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import Document, table

ROUNDS: Final = 600
REPLICAS: Final = 8
BATCH: Final = 8
LEARNING_RATE: Final = 5e-4
EVERY: Final = 5
BAR: Final = 1.0  # per cent
FAST_RATE: Final = 4 * LEARNING_RATE
SHIPPED: Final = CompressedConstants()


@dataclass(frozen=True)
class AveragingSetting:
    """One condition: ``settings`` are the rule's; conditions with a bar run with every seed, the others with one."""

    rule: str
    what: str
    settings: Mapping[str, object] = field(default_factory=dict)
    seeds_most: int | None = 1
    learning_rate: float = LEARNING_RATE
    decays: bool = False


NONE, DILOCO, NOLOCO, COMPRESSED = "no averaging", "DiLoCo", "NoLoCo", "compressed"
DECAYING: Final = "fast, decaying: "
BARS: Final = {
    NONE: AveragingSetting("alone", "every replica alone", seeds_most=None),
    DILOCO: AveragingSetting("diloco", "mean pseudo-gradient of all eight by gossip in three exchanges, η .7, μ .3",
                            seeds_most=None),
    NOLOCO: AveragingSetting("noloco", "random pairs, dense bf16, η = γ = .7, μ .5", seeds_most=None),
    COMPRESSED: AveragingSetting(
        "compressed",
        f"random pairs, as a node does: update in two bits a value, {SHIPPED.kept} of 4096, the rest kept; "
        f"every {SHIPPED.stride}th weight, {SHIPPED.bits} bits",
        seeds_most=None,
    ),
}  # fmt: skip
HONEST_TIMES: Final = 20
NO_DEFENCE, JUDGED = "liar: NoLoCo, no defence", "liar: NoLoCo, as the node does"
LATE_JUDGED, QUIET_JUDGED = "late liar: NoLoCo, as the node does", "quiet liar: NoLoCo, as the node does"
HUGE, HUGE_JUDGED = "huge liar: NoLoCo, no defence", "huge liar: NoLoCo, as the node does"
LATE_HUGE_JUDGED = "late huge liar: NoLoCo, as the node does"
LIARS: Final = {
    NO_DEFENCE: AveragingSetting(
        "pairs_with_liar",
        "one of eight offers θ + 10 ‖θ - φ‖ u, u a random direction; its own loss is not in the mean; all take it",
        {"lie": "large", "judged": False},
        seeds_most=None,
    ),
    JUDGED: AveragingSetting(
        "pairs_with_liar",
        "the same liar; each other refuses and weighs by its own past of norms (swarm/averaging/norm_history.py)",
        {"lie": "large", "judged": True},
    ),
    LATE_JUDGED: AveragingSetting(
        "pairs_with_liar",
        f"the same, but the liar is honest the first {HONEST_TIMES} times",
        {"lie": "large", "judged": True, "honest_times": HONEST_TIMES},
    ),
    HUGE: AveragingSetting(
        "pairs_with_liar", "as liar, 100 ‖θ - φ‖ instead of 10; all take it", {"lie": "huge", "judged": False}
    ),
    HUGE_JUDGED: AveragingSetting(
        "pairs_with_liar", "the same, judged as above", {"lie": "huge", "judged": True}, seeds_most=None
    ),
    LATE_HUGE_JUDGED: AveragingSetting(
        "pairs_with_liar",
        f"the same, but the liar is honest the first {HONEST_TIMES} times",
        {"lie": "huge", "judged": True, "honest_times": HONEST_TIMES},
    ),
    QUIET_JUDGED: AveragingSetting(
        "pairs_with_liar",
        "one of eight offers φ - (θ - φ), of ordinary length; its own loss is not in the mean; judged as above",
        {"lie": "quiet", "judged": True},
    ),
}
FAST: Final = {
    DECAYING + name: replace(
        BARS[name],
        what=f"learning rate {FAST_RATE:g}, decays to a tenth by half a cosine",
        learning_rate=FAST_RATE,
        decays=True,
    )
    for name in (DILOCO, NOLOCO, COMPRESSED)
}
CONDITIONS: Final[Mapping[str, AveragingSetting]] = {**BARS, **FAST, **LIARS}
# condition, its base, and whether it has the bar
COMPARISONS: Final = (
    (NONE, NOLOCO, False),
    (NOLOCO, DILOCO, True),
    (COMPRESSED, NOLOCO, True),
    (DECAYING + NOLOCO, DECAYING + DILOCO, True),
    (DECAYING + COMPRESSED, DECAYING + NOLOCO, True),
)


def plan(condition: Condition, seed: int, rounds: int) -> ReplicaPlan:
    setting = CONDITIONS[condition.name]
    return ReplicaPlan(
        experiment="averaging",
        condition=condition.name,
        seed=seed,
        rounds=rounds,
        rule=setting.rule,
        settings=dict(setting.settings),
        replicas=REPLICAS,
        batch=BATCH,
        learning_rate=setting.learning_rate,
        decays=setting.decays,
        every=EVERY,
    )


EXPERIMENT: Final = Experiment(
    name="averaging",
    description=__doc__,
    conditions=[Condition(name, each.what, {}, each.seeds_most) for name, each in CONDITIONS.items()],
    plan=plan,
    rounds=ROUNDS,
)
Results = Mapping[str, Sequence[ReplicaResult]]


def final_loss(result: ReplicaResult) -> float:
    return result.levels[-1].loss


def dense_of(name: str) -> str:
    """Returns the name of NoLoCo at the same learning rate."""
    return DECAYING + NOLOCO if name.startswith(DECAYING) else NOLOCO


def final_table(results: Results) -> str:
    header = ["condition", "loss", "against NoLoCo at that rate, %", "loss of the mean", "distance", "bytes"]
    rows = []
    for name, runs in results.items():
        if name in LIARS:
            continue
        per_cent = per_cent_more(results, name, dense_of(name), final_loss) if name != dense_of(name) else None
        rows.append(
            [
                name,
                estimate(last(runs, lambda x: x.loss)).text(4),
                per_cent.text(2) if per_cent is not None else "",
                estimate(last(runs, lambda x: x.loss_of_mean)).text(4),
                estimate(last(runs, lambda x: x.distance)).text(3),
                f"{bytes_a_parameter(runs):.4f}",
            ]
        )
    return table(header, rows)


def liars_table(results: Results) -> str:
    header = ["condition", "loss", "against NoLoCo without a liar, %", "against DiLoCo without a liar, %",
              "lies refused, %", "weight of a lie taken", "honest refused, %", "weight of an honest one"]  # fmt: skip
    rows = []
    for name in LIARS:
        if name not in results:
            continue
        per_cents = [per_cent_more(results, name, base, final_loss) for base in (NOLOCO, DILOCO)]
        total: defaultdict[str, float] = defaultdict(float)
        for run in results[name]:
            for kind, count in run.verdicts.items():
                total[kind] += count
        lies = total[LIES_TAKEN] + total[LIES_REFUSED]
        honest = total[HONEST_TAKEN] + total[HONEST_REFUSED]
        rows.append(
            [
                name,
                estimate(last(results[name], lambda x: x.loss)).text(4),
                *(each.text(2) if each is not None else "" for each in per_cents),
                f"{100 * total[LIES_REFUSED] / lies:.1f}" if lies else "",
                f"{total[LIES_WEIGHT] / total[LIES_TAKEN]:.2f}" if total[LIES_TAKEN] else "",
                f"{100 * total[HONEST_REFUSED] / honest:.1f}" if honest else "",
                f"{total[HONEST_WEIGHT] / total[HONEST_TAKEN]:.3f}" if total[HONEST_TAKEN] else "",
            ]
        )
    return table(header, rows)


def last(results: Sequence[ReplicaResult], value: Callable[[Level], float]) -> list[float]:
    return [value(result.levels[-1]) for result in results]


def bytes_a_parameter(runs: Sequence[ReplicaResult]) -> float:
    """Returns the bytes per parameter that one replica receives for one outer step."""
    return statistics.fmean(run.received_bytes / run.parameters for run in runs)


def comparisons(results: Results) -> str:
    rows = []
    for name, base, has_bar in COMPARISONS:
        per_cent = per_cent_more(results, name, base, final_loss)
        if per_cent is not None:
            judged = [f"≤ {BAR:g}", verdict(per_cent, BAR)] if has_bar else ["", ""]
            rows.append([f"{name} against {base}", per_cent.text(2), *judged])
    return table(["final loss", "%", "bar", ""], rows)


def document(results: Results, rounds: int, command: str) -> Document:
    base = statistics.fmean(r.levels[0].loss for runs in results.values() for r in runs)
    intro = (
        f"{REPLICAS} replicas of a language model start from one base (loss {base:.3f} after {BASE_STEPS} steps) and "
        f"take {rounds} AdamW steps on {BATCH} documents of their own, at a learning rate of {LEARNING_RATE:g}, "
        f"constant, or “fast”, at {FAST_RATE:g}, which decays; every {EVERY} steps an outer step. Loss: nats a "
        "token on held-out documents, mean over the replicas with their own weights; “loss of the mean” is that of all "
        "replicas' mean "
        "weights. Distance: ‖θ - mean‖ / ‖mean‖. Bytes: taken in by one replica for one outer step, for each parameter "
        "(headers weigh more here than in a large model). ± is the 95 % interval over seeds (Student's t), of "
        "differences paired by seed. The same among nodes that learn by reinforcement: [family.md](family.md)."
    )
    written = EXPERIMENT.page("Averaging weights, and in how few bytes", intro, results, command)
    written.section("Final loss", final_table(results))
    written.section("Against each other", comparisons(results))
    if any(name in results for name in LIARS):
        written.section("One liar among eight", liars_table(results))
    plots: tuple[tuple[str, str, Callable[[Level], float]], ...] = (
        ("", "Held-out loss", lambda x: x.loss),
        ("-distance", "Distance of the replicas from their mean", lambda x: x.distance),
    )
    for suffix, title, value in plots:
        lines = [
            curve(n, [x.step for x in results[n][0].levels], [[value(x) for x in r.levels] for r in results[n]])
            for n in BARS
            if n in results
        ]
        ys = [y for line in lines for y in line.y]
        span = (min(ys) - 0.01, max(ys) + 0.01)
        written.plot(suffix, title, line_plot(title, lines, x_label="inner steps", y_label="", y_range=span))
    return written


def figures(results: Results, rounds: int) -> list[Figure]:
    found = []
    liars = [(name, NOLOCO, False) for name in LIARS]
    for name, base, has_bar in [*COMPARISONS, *liars]:
        per_cent = per_cent_more(results, name, base, final_loss)
        if per_cent is not None:
            bar = f"≤ {BAR:g}" if has_bar else ""
            found.append(Figure(f"{name} against {base}, final loss", per_cent.mean, "%", "lower", bar))
    return found


def main() -> None:
    EXPERIMENT.run(document, figures)


if __name__ == "__main__":
    main()
