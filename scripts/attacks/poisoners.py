"""What peers whose every reward is true can do to a learner, by what they send.

    python -m scripts.attacks.poisoners [--quick] [--kinds blanks,constant] [--seeds 3] [--rounds 60] [--json]

A real learner (``builtin:wren``) on the default swarm's six tasks, beside four honest identities, whose groups real
learners made, and two poisoners of one kind (``poisoning.kinds``): a third of its peers. Success is the mean over the
tasks, sampled on held-out prompts after the last round. A poisoner's influence lasts from the first to the last round
in which a group of its was trained on; whether it did harm shows in own reward of ``HARM_ROUNDS`` rounds and in the
success on each task. ``lenient:KIND`` has every right text count as worth copying, so that nothing
but the caps and the guard on its own success protect the learner; then they come in round ``LATE_ROUND``.

What the guards cost where nobody attacks is the mean reward of ``clean`` and ``friends`` over that of ``unguarded``,
seed by seed:

    python -m scripts.attacks.poisoners --kinds unguarded,friends,clean --seeds 5

``one:KIND`` is the same beside one honest peer alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence

from scripts.attacks.poisoning.careless import LenientTask
from scripts.attacks.poisoning.kinds import KINDS
from scripts.attacks.poisoning.learning import HONEST, IDENTITIES, TASKS, Learnt, learnt_beside
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.experiments.reports.intervals import Estimate, estimate

ROUNDS, QUICK_ROUNDS = 60, 20
POISONERS = 2
CLEAN = "clean"
FRIENDS = "friends"  # without poisoners, in a private cluster, whose members have influence from the start
UNGUARDED = "unguarded"  # without poisoners, and without any guard
WITHOUT_POISONERS = (CLEAN, FRIENDS, UNGUARDED)
HARM_ROUNDS = 10  # over which own reward is compared with clean's: fewer are mostly noise
LENIENT, ONE = "lenient:", "one:"
LATE_ROUND = 21  # in which poisoners come where nothing but the guard helps: success has to be there to fall


def run(name: str, seed: int, rounds: int, *, log: bool) -> Learnt:
    kind = name.removeprefix(LENIENT).removeprefix(ONE)
    tasks = {task: LenientTask(each) for task, each in TASKS.items()} if name.startswith(LENIENT) else TASKS
    began = time.process_time()
    learnt = learnt_beside(
        None if kind in WITHOUT_POISONERS else kind,
        seed=seed,
        rounds=rounds,
        poisoners=POISONERS,
        tasks=tasks,
        trusting=kind == FRIENDS,
        guarded=kind != UNGUARDED,
        from_round=LATE_ROUND if name.startswith(LENIENT) else 1,
        honest=HONEST[:1] if name.startswith(ONE) else HONEST,
        identities=1 if name.startswith(ONE) else IDENTITIES,
    )
    if log:
        print(f"{name} seed {seed}: {time.process_time() - began:.0f} s of CPU; {described(learnt)}", file=sys.stderr)
    return learnt


def described(learnt: Learnt) -> str:
    every = max(1, len(learnt.reward) // 12)
    rewards = " ".join(
        f"{statistics.fmean(learnt.reward[n : n + every]):.2f}" for n in range(0, len(learnt.reward), every)
    )
    final = " ".join(f"{value:.2f}" for value in learnt.final.values())
    taught: dict[str, int] = {}
    for used in learnt.used:
        for peer, count in used.items():
            taught[peer] = taught.get(peer, 0) + count
    return f"reward {rewards}; final {final}; taught by {taught}; not used {learnt.rejected}; {learnt.harms}"


def success(runs: Sequence[Learnt]) -> float:
    return statistics.fmean(statistics.fmean(each.final.values()) for each in runs)


def rewards(runs: Sequence[Learnt]) -> float:
    return statistics.fmean(statistics.fmean(each.reward) for each in runs)


def cost(runs: Sequence[Learnt], free: Sequence[Learnt]) -> Estimate:
    """Returns by how much less was earned than in the runs of the same seeds without a guard, as a share."""
    return estimate([1.0 - rewards([ours]) / rewards([theirs]) for ours, theirs in zip(runs, free, strict=True)])


def least_reward(runs: Sequence[Learnt], clean: Sequence[Learnt]) -> float:
    """Returns own reward over clean's in those ``HARM_ROUNDS`` rounds, mean of the seeds, in which it was least."""

    def by_rounds(of: Sequence[Learnt]) -> list[float]:
        by_round = [statistics.fmean(values) for values in zip(*(each.reward for each in of), strict=True)]
        windows = range(max(1, len(by_round) - HARM_ROUNDS + 1))
        return [statistics.fmean(by_round[first : first + HARM_ROUNDS]) for first in windows]

    return min(ours / theirs for ours, theirs in zip(by_rounds(runs), by_rounds(clean), strict=True))


def worst_task(runs: Sequence[Learnt], clean: Sequence[Learnt]) -> tuple[str, float]:
    """Returns the task whose final success lies furthest below clean's, and by how much."""

    def of(task: str) -> float:
        return statistics.fmean(each.final[task] for each in runs) - statistics.fmean(
            each.final[task] for each in clean
        )

    task = min(runs[0].final, key=of)
    return task, of(task)


def influence_rounds(learnt: Learnt) -> int:
    """Returns the most rounds from the first to the last in which one poisoner's groups were trained on."""
    most = 0
    for peer in {peer for used in learnt.used for peer in used if peer.startswith("poisoner")}:
        rounds = [number for number, used in enumerate(learnt.used) if used.get(peer)]
        most = max(most, rounds[-1] - rounds[0] + 1)
    return most


def figures(results: Mapping[str, Sequence[Learnt]]) -> list[Figure]:
    found: list[Figure] = []
    for name, runs in results.items():
        found.append(Figure(f"{name}, success at the end", success(runs), "", "higher"))
        found.append(Figure(f"{name}, mean reward of all rounds", rewards(runs), "", "higher"))
        prefix, _, kind = name.rpartition(":")
        beside = f"{prefix}:" if prefix else ""
        free = results.get(beside + UNGUARDED)
        if free is not None and kind in (CLEAN, FRIENDS):
            lost = cost(runs, free)
            found.append(Figure(f"{name}, reward that the guards cost", 100 * lost.mean, "%", "lower", "≤ 2"))
            half = f"{name}, reward that the guards cost, half of its 95 % interval"
            found.append(Figure(half, 100 * lost.half_width, "%", "lower"))
        clean = results.get(beside + CLEAN)
        if kind in WITHOUT_POISONERS or clean is None:
            continue
        found.append(Figure(f"{name}, success / clean", success(runs) / success(clean), "", "higher", "≥ .95"))
        least = least_reward(runs, clean)
        found.append(Figure(f"{name}, least reward of {HARM_ROUNDS} rounds / clean", least, "", "higher"))
        task, below = worst_task(runs, clean)
        found.append(Figure(f"{name}, the worst task ({task}), success - clean", below, "", "higher"))
        most = max(influence_rounds(each) for each in runs)
        found.append(Figure(f"{name}, rounds of influence, most", most, "rounds", "lower", "≤ 20 after first harm"))
    return found


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument(
        "--kinds",
        default=",".join([*WITHOUT_POISONERS, *KINDS]),
        help=f"of {', '.join([*WITHOUT_POISONERS, *KINDS])}; {LENIENT}KIND, {ONE}KIND",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help=f"one seed, {QUICK_ROUNDS} rounds")
    options = parser.parse_args()
    seeds, rounds = (1, QUICK_ROUNDS) if options.quick else (options.seeds, options.rounds)
    results = {
        name: [run(name, options.first_seed + seed, rounds, log=True) for seed in range(seeds)]
        for name in options.kinds.split(",")
    }
    report("poisoners", figures(results), as_json=options.json)


if __name__ == "__main__":
    main()
