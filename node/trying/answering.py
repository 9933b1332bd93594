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
from node.environments.conversation import ConversationTask
from node.evaluation.evaluation import answered
from node.evaluation.restored import FoundCheckpoint, find_checkpoint, load_untrained, restore
from node.home import Home
from node.learner.generation.own_rollouts import RewardScorer
from node.learner.objective.forward import Network
from node.policy.policy import Policy
from node.printable import printable
from node.tasks.answers import RIGHT
from node.tasks.catalogue import JudgedAnswer, judge
from node.tasks.scorer import Scores, ScoringFault
from node.tasks.task import Prompt, Task
from node.tasks.worker import score_one
from node.trying.tried import Answer, Question, Tried
from protocol.errors import ConfigurationError
from protocol.messages import PromptRef
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
        if question.of_task is not None and isinstance(question.of_task[0], ConversationTask):
            return self._conversation(*question.of_task, temperature)
        tokens = self.engine.policy.tokens
        request = GenerationRequest(tokens.prompt_ids(question.text), 1, question.max_new_tokens)
        try:
            ((sample,),) = self.engine.generate([request], Sampling(temperature))
        finally:
            self.engine.release()
        text = tokens.text_of(sample.token_ids.tolist()).decode("utf-8", "replace")
        judged, right = None, None
        if question.of_task is not None:
            task, prompt = question.of_task
            judged = judge(task, prompt.ref.seed, text)
            right = judged.reward >= RIGHT
        ended = sample.finish is FinishReason.STOP
        return Answer(self.name, self.round, self.checkpoint, text, len(sample.token_ids), ended, judged, right)

    def _conversation(self, task: Task, prompt: Prompt, temperature: float) -> Answer:
        """Has a whole conversation; the answer is what was said on both sides after the first text."""
        policy = self.engine.policy
        context = Network.of(policy.model).context
        try:
            found = answered(
                policy.tokens, self.engine, _HereScorer(task), task, [prompt],
                samples=1, temperature=temperature, seed=0, context=context,
            )  # fmt: skip
        finally:
            self.engine.release()
        if not found:
            raise ConfigurationError(f"the first text of {task.name} fills the model's context of {context} tokens")
        ((text,), scores) = found[0].texts, found[0].scores
        fault = None if scores.faults[0] is None else f"{scores.faults[0].reason.value}: {scores.faults[0].detail}"
        judged = JudgedAnswer(scores.rewards[0], text, "the whole conversation", fault)
        right = judged.reward >= RIGHT
        return Answer(self.name, self.round, self.checkpoint, text, found[0].tokens, True, judged, right)


@dataclass(frozen=True, slots=True)
class _HereScorer(RewardScorer):
    """Scores in this process, without a limit of time: for a model of the person's own, while the person waits."""

    task: Task

    def score(self, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]:
        return [self._score(ref, texts) for ref, texts in items]

    def _score(self, ref: PromptRef, texts: Sequence[str]) -> Scores:
        prompt = self.task.prompt(ref)
        verdicts = [score_one(self.task, prompt, text) for text in texts]
        faults = tuple(None if each.fault is None else ScoringFault(each.fault, each.detail) for each in verdicts)
        return Scores(tuple(each.reward for each in verdicts), faults, tuple(each.played for each in verdicts))


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
        models.append(_trained(policy.separate() if base else policy, found, seed))
    return models


def _trained(policy: Policy, found: FoundCheckpoint, seed: int) -> AnsweringModel:
    restore(policy, found)
    number = found.snapshot.round
    engine = TorchEngine(policy, rows=1, seed=seed, merge_adapters=False)
    return AnsweringModel(f"round {number}", number, str(found.path), engine)


class LoadedModels:
    """The base model and a checkpoint, kept from question to question; each may ask another checkpoint."""

    def __init__(self, home: Home, section: PolicySection, seed: int, on_step: Callable[[str], None]) -> None:
        self._home, self._section, self._seed, self._on_step = home, section, seed, on_step
        self._models: list[AnsweringModel] = []

    def of(self, checkpoint: Path | None) -> list[AnsweringModel]:
        """Returns the base model and ``checkpoint``; None: the base model alone. Raises as ``load_models``."""
        wanted = None if checkpoint is None else str(checkpoint)
        if self._models and self._models[-1].checkpoint == wanted:
            return self._models
        found = None if checkpoint is None else find_checkpoint(self._home, checkpoint)
        if len(self._models) == 2 and found is not None:  # a second copy of the weights is there already
            base, trained = self._models
            self._models = [base, _trained(trained.engine.policy, found, self._seed)]
        else:
            self._models = []  # its memory first
            options = {"base": True, "trained": checkpoint is not None}
            self._models = load_models(
                self._home, self._section, checkpoint, **options, seed=self._seed, on_step=self._on_step
            )
        return self._models


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
