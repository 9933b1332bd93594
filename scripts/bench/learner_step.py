"""One optimizer step of the learner: builtin:robin, 32 × 8 completions of at most 32 tokens, float32, on the CPU.

  all       every completion has an advantage of its own: nothing can be spared
  rewarded  the same completions with their real rewards: what has advantage 0 costs no pass, equal ones cost one

The policy samples prompts of the default swarm's tasks; from there on every contender trains on the same tokens with
the same advantages, forward, backward, clipping and AdamW, generation and rewards not counted. ``trl`` is TRL's
GRPOTrainer as it comes (loss "dapo", no KL), without gradient checkpointing, which would slow it down. Each runs in a
process of its own, in turn, round after round; figures are medians over all steps. That the first step has the same
gradient norm is checked.

    python scripts/bench/learner_step.py --against trl [--json]

``--against trl`` makes an environment of its own, ``.venv-trl`` (1.5 GB), the first time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).resolve().parent)]

from node.compute_environment import compute_environment  # noqa: E402

os.environ |= compute_environment(os.environ)  # as a node starts its learner

import numpy as np  # noqa: E402
from report import Figure, add_json_flag, report  # noqa: E402
from trl_environment import TRL_PYTHON, prepare_trl  # noqa: E402

from node.configuration import PolicySection, TasksSection  # noqa: E402
from node.engines.engine import GenerationRequest, Sampling  # noqa: E402
from node.engines.torch import TorchEngine  # noqa: E402
from node.learner.objective.advantages import group_advantages  # noqa: E402
from node.policy.policy import Policy, model_folder  # noqa: E402
from node.tasks.registry import load_tasks  # noqa: E402

MODEL: Final = "builtin:robin"
GROUPS: Final = 32
COMPLETIONS: Final = 8
LONGEST: Final = 32
AGREEMENT: Final = 1e-3


def sampled_batch() -> dict[str, Any]:
    """Prompts, completions, their log-probabilities and real rewards, as plain lists."""
    policy = Policy.load(PolicySection(model=MODEL), seed=0)
    tasks = list(load_tasks(TasksSection()).values())
    prompts = [task.prompt(task.ref(seed)) for seed in range(GROUPS) for task in tasks][:GROUPS]
    by_name = {task.name: task for task in tasks}
    prompt_ids = [policy.tokens.prompt_ids(prompt.text) for prompt in prompts]
    requests = [GenerationRequest(tuple(ids), COMPLETIONS, LONGEST) for ids in prompt_ids]
    generated = TorchEngine(policy, rows=128, seed=0).generate(requests, Sampling(1.0, 0))
    rewards = [
        by_name[prompt.ref.task].rewards(
            prompt, [policy.tokens.text_of(s.token_ids.tolist()).decode("utf-8", "replace") for s in samples]
        )
        for prompt, samples in zip(prompts, generated, strict=True)
    ]
    return {
        "model": str(model_folder(MODEL)),
        "prompts": prompt_ids,
        "completions": [[s.token_ids.tolist() for s in samples] for samples in generated],
        "logps": [[s.logps.tolist() for s in samples] for samples in generated],
        "rewards": [list(map(float, each)) for each in rewards],
        "longest": LONGEST,
    }


def with_advantages(batch: dict[str, Any], mode: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rewards = batch["rewards"] if mode == "rewarded" else rng.normal(size=(GROUPS, COMPLETIONS)).tolist()
    return batch | {"advantages": [group_advantages(np.array(r, dtype=np.float32)).tolist() for r in rewards]}


def run(contender: str, batch: Path, steps: int, threads: int) -> dict[str, Any]:
    python = str(TRL_PYTHON) if contender == "trl" else sys.executable
    script = str(Path(__file__).with_name("learner_step_contender.py"))
    command = [python, script, contender, str(batch), str(steps), str(threads)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def figures_of(mode: str, folder: Path, batch: dict[str, Any], arguments: argparse.Namespace) -> list[Figure]:
    path = folder / f"{mode}.json"
    path.write_text(json.dumps(with_advantages(batch, mode)))
    contenders = ["starling", *([arguments.against] if arguments.against else [])]
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    norms: dict[str, float] = {}
    for _ in range(arguments.rounds):
        for name in contenders:
            found = run(name, path, arguments.steps, arguments.threads)
            seconds[name] += found["seconds"]
            norms[name] = found["first_gradient_norm"]
    apart = max(norms.values()) / min(norms.values()) - 1
    if apart > AGREEMENT:
        raise SystemExit(f"{mode}: the first gradients differ: norms {norms}")
    rates = {name: 1 / statistics.median(values) for name, values in seconds.items()}
    figures = [Figure(f"{mode}: {name}", rate, "steps/s", "higher") for name, rate in rates.items()]
    if arguments.against:
        ratio = rates["starling"] / rates[arguments.against]
        figures.append(Figure(f"{mode}: starling / {arguments.against}", ratio, "×", "higher", "≥ 3"))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--against", choices=["trl"], help="also measure TRL's GRPOTrainer, in an environment of its own"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="timed steps a round")
    parser.add_argument("--threads", type=int, default=2)
    add_json_flag(parser)
    arguments = parser.parse_args()
    if arguments.against:
        prepare_trl()
    batch = sampled_batch()
    tokens = [len(c) for group in batch["completions"] for c in group]
    figures = [Figure("completion tokens, mean", statistics.fmean(tokens), "tokens", "higher")]
    with tempfile.TemporaryDirectory() as folder:
        for mode in ("all", "rewarded"):
            figures += figures_of(mode, Path(folder), batch, arguments)
    report("learner_step", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
