"""Optimizer steps on one given batch by one contender, in its own process.

    python -m scripts.bench.contenders.learner_step_contender {starling,trl} BATCH.json STEPS THREADS

Prints one JSON object: seconds of each step after two for warm-up, and the norm of the first step's gradient before
clipping. ``learner_step.py`` runs it with the Python of the contender's environment.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

WARM_UP_STEPS = 2
RATE = 3e-4


def starling(batch: dict[str, Any], steps: int) -> dict[str, Any]:
    import numpy as np

    from node.configuration import LearnerSection, ObjectiveSection, PolicySection
    from node.learner.objective.alignment import Alignment
    from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup, merged
    from node.learner.objective.forward import WHOLE, Network
    from node.learner.objective.reference_policy import ReferencePolicy
    from node.learner.steps.devices import StepTask
    from node.learner.steps.optimizer import MasterAdamW
    from node.learner.steps.step import OptimizerSteps
    from node.policy.policy import Policy

    policy = Policy.load(PolicySection(model=batch["model"], device="cpu", dtype="float32"))
    network = Network.of(policy.model)
    objective = ObjectiveSection()
    optimizer = MasterAdamW(policy.trainable(), LearnerSection(learning_rate=RATE))
    reference = ReferencePolicy(policy.trainable(), objective)
    columns = zip(batch["prompts"], batch["completions"], batch["logps"], batch["advantages"], strict=True)
    rows = [
        (tuple(prompt), [np.array(ids) for ids in each], [np.array(x, np.float32) for x in logps], advantages)
        for prompt, each, logps, advantages in columns
    ]
    seconds, norms = [], []
    for _ in range(WARM_UP_STEPS + steps):
        began = time.perf_counter()
        groups = [
            TrainingGroup(
                prompt,
                merged(
                    TrainingCompletion(ids, Alignment(np.arange(len(ids)), x, 0), a, SELF)
                    for ids, x, a in zip(each, logps, advantages, strict=True)
                    if a != 0
                ),
                sum(map(len, each)),
                len(each),
            )
            for prompt, each, logps, advantages in rows
        ]
        task = StepTask(tuple(groups), WHOLE, 1.0, batch["longest"], len(groups))
        found = OptimizerSteps(network, optimizer, objective, reference).take(task)
        seconds.append(time.perf_counter() - began)
        assert found.step is not None
        norms.append(found.step.gradient_norm)
    return {"seconds": seconds[WARM_UP_STEPS:], "first_gradient_norm": norms[0]}


def padded(rows: list[list[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns token ids and mask, (B, T) each."""
    width = max(map(len, rows))
    fill = [[0] * (width - len(row)) for row in rows]
    ids = [[*f, *row] if left else [*row, *f] for row, f in zip(rows, fill, strict=True)]
    mask = [[*f, *[1] * len(row)] if left else [*[1] * len(row), *f] for row, f in zip(rows, fill, strict=True)]
    return torch.tensor(ids), torch.tensor(mask)


def trl(batch: dict[str, Any], steps: int) -> dict[str, Any]:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    completions = [ids for group in batch["completions"] for ids in group]
    prompts = [p for p, group in zip(batch["prompts"], batch["completions"], strict=True) for _ in group]
    prompt_ids, prompt_mask = padded(prompts, left=True)
    completion_ids, completion_mask = padded(completions, left=False)
    inputs = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.tensor([a for group in batch["advantages"] for a in group]),
        "num_items_in_batch": completion_mask.sum(),
    }

    class Given(GRPOTrainer):  # type: ignore[misc]  # TRL is untyped
        """Trains on the given batch instead of generating one."""

        def _prepare_inputs(self, _: Any) -> dict[str, torch.Tensor]:
            return inputs

    class Watch(TrainerCallback):
        began, seconds, norms = 0.0, list[float](), list[float]()

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(time.perf_counter() - self.began)

        def on_log(self, *_: Any, **keywords: Any) -> None:
            logs: dict[str, Any] = keywords.get("logs") or {}
            if "grad_norm" in logs:
                self.norms.append(float(logs["grad_norm"]))

    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=len(completions),
            num_generations=len(batch["completions"][0]),
            max_completion_length=batch["longest"],
            max_steps=WARM_UP_STEPS + steps,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            beta=0.0,
            loss_type="dapo",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Given(
            AutoModelForCausalLM.from_pretrained(batch["model"], dtype=torch.float32),
            lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": ["a"] * 4 * len(completions)}),
            processing_class=AutoTokenizer.from_pretrained(batch["model"]),
            callbacks=[watch],
        )
        trainer.train()
    return {"seconds": watch.seconds[WARM_UP_STEPS:], "first_gradient_norm": watch.norms[0]}


def main() -> None:
    contender, path, steps, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    batch = json.loads(Path(path).read_text())
    found = {"starling": starling, "trl": trl}[contender](batch, int(steps))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
