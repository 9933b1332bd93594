"""Exports a changed ``builtin:wren``, whole and as an adapter, and has vLLM answer with what was exported.

    python -m scripts.try_export [--environment FOLDER]

Prints, for each, how many greedy answers equal those of the node's own engine, and the greatest difference of a token's
log-probability among them. ``FOLDER`` is a virtual environment for vLLM's CPU build, made the first time (3.5 GB).
Takes about a minute beside that. transformers and peft load exports in the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from node.checkpoints.checkpoints import write
from node.configuration import Config
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.export.export import export
from node.export.export_result import Request
from node.home import Home
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import snapshot_of
from node.learner.steps.optimizer import MasterAdamW
from node.policy.model_files import model_folder
from node.policy.policy import Policy
from node.tasks.registry import load_tasks
from scripts import REPOSITORY
from scripts.bench.contenders.vllm_contender import SETTINGS, prepared

MODEL = "builtin:wren"
RANK = 8
PROMPTS = 24
MAX_NEW_TOKENS = 12
CONTEXT = 120
CHANGE = 0.01  # standard deviation of what is added to every trained weight


class Quiet:
    def step(self, text: str) -> None:
        return

    def size(self, written_bytes: int, expected_bytes: int) -> None:
        return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, default=Path.home() / ".cache" / "starling-vllm")
    python = prepared(parser.parse_args().environment)
    with tempfile.TemporaryDirectory(prefix="starling-export-") as folder:
        for rank in (0, RANK):
            kind = f"adapter of rank {rank}" if rank else "whole model"
            print(f"{kind}: {compared(Path(folder) / str(rank), rank, python)}")


def compared(folder: Path, rank: int, python: Path) -> str:
    """Exports a policy and returns how vLLM's answers with it compare with its own."""
    policy, config = changed_policy(rank)
    home = Home(folder / "home")
    home.prepare()
    optimizer = MasterAdamW(policy.trainable(), config.learner)
    write(home.checkpoints, snapshot_of(config, policy, optimizer, LearnerState(round=1), {}), keep=1)
    exported = export(home, Request(folder / "out"), Quiet())
    prompts, answers, logps = own_answers(policy, config)
    job = {
        "model": str(model_folder(MODEL)) if rank else exported.folder,
        "adapter": exported.folder if rank else None,
        "rank": rank,
        "prompts": prompts,
        "context": CONTEXT,
        "max_new_tokens": MAX_NEW_TOKENS,
    }
    theirs = vllm_answers(folder / "job.json", job, python)
    equal = [index for index, answer in enumerate(answers) if theirs["answers"][index] == answer]
    apart = max((abs(a - b) for i in equal for a, b in zip(logps[i], theirs["logps"][i], strict=True)), default=0.0)
    return f"{len(equal)} of {len(answers)} greedy answers equal, log-probabilities at most {apart:.1e} apart"


@torch.no_grad()
def changed_policy(rank: int) -> tuple[Policy, Config]:
    policy = {"model": MODEL, "adapter_rank": rank, "four_bit": False, "device": "cpu", "dtype": "float32"}
    config = Config.model_validate({"name": "export", "policy": policy})
    loaded = Policy.load(config.policy)
    generator = torch.Generator().manual_seed(0)
    for parameter in loaded.trainable().values():
        parameter.add_(CHANGE * torch.randn(parameter.shape, generator=generator))
    return loaded, config


def own_answers(policy: Policy, config: Config) -> tuple[list[list[int]], list[list[int]], list[list[float]]]:
    """Returns prompts, greedy answers and their log-probabilities."""
    tasks = list(load_tasks(config.tasks).values())
    texts = [task.prompt(task.ref(n)).text for n in range(PROMPTS) for task in (tasks[n % len(tasks)],)]
    prompts = [policy.tokens.prompt_ids(text) for text in texts]
    requests = [GenerationRequest(prompt, 1, MAX_NEW_TOKENS) for prompt in prompts]
    samples = [group[0] for group in TorchEngine(policy, rows=PROMPTS, seed=0).generate(requests, Sampling(0.0, 0))]
    return prompts, [each.token_ids.tolist() for each in samples], [each.logps.tolist() for each in samples]


def vllm_answers(path: Path, job: dict[str, Any], python: Path) -> dict[str, Any]:
    path.write_text(json.dumps(job))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "PYTHON"))}
    settings = SETTINGS | {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with path.with_suffix(".log").open("w") as log:  # a file: vLLM stalls on a pipe
        command = [str(python), "-m", "scripts.bench.contenders.export_vllm", str(path)]
        done = subprocess.run(command, cwd=REPOSITORY, env=inherited | settings, stdout=log, stderr=log)
    if done.returncode != 0:
        raise SystemExit(f"vLLM ended with code {done.returncode}:\n{path.with_suffix('.log').read_text()[-4000:]}")
    answers: dict[str, Any] = json.loads(path.with_suffix(".answers.json").read_text())
    return answers


if __name__ == "__main__":
    main()
