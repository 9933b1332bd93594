"""``starling`` with stand-ins for what needs torch: ``python -m`` this, what to replace, a verb, its flags.

``learner`` is replaced by ``stand_in_learner``; with ``rest`` it is the real one, which rests between rounds
(``resting_learner``), and with ``hasty`` it also awaits lost machines for seconds alone (``hasty_learner``);
``evaluation`` by one that names the newest checkpoint and finds every model as good as every other. The verbs
themselves, supervisors, swarm processes and the demonstration, whose nodes get the same stand-ins, are the real ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from node.checkpoints.checkpoint_files import rounds
from node.cli.main import main
from node.configuration import Config
from node.demo import member
from node.evaluation.evaluation_result import Evaluation
from node.home import Home
from node.supervision import start

THIS = "tests.processes.starling_with_stand_ins"
REWARDS = {"spell_backward": 0.25}


def evaluate_policy(
    home: Home,
    config: Config,
    checkpoint: Path | None,
    *,
    prompts: int,
    seed: int,
    on_progress: Callable[[int, int], None],
) -> Evaluation:
    on_progress(0, 2 * prompts)
    on_progress(prompts, 2 * prompts)
    found = checkpoint or next(reversed(rounds(home.checkpoints)), None)
    return Evaluation(
        model=config.policy.model,
        round=int(found.name.removeprefix("round-")) if found else 0,
        checkpoint=str(found) if found else None,
        prompts=prompts,
        samples=1,
        seed=seed,
        greedy=REWARDS,
        sampled=REWARDS,
    )


def replace(what: str) -> None:
    member.STARLING = (sys.executable, "-P", "-m", THIS, what)
    for name, module in (("learner", "stand_in_learner"), ("rest", "resting_learner"), ("hasty", "hasty_learner")):
        if name in what.split(","):
            start.LEARNER_COMMAND = (sys.executable, "-P", "-m", f"tests.processes.{module}")
    if "evaluation" in what.split(","):
        stand_in = ModuleType("node.evaluation.evaluation")
        stand_in.evaluate_policy = evaluate_policy  # type: ignore[attr-defined]
        sys.modules[stand_in.__name__] = stand_in


if __name__ == "__main__":
    replace(sys.argv.pop(1))
    main()
