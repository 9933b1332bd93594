"""How often weights answer held-out questions of the default swarm's tasks rightly, and the questions to learn from."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, Final

from transformers import AutoTokenizer

from node.checkpoints import checkpoints
from node.configuration import PolicySection, TasksSection
from node.engines.torch import TorchEngine
from node.evaluation.evaluation import SAMPLES, mean_rewards
from node.evaluation.restored import FoundCheckpoint, load_untrained, restore
from node.learner.objective.forward import Network
from node.policy.model_files import model_folder
from node.policy.policy import Policy
from node.tasks.registry import load_tasks
from node.tasks.scorer import Scorer
from node.tasks.split import Part, held_out_prompts, training_prompt
from scripts.bench.skill.models import setting_of

QUESTIONS: Final = 4096  # that contenders draw from, of all tasks in turn
PROMPTS: Final = 64  # held-out, of each task


class Judge:
    """Measures weights on held-out questions. A context manager: rewards are computed in a process of their own."""

    def __init__(self) -> None:
        self._tasks = load_tasks(TasksSection())
        self._asked = held_out_prompts(self._tasks, Part.TEST, PROMPTS)
        self._scorer = Scorer(TasksSection())

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self._scorer.close()

    def of_folder(self, model: str, folder: Path | None) -> float:
        """Returns the success of a model in ``folder``, with the tokenizer of ``model``; None: of that model itself."""
        if folder is None:
            return self._success(Policy.load(_section(model)))
        AutoTokenizer.from_pretrained(model_folder(setting_of(model))).save_pretrained(folder)
        return self._success(Policy.load(PolicySection(model=str(folder), device="cpu", dtype="float32")))

    def of_checkpoint(self, model: str, checkpoint: Path) -> float:
        found = FoundCheckpoint(checkpoint, checkpoints.read(checkpoint))
        policy = load_untrained(_section(model), found)
        restore(policy, found)
        return self._success(policy)

    def _success(self, policy: Policy) -> float:
        engine, context = TorchEngine(policy, rows=128, seed=0), Network.of(policy.model).context
        how: dict[str, Any] = {"samples": SAMPLES, "temperature": 1.0, "seed": 0, "context": context}
        return statistics.fmean(
            mean_rewards(policy.tokens, engine, self._scorer, self._tasks, self._asked, **how).values()
        )


def _section(model: str) -> PolicySection:
    return PolicySection(model=setting_of(model), device="cpu", dtype="float32")


def training_questions(seed: int) -> list[tuple[str, int, str]]:
    """Returns task, seed and text of ``QUESTIONS`` prompts, the tasks in turn; none of them is held out."""
    tasks = list(load_tasks(TasksSection()).values())
    prompts = [training_prompt(tasks[n % len(tasks)], seed * QUESTIONS * 64 + n) for n in range(QUESTIONS)]
    return [(each.ref.task, each.ref.seed, each.text) for each in prompts]
