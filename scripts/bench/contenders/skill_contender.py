"""A contender of ``time_to_skill.py``, run by the Python of its own environment with ``JOB.json`` as argument.

    python -m scripts.bench.contenders.skill_contender {trl,genrl} JOB.json

It trains until this process and its reward process have used ``seconds`` of the processor, start included, and writes
its model whenever a part of them is over. It prints a line of JSON for each: {"seconds", "steps", "completions",
"foreign", "folder"}. GenRL with ``swarm`` in its job, the address of a node or "", is a node of a swarm: then it prints
{"address"} first.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from scripts.bench.common.process_usage import tree_cpu_seconds
from scripts.bench.contenders.genrl_swarm import GenrlSwarm, Group, NoSwarm, Score, rewarded


class Snapshots:
    """Writes the model after each of ``parts`` equal parts of the processor seconds."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job, self._written = job, 0
        self.foreign = 0  # groups of others, trained on so far
        self.over = False

    def after_step(self, steps: int, model: Any) -> None:
        used, part = tree_cpu_seconds(os.getpid()), self._job["seconds"] / self._job["parts"]
        self.over = used >= self._job["seconds"]
        if used < (self._written + 1) * part:
            return
        self._written = int(used / part)
        folder = Path(self._job["folder"]) / f"step-{steps}"
        model.save_pretrained(folder)
        completions = steps * self._job["batch"]
        said = {"seconds": round(used, 1), "steps": steps, "completions": completions, "foreign": self.foreign}
        print(json.dumps({**said, "folder": str(folder)}), flush=True)


def trl(job: dict[str, Any], score: Score, folder: str) -> None:
    """TRL's GRPOTrainer with its defaults (loss "dapo", no KL), but without gradient checkpointing, which would slow it
    down."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    snapshots = Snapshots(job)

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            snapshots.after_step(state.global_step, kwargs["model"])
            control.should_training_stop = snapshots.over

    def rewarded(completions: list[str], task: list[str], seed: list[int], **_: Any) -> list[float]:
        return score(list(zip(task, seed, completions, strict=True)))

    arguments = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=job["batch"],
        num_generations=job["completions"],
        max_completion_length=job["longest"],
        max_steps=1 << 30,
        learning_rate=job["rate"],
        lr_scheduler_type="constant",
        seed=job["seed"],
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        rewarded,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": p, "task": t, "seed": s} for t, s, p in job["prompts"]]),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        callbacks=[Watch()],
    ).train()


def genrl(job: dict[str, Any], score: Score, folder: str) -> None:
    """GenRL's GRPO trainer with its defaults, but one optimizer step on each batch and no gradient checkpointing. The
    game around it, which a user of GenRL writes, is this loop: questions in, answers and rewards back."""
    from genrl.trainer.grpo_trainer import GRPOLanguageTrainerModule, GRPOTrainerConfig
    from tokenizers import processors

    tokenizer = AutoTokenizer.from_pretrained(job["model"], padding_side="left")
    # It has no path for prompts without a chat: the template is the question, begun as the model's tokenizer begins it.
    # The trainer would put that beginning between question and answer too, so that it is in the template alone.
    tokenizer.chat_template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A")
    settings = GRPOTrainerConfig(
        enable_gradient_checkpointing=False,
        max_new_tokens=job["longest"],
        num_generations=job["completions"],
        learning_rate=job["rate"],
        minibatch_size=job["batch"],
    )
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    trainer = GRPOLanguageTrainerModule([model], settings, processing_class=tokenizer, log_dir=folder)
    snapshots, draws, steps = Snapshots(job), random.Random(job["seed"]), 0
    swarm = GenrlSwarm(job["swarm"], score, draws) if "swarm" in job else NoSwarm()

    def answered(asked: Sequence[tuple[str, int, str]]) -> list[Group]:
        answers = trainer.generate([chat(text) for _, _, text in asked])
        return rewarded([Group(*each, found) for each, found in zip(asked, answers, strict=True)], score)

    with closing(swarm):
        while not snapshots.over:
            groups = job["batch"] // job["completions"]
            foreign = swarm.drawn(groups // 2)
            snapshots.foreign += len(foreign)
            own = answered(draws.sample(job["prompts"], groups - len(foreign)))
            swarm.share(own)
            stage: Any = Stage(own + foreign)
            trainer.train(stage, stage, stage)
            steps += 1
            snapshots.after_step(steps, trainer.model)


def chat(text: str) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": text}]}


class Stage:
    """A round of questions, as GenRL's trainer asks for it: state, actions, input and rewards, by (0, question, 0)."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.stage = 1
        self._groups = groups

    def get_stage_state(self, stage: int) -> list[dict[str, Any]]:
        return [chat(group.text) for group in self._groups]

    def get_stage_actions(self, stage: int) -> dict[int, Any]:
        return {0: {n: [group.answers] for n, group in enumerate(self._groups)}}

    def prepare_input(self, inputs: Any, stage: int) -> tuple[Any, dict[int, tuple[int, int, int]]]:
        return inputs, {n: (0, n, 0) for n in range(len(inputs))}

    def __getitem__(self, stage: int) -> dict[int, Any]:
        return {0: {n: [group.rewards] for n, group in enumerate(self._groups)}}


def main() -> None:
    contender, path = sys.argv[1:]
    job = json.loads(Path(path).read_text())
    torch.set_num_threads(job["threads"])
    torch.manual_seed(job["seed"])
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(job["rewards"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as scorer,
    ):
        assert scorer.stdin is not None and scorer.stdout is not None
        asked, answered = scorer.stdin, scorer.stdout

        def score(items: Sequence[tuple[str, int, str]]) -> list[float]:
            print(json.dumps(items), file=asked, flush=True)
            rewards: list[float] = json.loads(answered.readline())
            return rewards

        {"trl": trl, "genrl": genrl}[contender](job, score, folder)


if __name__ == "__main__":
    main()
