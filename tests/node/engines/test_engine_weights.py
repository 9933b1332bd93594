"""The learner's side of new weights: which form, from which base, and what follows a refusal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import pytest
import torch

from node.configuration import Config, LearnerSection, PolicySection, TasksSection
from node.engines.encoded_weights import EncodedWeights
from node.engines.engine import Ended, Enough, GenerationProgress, GenerationRequest, Sampling, Turns, Weights
from node.engines.torch import TorchEngine
from node.events import RoundDone
from node.learner.assembly.wiring import learner_of
from node.learner.foreign.intake import RolloutIntake
from node.learner.generation.engine_weights import EngineWeights, form_of
from node.learner.generation.own_rollouts import RewardScorer
from node.learner.loop import Learner
from node.learner.state.learner_state import LearnerState
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from node.tasks.registry import load_tasks
from node.tasks.scorer import Scores
from node.tasks.task import Task
from protocol.errors import IntegrityError, StaleBaseError, StarlingError
from protocol.messages import PromptRef

Load = Callable[..., Policy]
TASKS = load_tasks(TasksSection(names=("spell_backward",)))


class EngineElsewhere(TorchEngine):
    """Receives only the bytes of a message; ``refuse`` lists errors, one for each message that is to fail."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy, rows=16, seed=0, owns_weights=True)
        self.came: list[EncodedWeights] = []
        self.refuse: list[Exception] = []
        self.sampled: list[
            tuple[int, GenerationProgress, GenerationProgress]
        ] = []  # version in the engine; a group before and after

    @property
    def in_process(self) -> bool:
        return False

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in self._policy.trainable().items()}

    def load_weights(self, version: int, weights: Weights) -> None:
        assert isinstance(weights, EncodedWeights)
        arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(weights), type=EncodedWeights)
        self.came.append(arrived)
        if self.refuse:
            raise self.refuse.pop(0)
        super().load_weights(version, arrived)

    def advance(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        enough: Enough | None = None,
        ended: Ended | None = None,
        turns: Turns | None = None,
    ) -> list[GenerationProgress]:
        reached = super().advance(requests, sampling, enough, turns=turns)
        before = [request.begun or GenerationProgress() for request in requests]
        self.sampled += [(self.version, *pair) for pair in zip(before, reached, strict=True)]
        return reached


class HereScorer(RewardScorer):
    def score(self, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]:
        rewards = [TASKS[ref.task].rewards(TASKS[ref.task].prompt(ref), texts) for ref, texts in items]
        return [Scores(tuple(each), (None,) * len(each)) for each in rewards]


def stepped(policy: Policy, optimizer: MasterAdamW, seed: int) -> None:
    """One AdamW step on random gradients."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.trainable().values():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    assert optimizer.step().taken


def equal(engine: EngineElsewhere, policy: Policy) -> bool:
    """Whether the engine's weights are the policy's, rounded to bf16."""
    held = engine.weights
    return all(torch.equal(held[n], p.detach().bfloat16().to(p.dtype)) for n, p in policy.trainable().items())


def optimizer_of(policy: Policy) -> MasterAdamW:
    return MasterAdamW(policy.trainable(), LearnerSection(learning_rate=1e-6))


@pytest.mark.parametrize("section", [{"dtype": "bfloat16"}, {"dtype": "float32"}, {"adapter_rank": 4}])
def test_whole_weights_come_first_then_small_diffs_and_the_engine_is_equal_after_each(
    load_policy: Load, section: Mapping[str, object]
) -> None:
    policy = load_policy("qwen3", **section)
    engine, optimizer = EngineElsewhere(policy), optimizer_of(policy)
    weights = EngineWeights(engine)
    sent = [weights.load(0, policy.trainable())]
    for version in range(1, 8):
        stepped(policy, optimizer, version)
        sent.append(weights.load(version, policy.trainable()))
        assert engine.version == version
        assert equal(engine, policy)
        assert sent[-1].size_bytes == len(engine.came[-1].blob)
    assert [each.form.kind for each in sent] == ["dense"] + 7 * ["diff"]
    assert all(each.size_bytes < sent[0].size_bytes for each in sent[1:])  # type: ignore[operator]


@pytest.mark.parametrize("error", [StaleBaseError("it was started again"), IntegrityError("damaged on the way")])
def test_an_engine_that_refuses_a_diff_keeps_its_weights_gets_them_whole_and_then_diffs_again(
    load_policy: Load, caplog: pytest.LogCaptureFixture, error: StarlingError
) -> None:
    policy = load_policy("qwen3", dtype="bfloat16")
    engine, optimizer = EngineElsewhere(policy), optimizer_of(policy)
    weights = EngineWeights(engine)
    weights.load(0, policy.trainable())
    stepped(policy, optimizer, 1)
    engine.refuse = [error]
    sent = weights.load(1, policy.trainable())
    assert [each.is_diff for each in engine.came] == [False, True, False]
    assert sent.form.kind == "dense"
    assert error.reason in sent.form.reason
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert equal(engine, policy)
    stepped(policy, optimizer, 2)
    assert weights.load(2, policy.trainable()).form.kind == "diff"
    assert equal(engine, policy)


def test_an_engine_with_other_weights_than_the_learner_believes_says_so_and_ends_with_the_right_ones(
    load_policy: Load,
) -> None:
    policy = load_policy("qwen3", dtype="bfloat16")
    engine, optimizer = EngineElsewhere(policy), optimizer_of(policy)
    weights = EngineWeights(engine)
    weights.load(0, policy.trainable())
    TorchEngine.load_weights(engine, 0, {name: torch.zeros_like(p) for name, p in policy.trainable().items()})
    stepped(policy, optimizer, 1)
    sent = weights.load(1, policy.trainable())
    assert (sent.form.kind, engine.version) == ("dense", 1)
    assert "stale_base" in sent.form.reason
    assert equal(engine, policy)


def test_an_engine_that_refuses_even_the_whole_weights_is_a_fault_and_the_next_are_whole(load_policy: Load) -> None:
    policy = load_policy("qwen3", dtype="bfloat16")
    engine, optimizer = EngineElsewhere(policy), optimizer_of(policy)
    weights = EngineWeights(engine)
    weights.load(0, policy.trainable())
    stepped(policy, optimizer, 1)
    engine.refuse = [IntegrityError("once"), IntegrityError("twice")]
    with pytest.raises(IntegrityError, match="twice"):
        weights.load(1, policy.trainable())
    assert engine.version == 0
    assert weights.load(1, policy.trainable()).form.kind == "dense"
    assert (engine.version, equal(engine, policy)) == (1, True)


def test_whole_weights_are_sent_where_a_diff_would_be_longer(load_policy: Load) -> None:
    policy = load_policy("qwen3", dtype="bfloat16")
    for name, parameter in policy.model.named_parameters():
        parameter.requires_grad_(name.endswith("q_norm.weight"))  # few weights in many tensors, and all of them change
    engine = EngineElsewhere(policy)
    weights = EngineWeights(engine)
    weights.load(0, policy.trainable())
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(torch.randn(parameter.shape))
    sent = weights.load(1, policy.trainable())
    assert (sent.form.kind, engine.came[-1].is_diff) == ("dense", False)
    assert "a diff has" in sent.form.reason
    assert equal(engine, policy)


def test_the_form_is_the_shorter_one_and_tensors_within_a_process() -> None:
    assert form_of(in_process=True).kind == "tensors"
    kinds = [form_of(in_process=False, dense_bytes=100, diff_bytes=size).kind for size in (None, 101, 100, 99, 1)]
    assert kinds == ["dense", "dense", "dense", "diff", "diff"]


def test_an_engine_in_this_process_is_handed_the_very_tensors(load_policy: Load) -> None:
    policy = load_policy("qwen3", dtype="bfloat16")
    engine = TorchEngine(policy, rows=16, seed=0)
    sent = EngineWeights(engine).load(3, policy.trainable())
    assert (sent.form.kind, sent.size_bytes, engine.version) == ("tensors", None, 3)


def learner_with(engine_of: Callable[[Policy], TorchEngine], **section: object) -> tuple[Learner, TorchEngine]:
    policy = Policy.load(PolicySection(device="cpu", dtype="bfloat16"))
    own = {"own_groups": 4, "completions": 4, "foreign_groups": 0, "share_groups": 0, "learning_rate": 1e-3}
    config = Config(name="ann", learner=LearnerSection.model_validate(own | section))
    engine = engine_of(policy)
    tasks: Mapping[str, Task] = TASKS
    learner = learner_of(
        config,
        policy,
        tasks,
        engine,
        HereScorer(),
        RolloutIntake(None, tasks, config.learner, lambda: 0.0),
        MasterAdamW(policy.trainable(), config.learner),
        LearnerState(),
        report=lambda event: None,
        clock=lambda: 0.0,
    )
    return learner, engine


def rounds(learner: Learner, count: int) -> list[RoundDone]:
    try:
        return [learner.round() for _ in range(count)]
    finally:
        learner.close()


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_learner_learns_the_same_with_an_engine_that_gets_its_weights_as_diffs(max_staleness: int) -> None:
    def own(policy: Policy) -> TorchEngine:
        return TorchEngine(policy, rows=16, seed=0, owns_weights=True)

    near, _ = learner_with(own, max_staleness=max_staleness)
    far, engine = learner_with(EngineElsewhere, max_staleness=max_staleness)
    one, other = rounds(near, 4), rounds(far, 4)
    assert [(r.reward, r.loss, r.staleness_max) for r in one] == [(r.reward, r.loss, r.staleness_max) for r in other]
    assert far.state.policy_version > 1
    assert isinstance(engine, EngineElsewhere)
    assert [each.is_diff for each in engine.came] == [False] + [True] * (len(engine.came) - 1)
    assert len(engine.came) > 1


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_every_completion_of_a_run_names_the_version_whose_weights_were_in_the_engine(max_staleness: int) -> None:
    learner, engine = learner_with(EngineElsewhere, max_staleness=max_staleness, overprovision=0.5)
    rounds(learner, 4)
    assert isinstance(engine, EngineElsewhere)
    versions = {version for version, _, _ in engine.sampled}
    assert versions == set(range(max(versions) + 1)) and len(versions) > 2
    for version, before, after in engine.sampled:
        for each in after.sequences:
            named = [segment.version for segment in each.segments]
            assert named == sorted(set(named))
            assert sum(segment.tokens for segment in each.segments) == len(each.token_ids) == len(each.logps)
        assert tokens_of(after, version) - tokens_of(before, version) == after.tokens - before.tokens
    assert any(len(each.segments) > 1 for _, _, after in engine.sampled for each in after.sequences)


def tokens_of(progress: GenerationProgress, version: int) -> int:
    """Tokens that are recorded as this version's."""
    return sum(s.tokens for each in progress.sequences for s in each.segments if s.version == version)
