"""Do conversations of a peer teach a model that lacks the game? Two unlike nodes on one simulated network.

    python -m scripts.experiments.conversations [--rounds 30] [--seeds 1] [--json]

Both train on the smallest grid. One was taught mostly shortest ways; the other, of another size and with other token
ids, steps that lead nowhere (``scripts.experiments.harness.players``). The latter trains alone, and beside the former,
whom it trusts, with otherwise equal settings. Every conversation is encoded, announced, fetched, replayed and compared
as between nodes. Success is the mean reward of held-out episodes, sampled: the length of a shortest way as a part of
the steps taken.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any, Final

from scripts.experiments.harness.nodes_run import execute
from scripts.experiments.harness.plans import NodePlan, RunPlan, RunResult
from scripts.experiments.harness.players import TaughtModel
from scripts.experiments.models import MODELS_FOLDER

GAME: Final = "grid:tiny"
EPISODES: Final = 200
MEASURED_TIMES: Final = 3
LEARNING: Final = {"foreign_groups": 0, "completions": 8, "learning_rate": 2e-3}
SHARING: Final = {**LEARNING, "foreign_groups": "auto", "replay_seconds": 600.0}  # as if the machine were quiet
TAUGHT_AIMLESS: Final = 0.2  # share of the walks that lead nowhere, of what the one that knows the game is taught


def plan(seed: int, rounds: int, *, together: bool) -> RunPlan:
    settings: dict[str, Any] = {"learner": SHARING if together else LEARNING}
    learns = TaughtModel(GAME, seed, reversed_alphabet=True, changes={"hidden_size": 64})
    nodes = [NodePlan("learns", learns.ensure().name, settings)]
    if together:
        nodes.append(NodePlan("knows", TaughtModel(GAME, seed, aimless=TAUGHT_AIMLESS).ensure().name, settings))
    measured = tuple(sorted({round(rounds * part / MEASURED_TIMES) for part in range(MEASURED_TIMES + 1)}))
    condition = "together" if together else "alone"
    return RunPlan("conversations", condition, seed, rounds, tuple(nodes), (GAME,), measured, EPISODES, 1)


def row(result: RunResult, name: str) -> dict[str, Any]:
    node = next(each for each in result.nodes if each.name == name)
    return {
        "condition": result.condition,
        "node": name,
        "seed": result.seed,
        "success": {each.round: round(each.sampled[GAME], 3) for each in node.measurements},
        "reward": round(sum(node.reward), 2),
        "groups_used": node.foreign_groups_used,
        "rejected": node.rejected,
        "cpu_seconds": round(result.cpu_seconds, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for together in (False, True):
            result = execute(plan(seed, options.rounds, together=together), MODELS_FOLDER)
            rows += [row(result, node.name) for node in result.nodes]
            print(json.dumps(rows[-1 - together]), file=sys.stderr, flush=True)
    alone, together_ = (
        statistics.fmean(each["reward"] for each in rows if (each["node"], each["condition"]) == ("learns", condition))
        for condition in ("alone", "together")
    )
    gain = 100 * (together_ / alone - 1)
    if options.json:
        print(json.dumps({"game": GAME, "rounds": options.rounds, "runs": rows, "cumulative_reward_gain": gain}))
        return
    for each in rows:
        success = ", ".join(f"{value:.2f} after {number}" for number, value in each["success"].items())
        print(
            f"{each['condition']:8} {each['node']:6} seed {each['seed']}: {success}; {each['groups_used']} groups used"
        )
    print(f"cumulative reward of the one that learns: {alone:.1f} alone, {together_:.1f} together, {gain:+.0f} %")


if __name__ == "__main__":
    main()
