"""The control of what examples can teach: a pupil that is given right answers, without a swarm and without rewards.

The pupil is a specialist. Of every skill that it lacks it is given ``distinct`` questions with their right answers,
again and again, and answers of its own skills beside them, one part in ``1 + LACKED_TO_OWN``, so that it keeps those.
Loss: the mean cross-entropy of the answers' tokens, by the node's own AdamW.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import ClassVar, Final

import msgspec
import torch
from msgspec import Struct
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from node.configuration import LearnerSection
from node.learner.steps.optimizer import MasterAdamW
from node.tasks.split import Part, held_out_prompts, training_prompt
from scripts.build_models import IGNORED, knowledge, teaching_batch
from scripts.experiments.harness.skills import EIGHT_SKILLS, SEEDS

VERSION: Final = 1  # to be raised when the code of a run changes what it measures
LACKED_TO_OWN: Final = 3


class PupilPlan(Struct, frozen=True):
    """One pupil with one seed."""

    experiment: str
    condition: str
    seed: int
    model: str  # the key of a model made by ``models.py``
    own: tuple[str, ...]  # the skills that it has
    distinct: int  # questions of each skill that it lacks; 0: always new ones
    steps: int
    batch: int  # answers of skills that it lacks, a step
    learning_rate: float
    measure_prompts: int

    harness: ClassVar[str] = "scripts.experiments.harness.pupil"

    @property
    def result_type(self) -> type[PupilResult]:
        return PupilResult

    @property
    def key(self) -> str:
        shape = {"version": VERSION, "plan": msgspec.to_builtins(self)}
        shape["skills"] = {name: task.config_hash.hex() for name, task in EIGHT_SKILLS.items()}
        return hashlib.sha256(json.dumps(shape, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


class PupilResult(Struct, frozen=True):
    key: str
    condition: str
    seed: int
    seconds: float
    cpu_seconds: float  # of the steps alone
    before: dict[str, float]  # greedy success by skill
    after: dict[str, float]
    plan: PupilPlan


def execute(plan: PupilPlan, models: Path, is_orphaned: Callable[[], bool] = lambda: False) -> PupilResult:
    """Teaches one pupil on one thread. Raises ``InterruptedError`` once ``is_orphaned``."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    began = time.monotonic()
    model = AutoModelForCausalLM.from_pretrained(models / plan.model)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(models / plan.model)
    optimizer = MasterAdamW(dict(model.named_parameters()), LearnerSection(learning_rate=plan.learning_rate))

    def measured() -> dict[str, float]:
        asked = held_out_prompts(EIGHT_SKILLS, Part.TEST, plan.measure_prompts)
        return {name: knowledge(model, tokenizer, prompts).greedy for name, prompts in asked.items()}

    before, draws = measured(), Random(f"pupil {plan.seed} {plan.model}")
    lacked = [name for name in EIGHT_SKILLS if name not in plan.own]
    known = {name: [_example(name, draws) for _ in range(plan.distinct)] for name in lacked}
    cpu_began = time.process_time()
    for _ in range(plan.steps):
        if is_orphaned():
            raise InterruptedError("the experiment that this run belongs to has ended")
        taught = [lacked[n % len(lacked)] for n in range(plan.batch)]
        lesson = [draws.choice(known[name]) if plan.distinct else _example(name, draws) for name in taught]
        lesson += [_example(plan.own[n % len(plan.own)], draws) for n in range(plan.batch // LACKED_TO_OWN)]
        ids, labels = teaching_batch(tokenizer, lesson)
        logits = model(ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        optimizer.step()
    cpu_seconds = time.process_time() - cpu_began
    return PupilResult(
        plan.key, plan.condition, plan.seed, time.monotonic() - began, cpu_seconds, before, measured(), plan
    )


def _example(skill: str, draws: Random) -> tuple[str, str]:
    task = EIGHT_SKILLS[skill]
    prompt = training_prompt(task, draws.randrange(SEEDS))
    return prompt.text, str(prompt.answer)
