"""Models that answer questions: the base model and what a checkpoint has made of it, each with an engine of its own.

A prompt is written as in training (``TokenTable.prompt_ids``): by the chat template where the policy uses one. An
adapter is applied beside its base, which both models share then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.configuration import PolicySection
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.evaluation.restored import find_checkpoint, load_untrained, restore
from node.home import Home
from node.printable import printable
from node.tasks.catalogue import judge
from node.trying.tried import Answer, Question, Tried
from protocol.rollouts import FinishReason

BASE = "base"


@dataclass(frozen=True, slots=True, eq=False)
class AnsweringModel:
    """``name`` is for people: the base model or how many rounds it was trained."""

    name: str
    round: int
    checkpoint: str | None
    engine: TorchEngine

    def answer(self, question: Question, temperature: float) -> Answer:
        """Raises ``ConfigurationError`` for a question that fills the model's context."""
        tokens = self.engine.policy.tokens
        request = GenerationRequest(tokens.prompt_ids(question.text), 1, question.max_new_tokens)
        try:
            ((sample,),) = self.engine.generate([request], Sampling(temperature))
        finally:
            self.engine.release()
        text = tokens.text_of(sample.token_ids.tolist()).decode("utf-8", "replace")
        judged = None
        if question.of_task is not None:
            task, prompt = question.of_task
            judged = judge(task, prompt.ref.seed, text)
        ended = sample.finish is FinishReason.STOP
        return Answer(self.name, self.round, self.checkpoint, text, len(sample.token_ids), ended, judged)


def load_models(
    home: Home,
    section: PolicySection,
    checkpoint: Path | None,
    *,
    base: bool,
    trained: bool,
    seed: int,
    on_step: Callable[[str], None],
) -> list[AnsweringModel]:
    """Loads the base model and ``checkpoint``, by default the newest in ``home``, or one of the two. Where there is no
    checkpoint, returns the base model. It only reads, so the node may run meanwhile.

    Raises ``ConfigurationError`` for a checkpoint of another family of policies, ``StorageError`` for a given
    checkpoint that is damaged.
    """
    on_step("reading the checkpoint")
    found = find_checkpoint(home, checkpoint)
    on_step(f"loading {printable(section.model)}")
    policy = load_untrained(section, found)
    models = []
    if base or found is None:
        models.append(AnsweringModel(BASE, 0, None, TorchEngine(policy, rows=1, seed=seed, merge_adapters=False)))
    if trained and found is not None:
        of_checkpoint = policy.separate() if base else policy
        restore(of_checkpoint, found)
        number = found.snapshot.round
        engine = TorchEngine(of_checkpoint, rows=1, seed=seed, merge_adapters=False)
        models.append(AnsweringModel(f"round {number}", number, str(found.path), engine))
    return models


def ask(
    models: Sequence[AnsweringModel],
    question: Question,
    temperature: float,
    on_step: Callable[[str], None] = lambda text: None,
) -> Tried:
    """Has each model answer ``question``, one after the other; of a task, judges the answers in this process."""
    answers = []
    for model in models:
        on_step(f"{model.name} answers")
        answers.append(model.answer(question, temperature))
    task, prompt = question.of_task or (None, None)
    return Tried(
        question.text,
        task.name if task else None,
        prompt.ref.seed if prompt else None,
        prompt.answer if prompt else None,
        tuple(answers),
    )
