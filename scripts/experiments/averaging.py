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

from scripts.experiments.harness.experiment import Condition, Experiment, curve, seconds_a_run
from scripts.experiments.language_model.averaging_liars import (
    HONEST_REFUSED,
    HONEST_TAKEN,
    HONEST_WEIGHT,
    LIES_REFUSED,
    LIES_TAKEN,
    LIES_WEIGHT,
)
from scripts.experiments.language_model.averaging_run import BASE_STEPS, Level, ReplicaPlan, ReplicaResult
from scripts.experiments.reports.intervals import Estimate, estimate
from scripts.experiments.reports.plots import line_plot
from scripts.experiments.reports.report_document import Document, Figure, conditions_table, table

ROUNDS: Final = 600
REPLICAS: Final = 8
BATCH: Final = 8
LEARNING_RATE: Final = 5e-4
EVERY: Final = 5
LATE: Final = 3
BAR: Final = "≤ 1"
FAST_RATE: Final = 4 * LEARNING_RATE


@dataclass(frozen=True)
class AveragingSetting:
    """One condition: ``settings`` are the rule's; conditions with a bar run with every seed, the others with one."""

    rule: str
    what: str
    settings: Mapping[str, object] = field(default_factory=dict)
    seeds_most: int | None = 1
    learning_rate: float = LEARNING_RATE
    decays: bool = False
    late: int = 0


def faster(setting: AveragingSetting, *, decays: bool) -> AveragingSetting:
    how = "decays to a tenth by half a cosine" if decays else "constant"
    what = f"learning rate {FAST_RATE:g}, {how}"
    return replace(setting, what=what, learning_rate=FAST_RATE, decays=decays, seeds_most=None if decays else 1)


# Of all rows in few bytes: what a node had when they were compared. ``unsent.py`` has what followed.
COMPARED: Final[Mapping[str, object]] = {"kept": 64, "unsent_kept": 0.0, "outer_rate": 1.0}
NONE, DILOCO, NOLOCO, COMPRESSED = "no averaging", "DiLoCo", "NoLoCo", "compressed"
LATE_NOLOCO, LATE_COMPRESSED = f"NoLoCo, {LATE} steps late", f"compressed, {LATE} steps late"
NO_SLICE, SLICE, COPIES = "compressed, no slice", "slice of weights alone", "known copies"
PAIRS, FLOOR = "DiLoCo, pairs alone", "one replica, 8 × the batch"
SAME_MOMENTUM = "DiLoCo, μ .5"
TWO_BITS, TWO_BITS_MORE = "compressed, 2-bit slice", "compressed, k = 48, 2-bit slice"
DECAYING, CONSTANT = "fast, decaying: ", "fast: "
BARS: Final = {
    NONE: AveragingSetting("alone", "every replica alone", seeds_most=None),
    DILOCO: AveragingSetting("diloco", "mean pseudo-gradient of all eight by gossip in three exchanges, η .7, μ .3",
                            seeds_most=None),
    NOLOCO: AveragingSetting("noloco", "random pairs, dense bf16, η = γ = .7, μ .5", seeds_most=None),
    COMPRESSED: AveragingSetting(
        "compressed",
        "random pairs: update in two bits a value, 64 of 4096; every 18th weight, 3 bits",
        seeds_most=None,
    ),
}  # fmt: skip
HONEST_TIMES: Final = 20
NO_DEFENCE, JUDGED = "liar: NoLoCo, no defence", "liar: NoLoCo, as the node does"
LATE_JUDGED, QUIET_JUDGED = "late liar: NoLoCo, as the node does", "quiet liar: NoLoCo, as the node does"
QUIET_MEAN, QUIET_CLIPPED = "quiet liar: DiLoCo, mean", "quiet liar: DiLoCo, CenteredClip"
HUGE, HUGE_JUDGED = "huge liar: NoLoCo, no defence", "huge liar: NoLoCo, as the node does"
LATE_HUGE_JUDGED = "late huge liar: NoLoCo, as the node does"
HONEST_CLIPPED = "no liar: DiLoCo, CenteredClip"
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
    QUIET_MEAN: AveragingSetting(
        "one_place",
        "the same liar; mean of all eight pseudo-gradients in one place, η .7, μ .3",
        {"lie": "quiet", "clipped": False},
    ),
    QUIET_CLIPPED: AveragingSetting(
        "one_place",
        "the same liar; the eight's centre by CenteredClip instead of their mean",
        {"lie": "quiet", "clipped": True},
    ),
    HONEST_CLIPPED: AveragingSetting(
        "one_place", "CenteredClip among eight that are honest", {"lie": None, "clipped": True}
    ),
}
CONDITIONS: Final[Mapping[str, AveragingSetting]] = {
    **BARS,
    **{DECAYING + name: faster(BARS[name], decays=True) for name in (DILOCO, NOLOCO, COMPRESSED)},
    **{CONSTANT + name: faster(BARS[name], decays=False) for name in (DILOCO, NOLOCO, COMPRESSED)},
    LATE_NOLOCO: replace(BARS[NOLOCO], what=f"outer step {LATE} inner steps after the offer", seeds_most=1, late=LATE),
    LATE_COMPRESSED: replace(BARS[COMPRESSED], what="as late", seeds_most=1, late=LATE),
    SAME_MOMENTUM: AveragingSetting("diloco", "as DiLoCo, with NoLoCo's momentum", {"momentum": 0.5}, seeds_most=None),
    TWO_BITS: AveragingSetting(
        "compressed", "every 12th weight in 2 bits, as many bytes", {"stride": 12, "bits": 2}, seeds_most=None
    ),
    TWO_BITS_MORE: AveragingSetting(
        "compressed",
        "48 of 4096; every 10th weight in 2 bits, as many bytes",
        {"kept": 48, "stride": 10, "bits": 2},
        seeds_most=None,
    ),
    PAIRS: AveragingSetting("diloco_pairs", "one exchange with a random partner, and nothing that holds φ together"),
    NO_SLICE: AveragingSetting("compressed", "the update alone", {"consensus_rate": 0.0, "stride": 65_535}),
    "compressed, 8-bit slice": AveragingSetting(
        "compressed", "every 48th weight in 8 bits, as many bytes", {"stride": 48, "bits": 8}
    ),
    "compressed, residual decays": AveragingSetting(
        "compressed", "β = .95, as SparseLoCo has it", {"residual_decay": 0.95}
    ),
    "SparseLoCo, all to all": AveragingSetting("sparseloco", "everybody's update to everybody, one φ"),
    SLICE: AveragingSetting("slice", "every 50th weight in bf16, averaged; no update (SPARTA)", {"stride": 50}),
    COPIES: AveragingSetting(
        "copies", "top 128 of 4096 of θ less the copy that this partner holds (CHOCO-SGD)", {"kept": 128}
    ),
    FLOOR: AveragingSetting("alone", "what all tokens in one place give at as many steps"),
    **LIARS,
}
IN_PLOT: Final = (NONE, DILOCO, NOLOCO, COMPRESSED, NO_SLICE, SLICE, COPIES, FLOOR)


def plan(condition: Condition, seed: int, rounds: int) -> ReplicaPlan:
    setting = CONDITIONS[condition.name]
    floor = condition.name == FLOOR
    settings = dict(setting.settings)
    if setting.rule in ("compressed", "sparseloco"):
        settings = {**COMPARED, **settings}
    return ReplicaPlan(
        experiment="averaging",
        condition=condition.name,
        seed=seed,
        rounds=rounds,
        rule=setting.rule,
        settings=settings,
        replicas=1 if floor else REPLICAS,
        batch=BATCH * REPLICAS if floor else BATCH,
        learning_rate=setting.learning_rate,
        decays=setting.decays,
        every=EVERY,
        late=setting.late,
    )


EXPERIMENT: Final = Experiment(
    name="averaging",
    description=(__doc__ or "").partition("\n")[0],
    conditions=[Condition(name, each.what, {}, each.seeds_most) for name, each in CONDITIONS.items()],
    plan=plan,
    rounds=ROUNDS,
)
Results = Mapping[str, Sequence[ReplicaResult]]


def by_seed(results: Results, name: str) -> dict[int, float]:
    """Returns the final loss of each seed."""
    return {result.seed: result.levels[-1].loss for result in results.get(name, ())}


def against(results: Results, name: str, base: str) -> Estimate | None:
    """Returns by how many per cent the final loss under ``name`` exceeds ``base``, over the seeds that both have."""
    ours, theirs = by_seed(results, name), by_seed(results, base)
    shared = sorted(ours.keys() & theirs.keys())
    return estimate([100 * (ours[seed] / theirs[seed] - 1) for seed in shared]) if shared else None


def dense_of(name: str) -> str:
    """Returns the name of NoLoCo at the same learning rate."""
    return next((prefix + NOLOCO for prefix in (DECAYING, CONSTANT) if name.startswith(prefix)), NOLOCO)


def final_table(results: Results) -> str:
    header = ["condition", "loss", "against NoLoCo at that rate, %", "loss of the mean", "distance", "bytes"]
    rows = []
    for name, runs in results.items():
        if name in LIARS:
            continue
        per_cent = against(results, name, dense_of(name)) if name != dense_of(name) else None
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
        per_cents = [against(results, name, base) for base in (NOLOCO, DILOCO)]
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


def compared() -> list[tuple[str, str, str]]:
    """Returns the comparisons: (condition, base, bar)."""
    pairs = [(NONE, NOLOCO, "")]
    for prefix in ("", DECAYING, CONSTANT):
        pairs += [(prefix + NOLOCO, prefix + DILOCO, BAR), (prefix + COMPRESSED, prefix + NOLOCO, BAR)]
    pairs += [(each, NOLOCO, BAR) for each in (TWO_BITS, TWO_BITS_MORE)]
    return [*pairs, (NOLOCO, SAME_MOMENTUM, ""), (LATE_NOLOCO, NOLOCO, ""), (LATE_COMPRESSED, COMPRESSED, "")]


def verdict(per_cent: Estimate, bar: str) -> str:
    """Returns whether the mean, and whether its whole interval, meets a bar of at most 1 %."""
    if not bar:
        return ""
    if per_cent.mean > 1:
        return "missed"
    if per_cent.count < 2:
        return "met, one seed"
    return "met by the whole interval" if per_cent.high <= 1 else "met by the mean, not by the whole interval"


def comparisons(results: Results) -> str:
    rows = []
    for name, base, bar in compared():
        per_cent = against(results, name, base)
        if per_cent is not None:
            rows.append([f"{name} against {base}", per_cent.text(2), bar, verdict(per_cent, bar)])
    return table(["final loss", "%", "bar", ""], rows)


def document(results: Results, rounds: int, command: str) -> Document:
    base = statistics.fmean(r.levels[0].loss for runs in results.values() for r in runs) if results else 0.0
    intro = (
        f"{REPLICAS} replicas of a language model start from one base (loss {base:.3f} after {BASE_STEPS} steps) and "
        f"take {rounds} AdamW steps on {BATCH} documents of their own, at a learning rate of {LEARNING_RATE:g}, "
        f"constant, or “fast”, at {FAST_RATE:g}; every {EVERY} steps an outer step. Loss: nats a token on held-out "
        "documents, mean over the replicas with their own weights; “loss of the mean” is that of all replicas' mean "
        "weights. Distance: ‖θ - mean‖ / ‖mean‖. Bytes: taken in by one replica for one outer step, for each parameter "
        "(headers weigh more here than in a large model). ± is the 95 % interval over seeds (Student's t), of "
        "differences paired by seed. The same among nodes that learn by reinforcement: [family.md](family.md)."
    )
    written = Document("averaging", "Averaging weights, and in how few bytes", intro, command)
    counts = {name: len(runs) for name, runs in results.items()}
    written.section("Conditions", conditions_table({name: each.what for name, each in CONDITIONS.items()}, counts))
    if not results:
        return written
    written.parts.append(seconds_a_run(results))
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
            for n in IN_PLOT
            if n in results
        ]
        ys = [y for line in lines for y in line.y]
        span = (min(ys) - 0.01, max(ys) + 0.01)
        written.plot(suffix, title, line_plot(title, lines, x_label="inner steps", y_label="", y_range=span))
    return written


def figures(results: Results) -> list[Figure]:
    found = []
    liars = [(name, DILOCO if each.rule == "one_place" else NOLOCO, "") for name, each in LIARS.items()]
    for name, base, bar in [*compared(), *liars]:
        per_cent = against(results, name, base)
        if per_cent is not None:
            found.append(Figure(f"{name} against {base}, final loss", per_cent.mean, "%", "lower", bar))
    return found


def main() -> None:
    EXPERIMENT.run(document, lambda results, rounds: figures(results))


if __name__ == "__main__":
    main()
