"""One optimizer step of the learner: builtin:robin, 32 × 8 completions of at most 32 tokens, float32, on the CPU.

  all       every completion has its own advantage: no pass can be saved
  rewarded  the same completions with their real rewards: advantage 0 costs no pass, equal completions cost one

The policy completes prompts of the default swarm's tasks; then every contender trains on the same tokens with the same
advantages: forward, backward, clipping and AdamW, without generation and rewards. ``trl`` is TRL's GRPOTrainer with its
defaults (loss "dapo", no KL), but without gradient checkpointing, which would slow it down. Each runs in its own
process, in turn, round after round; a speed is the median over all steps, and the ratio the median over rounds, both
sides of which were measured within half a minute: a shared machine's speed changes by more from one minute to the next.
The benchmark fails unless the first step has the same gradient norm for all.

    python -m scripts.bench.learner_step --against trl [--json]

``--against trl`` makes a virtual environment, ``.venv-trl`` (1.5 GB), the first time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from node.configuration import PolicySection, TasksSection
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.learner.objective.advantages import group_advantages
from node.policy.model_files import model_folder
from node.policy.policy import Policy
from node.tasks.registry import load_tasks
from scripts import REPOSITORY
from scripts.bench.common.processes import ensure_compute_environment
from scripts.bench.common.reporting import Figure, figures_parser, report
from scripts.bench.contenders.environments import TRL_PYTHON, prepare_trl

MODEL: Final = "builtin:robin"
GROUPS: Final = 32
COMPLETIONS: Final = 8
LONGEST: Final = 32
AGREEMENT: Final = 1e-3


def sampled_batch() -> dict[str, Any]:
    """Returns prompts, completions, their log-probabilities and real rewards, as plain lists."""
    policy = Policy.load(PolicySection(model=MODEL))
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
    module = "scripts.bench.contenders.learner_step_contender"
    command = [python, "-m", module, contender, str(batch), str(steps), str(threads)]
    result = subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY)
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def figures_of(mode: str, folder: Path, batch: dict[str, Any], arguments: argparse.Namespace) -> list[Figure]:
    path = folder / f"{mode}.json"
    path.write_text(json.dumps(with_advantages(batch, mode)))
    contenders = ["starling", *([arguments.against] if arguments.against else [])]
    seconds: dict[str, list[list[float]]] = {name: [] for name in contenders}  # by round
    norms: dict[str, float] = {}
    for _ in range(arguments.rounds):
        for name in contenders:
            found = run(name, path, arguments.steps, arguments.threads)
            seconds[name].append(found["seconds"])
            norms[name] = found["first_gradient_norm"]
    apart = max(norms.values()) / min(norms.values()) - 1
    if apart > AGREEMENT:
        raise SystemExit(f"{mode}: the first gradients differ: norms {norms}")
    rates = {name: 1 / statistics.median(chain.from_iterable(rounds)) for name, rounds in seconds.items()}
    figures = [Figure(f"{mode}: {name}", rate, "steps/s", "higher") for name, rate in rates.items()]
    if arguments.against:
        medians = {name: [statistics.median(steps) for steps in rounds] for name, rounds in seconds.items()}
        ratios = [theirs / ours for ours, theirs in zip(medians["starling"], medians[arguments.against], strict=True)]
        name = f"{mode}: starling / {arguments.against}"
        figures += [
            Figure(name, statistics.median(ratios), "×", "higher", "≥ 3"),
            Figure(f"{name}, least of {len(ratios)} rounds", min(ratios), "×", "higher"),
            Figure(f"{name}, most", max(ratios), "×", "higher"),
        ]
    return figures


def main() -> None:
    ensure_compute_environment()
    parser = figures_parser(__doc__)
    parser.add_argument("--against", choices=["trl"], help="also measure TRL's GRPOTrainer, in its own environment")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="timed steps a round")
    parser.add_argument("--threads", type=int, default=2)
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
