"""What a round generates, for real: tiny random models with long tails, the real engine, real checkpoints."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from node.checkpoints.checkpoints import BackgroundCheckpoints, read_newest
from node.configuration import (
    CheckpointSection,
    Config,
    EngineSection,
    LearnerSection,
    ObjectiveSection,
    ResearchSection,
)
from node.engines.engine import GenerationProgress, Partial, Sample, Segment
from node.engines.torch import TorchEngine
from node.events import Event, OutOfMemory, RoundDone
from node.fit.fitted import Sizes
from node.learner.allocation.allocator import Allocation
from node.learner.assembly.wiring import Extras, learner_of
from node.learner.foreign.intake import RolloutIntake
from node.learner.generation.generation import Generated, Generation, RoundPlan, check_prompt_room, launched_for
from node.learner.generation.own_rollouts import RewardScorer, Rollout, group_of
from node.learner.generation.schedule import Ahead, InTurn, needs_own_weights
from node.learner.generation.unfinished import UnfinishedGroup
from node.learner.memory.phases import SizePlan
from node.learner.objective.advantages import AdvantageRule
from node.learner.objective.training_groups import own_training_group
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import Persistence, restore
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from node.policy.tokens import TokenTable
from node.tasks.scorer import Scores
from node.tasks.split import Part, part_of, training_prompt
from node.tasks.task import Prompt, Task, check_ref
from protocol.errors import ConfigurationError
from protocol.messages import PromptRef
from protocol.rollouts import FinishReason
from tests.node.learner.enough_memory import enough_memory

LETTERS = "abcdef"
LONGEST = 24
WAIT_SECONDS = 60.0  # a hang guard


class CountTask:
    """ "ab>" wants a completion in which the prompt's first letter occurs an even number of times."""

    def __init__(self, name: str, max_new_tokens: int = LONGEST) -> None:
        self.name, self.version, self.max_new_tokens = name, 1, max_new_tokens
        self.config_hash = hashlib.sha256(f"{name}{max_new_tokens}".encode()).digest()[:16]
        self.asked = threading.Event()

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, 1, self.config_hash, seed % 1000)

    def prompt(self, ref: PromptRef) -> Prompt:
        check_ref(self, ref, 1000)
        self.asked.set()
        first, second = LETTERS[ref.seed % 6], LETTERS[ref.seed // 6 % 6]
        return Prompt(ref, f"{first}{second}>", first, {})

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        return [float(text.count(str(prompt.answer)) % 2 == 0) for text in completions]


class HereScorer(RewardScorer):
    """Scores in this process; ``flat`` gives every completion the same reward."""

    def __init__(self, known: Mapping[str, Task], *, flat: bool = False) -> None:
        self._tasks, self._flat = known, flat

    def score(self, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]:
        return [self._score(ref, texts) for ref, texts in items]

    def _score(self, ref: PromptRef, texts: Sequence[str]) -> Scores:
        task = self._tasks[ref.task]
        rewards = [1.0] * len(texts) if self._flat else task.rewards(task.prompt(ref), texts)
        return Scores(tuple(rewards), (None,) * len(texts))


def tiny_policy(seed: int = 0, *, context: int = 64) -> Policy:
    torch.manual_seed(seed)
    vocabulary = {"<pad>": 0, "<eos>": 1} | {c: 2 + i for i, c in enumerate(LETTERS + ">")}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokens = TokenTable(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>"))
    shape: dict[str, Any] = {
        "vocab_size": tokens.vocabulary,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
    }
    model: Any = LlamaForCausalLM(LlamaConfig(**shape))
    family = hashlib.sha256(b"tiny").digest()[:16]
    return Policy(model.eval(), tokens, family, "tiny", torch.device("cpu"), torch.float32, tokens.vocabulary)


def known_tasks(max_new_tokens: int = LONGEST) -> dict[str, Task]:
    return {name: CountTask(name, max_new_tokens) for name in ("even", "again")}


class Node:
    """A learner without a swarm."""

    def __init__(
        self, section: LearnerSection, *, folder: Path | None = None, seed: int = 0, behind: int = 0, flat: bool = False
    ) -> None:
        self.events: list[Event] = []
        self.policy = tiny_policy(seed)
        self.tasks = known_tasks()
        config = Config(
            name="ann",
            learner=section,
            engine=EngineSection(rows=16),
            objective=ObjectiveSection(research=ResearchSection(weights_behind=behind)),
            checkpoint=CheckpointSection(every_rounds=2),
        )
        optimizer = MasterAdamW(self.policy.trainable(), section)
        state, persistence = LearnerState(), None
        if folder is not None:
            state, _ = restore(read_newest(folder), folder, self.policy, optimizer)
            checkpoints = BackgroundCheckpoints(folder, keep=2)
            persistence = Persistence(checkpoints, config, self.policy, optimizer, self.events.append, lambda: 0.0)
        engine = TorchEngine(self.policy, rows=16, seed=0, owns_weights=needs_own_weights(config))
        self.learner = learner_of(
            config,
            self.policy,
            self.tasks,
            engine,
            HereScorer(self.tasks, flat=flat),
            RolloutIntake(None, self.tasks, section, lambda: 0.0),
            optimizer,
            state,
            report=self.events.append,
            clock=lambda: 0.0,
            extras=Extras(persistence=persistence),
        )

    def run(self, rounds: int) -> list[RoundDone]:
        """Runs ``rounds`` more rounds, then stops as when asked from outside."""
        until = self.learner.state.round + rounds
        stopped = self.learner.run(lambda: "asked" if self.learner.state.round >= until else None)
        assert stopped.because == "asked"
        return [event for event in self.events if isinstance(event, RoundDone)][-rounds:]


def section(**changes: Any) -> LearnerSection:
    return LearnerSection(own_groups=4, completions=4, learning_rate=1e-2, foreign_groups=0, **changes)


def generation(section_: LearnerSection, *, context: int = 64, flat: bool = False, rows: int = 64) -> Generation:
    policy, tasks = tiny_policy(context=context), known_tasks()
    engine = TorchEngine(policy, rows=rows, seed=0)
    scorer = HereScorer(tasks, flat=flat)
    return Generation(engine, tasks, policy.tokens, scorer, section_, temperature=1.0, context=context)


def plan(seed: int = 0, groups: int = 4, drawn: int = 6) -> RoundPlan:
    """Draws seeds whose questions teach: no other question takes the place of one."""
    return RoundPlan(groups, tuple(Allocation("even", each, 4) for each in teaching_seeds(seed, drawn)), seed)


def teaching_seeds(seed: int, drawn: int) -> list[int]:
    task = CountTask("even")
    seeds = itertools.count(100 * seed)
    return list(itertools.islice((n for n in seeds if training_prompt(task, n).ref.seed == n), drawn))


def generation_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("generation")]


def refs(groups: Sequence[UnfinishedGroup | Rollout]) -> list[int]:
    return [g.ref.seed if isinstance(g, UnfinishedGroup) else g.prompt.ref.seed for g in groups]


# What a round generates


def test_interrupted_groups_come_first_in_the_next_round_and_none_is_lost_or_done_twice() -> None:
    subject = generation(section(overprovision=0.5))
    waiting: tuple[UnfinishedGroup, ...] = ()
    seen: list[int] = []
    for number in range(6):
        before = refs(waiting)
        came = subject.run(plan(number), waiting)
        assert len(came.rollouts) >= 4
        assert came.resumed == len(before)
        assert sorted(refs(came.rollouts) + refs(came.unfinished)) == sorted(
            before + teaching_seeds(number, 6 - len(before))
        )
        seen += refs(came.rollouts)
        waiting = came.unfinished
    assert len(seen) == len(set(seen))
    assert waiting


def test_questions_that_only_measure_are_never_asked() -> None:
    every_seed = tuple(Allocation("even", seed, 4) for seed in range(36))
    came = generation(section()).run(RoundPlan(36, every_seed, 0), ())
    asked = [rollout.prompt for rollout in came.rollouts]
    assert len(asked) == 36 > len({prompt.text for prompt in asked}) > 24  # of 36 texts
    assert all(part_of(prompt) is Part.TRAINING for prompt in asked)


def test_tokens_of_a_resumed_completion_are_kept_and_counted_once() -> None:
    subject = generation(section(overprovision=0.5))
    first = subject.run(plan(2), ())
    begun = {g.ref.seed: g.progress for g in first.unfinished}
    assert any(progress.partials for progress in begun.values())
    whole = sum(rollout.tokens for rollout in first.rollouts)
    assert first.tokens == whole + sum(progress.tokens for progress in begun.values())
    subject.engine.load_weights(1, {})
    second = subject.run(plan(3), first.unfinished)
    resumed = [r for r in second.rollouts if r.prompt.ref.seed in begun]
    assert resumed
    for rollout in resumed:
        earlier = begun[rollout.prompt.ref.seed].sequences
        continued = [
            sum(np.array_equal(s.token_ids[: len(e.token_ids)], e.token_ids) for s in rollout.samples) for e in earlier
        ]
        assert all(continued)
        assert rollout.oldest_version == 0
    everything = sum(r.tokens for r in second.rollouts) + sum(g.progress.tokens for g in second.unfinished)
    assert second.tokens == everything - first.tokens + whole


def test_generation_in_turn_gives_its_keys_and_values_back_before_learning() -> None:
    subject = generation(section())
    engine = subject.engine
    assert isinstance(engine, TorchEngine)
    schedule = InTurn(subject, 0, enough_memory())
    schedule.launch(0, (), lambda number: plan(number))
    assert schedule.take().tokens > 0
    assert engine.cache_bytes == 0
    subject.run(plan(1), ())
    assert engine.cache_bytes > 0


def test_halted_at_once_nothing_is_complete_and_everything_is_left() -> None:
    came = generation(section()).run(plan(drawn=4), (), lambda: True)
    assert came.rollouts == []
    assert refs(came.unfinished) == teaching_seeds(0, 4)
    assert came.tokens == 0


def test_halted_in_the_middle_what_was_sampled_is_left_for_later() -> None:
    steps = iter(range(100))
    came = generation(section(), rows=8).run(plan(drawn=4), (), lambda: next(steps) >= 3)
    assert len(came.unfinished) == 4 - len(came.rollouts) > 0
    assert 0 < came.tokens <= 3 * 8


def test_unfinished_group_that_no_longer_fits_or_whose_task_is_gone_is_dropped_and_said_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    long_one = GenerationProgress(partials=(Partial(np.full(20, 3), np.full(20, -1.0, np.float32), (Segment(0, 20),)),))
    known, changed = CountTask("even"), CountTask("even", 5)
    waiting = (
        UnfinishedGroup(known.ref(1), 4, long_one),
        UnfinishedGroup(changed.ref(2), 4, GenerationProgress()),
        UnfinishedGroup(CountTask("gone").ref(3), 4, GenerationProgress()),
        UnfinishedGroup(known.ref(4), 4, GenerationProgress()),
    )
    came = generation(section(), context=16).run(plan(1, drawn=4), waiting)
    assert refs(came.rollouts) == [4, *teaching_seeds(1, 3)]
    assert came.resumed == 1
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert "20 tokens" in said[0] and "room for 13" in said[0]
    assert "no longer trains on gone" in said[2]


def test_prompts_that_leave_no_room_are_left_out_and_counted() -> None:
    came = generation(section(), context=3).run(plan(drawn=4), ())
    assert came.rollouts == [] and came.too_long == 4
    assert generation(section(), context=64).run(plan(drawn=4), ()).too_long == 0


def test_no_prompt_that_fits_is_a_fault_of_the_configuration_and_refused_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokens, tasks = tiny_policy().tokens, known_tasks()
    lengths = sorted(
        {len(tokens.prompt_ids(task.prompt(task.ref(seed)).text)) for task in tasks.values() for seed in range(32)}
    )
    check_prompt_room(tasks, tokens, lengths[-1] + 1)
    assert not caplog.records
    with pytest.raises(ConfigurationError, match=r"no prompt of .* leaves room"):
        check_prompt_room(tasks, tokens, lengths[0])


def test_resampling_replaces_groups_of_equal_rewards_until_enough_teach_something() -> None:
    subject = generation(section(resample=8))
    came = subject.run(replace(plan(drawn=32), sampling_seed=6), ())
    assert len(came.rollouts) == 4
    assert came.scores is not None
    assert all(min(s.rewards) < max(s.rewards) for s in came.scores)
    assert came.dropped
    assert all(min(s.rewards) == max(s.rewards) for _, s in came.dropped)
    dropped = [rollout for rollout, _ in came.dropped]
    assert sorted(refs(came.rollouts) + refs(dropped)) == teaching_seeds(0, 4 + len(dropped))
    assert came.tokens == sum(r.tokens for r in (*came.rollouts, *dropped))


def test_resampling_ends_when_all_prompts_have_been_drawn() -> None:
    came = generation(section(resample=2), flat=True).run(plan(drawn=8), ())
    assert came.rollouts == []
    assert came.scores == []
    assert sorted(refs([rollout for rollout, _ in came.dropped])) == teaching_seeds(0, 8)


def test_groups_launched_are_not_one_too_many_for_rounding() -> None:
    assert launched_for(10, 0.1) == 11
    assert launched_for(32, 0.0) == 32
    assert launched_for(3, 0.5) == 5


# The round


def test_overprovisioned_run_resumes_and_learns_and_tells() -> None:
    done = Node(section(overprovision=0.5)).run(8)
    assert all(r.own_groups >= 4 for r in done)
    assert sum(r.own_groups_resumed for r in done) > 0
    assert [r.own_groups_resumed for r in done[1:]] == [r.own_groups_unfinished for r in done[:-1]]
    assert max(r.staleness_max or 0 for r in done) >= 1
    assert all(r.loss is None or np.isfinite(r.loss) for r in done)
    assert done[-1].tokens_generated_total == sum(r.tokens_generated for r in done)
    assert done[0].staleness_max == 0


@pytest.mark.parametrize("changes", [{"overprovision": 0.5}, {"overprovision": 0.5, "resample": 3}, {"resample": 3}])
def test_interrupted_run_goes_on_exactly_as_if_it_had_not_been(tmp_path: Path, changes: dict[str, Any]) -> None:
    whole = Node(section(**changes), folder=tmp_path / "whole")
    of_whole = whole.run(6)
    parts = Node(section(**changes), folder=tmp_path / "parts").run(3)
    second = Node(section(**changes), folder=tmp_path / "parts", seed=77)
    if "overprovision" in changes:
        assert second.learner.state.unfinished
    parts += second.run(3)
    assert [(r.reward, r.loss, r.tokens_generated_total, r.staleness_mean) for r in parts] == [
        (r.reward, r.loss, r.tokens_generated_total, r.staleness_mean) for r in of_whole
    ]
    ours, theirs = whole.policy.trainable(), second.policy.trainable()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_round_in_which_all_groups_are_dropped_goes_on_without_a_step() -> None:
    (done,) = Node(section(resample=2), flat=True).run(1)
    assert (done.own_groups, done.own_groups_dropped, done.own_groups_informative) == (8, 8, 0)
    assert done.loss is None
    assert done.reward == 1.0
    assert done.staleness_max is None
    assert done.tokens_generated > 0


@pytest.mark.parametrize("behind", [1, 3])
def test_weights_held_back_make_every_completion_exactly_so_stale(behind: int) -> None:
    done = Node(section(), behind=behind).run(6)
    version = 0
    for each in done:
        assert each.staleness_max == each.staleness_mean == min(version, behind)
        version = each.policy_version
    assert version > behind
    again = Node(section(), behind=behind).run(6)
    assert [(r.reward, r.loss) for r in done] == [(r.reward, r.loss) for r in again]


def test_stale_completions_differ_from_the_policy_and_on_policy_ones_do_not() -> None:
    on_policy, stale = Node(section()).run(5)[-1], Node(section(), behind=3).run(5)[-1]
    assert on_policy.divergence_by_peer["self"] == pytest.approx(0.0, abs=1e-6)
    assert stale.divergence_by_peer["self"] > 1e-4


@pytest.mark.parametrize("changes", [{}, {"overprovision": 0.5}, {"overprovision": 0.5, "resample": 3}])
@pytest.mark.parametrize("most", [1, 3])
def test_generation_ahead_stays_within_its_bound_and_its_thread_ends(most: int, changes: dict[str, Any]) -> None:
    node = Node(section(max_staleness=most, **changes))
    done = node.run(8)
    assert [r.round for r in done] == list(range(1, 9))
    assert done[0].staleness_max == 0
    stalest = max(r.staleness_max or 0 for r in done)
    assert stalest >= 1
    assert "overprovision" in changes or stalest <= most
    assert all(r.own_groups >= 4 for r in done)
    assert generation_threads() == []
    assert node.run(2)[-1].round == 10  # and it can be started again
    assert generation_threads() == []


def test_generation_one_round_ahead_gives_the_same_run_twice() -> None:
    one, other = (Node(section(max_staleness=1)).run(6) for _ in range(2))
    assert [(r.reward, r.loss, r.staleness_max) for r in one] == [(r.reward, r.loss, r.staleness_max) for r in other]


def test_generation_ahead_is_stopped_in_the_middle_of_a_completion() -> None:
    policy = tiny_policy(context=20_000)
    with torch.no_grad():
        policy.base.lm_head.weight[1] = 0.0  # so that end-of-sequence is almost never sampled
        policy.base.model.norm.weight.mul_(100.0)
    task = CountTask("even", 19_000)
    tasks: dict[str, Task] = {"even": task}
    engine = TorchEngine(policy, rows=64, seed=0, owns_weights=True)
    own = section(max_staleness=1)
    subject = Generation(engine, tasks, policy.tokens, HereScorer(tasks), own, temperature=1.0, context=20_000)
    schedule = Ahead(subject, 0, 1, enough_memory())
    schedule.publish(0, policy.trainable())
    schedule.launch(0, (), lambda number: plan(number, groups=1, drawn=1))
    running = schedule._batches[0].generated
    assert task.asked.wait(WAIT_SECONDS)
    schedule.close()
    came: Generated = running.result()
    assert came.rollouts == []
    assert all(len(partial.token_ids) < 19_000 for partial in came.unfinished[0].progress.partials)
    assert generation_threads() == []


def test_fault_in_generation_ahead_is_raised_by_the_round() -> None:
    node = Node(section(max_staleness=1))
    node.learner.round()

    def refuse(ref: PromptRef) -> Prompt:
        raise ConfigurationError("no such prompt")

    for task in node.tasks.values():
        task.prompt = refuse  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="no such prompt"):
        for _ in range(4):
            node.learner.round()
    node.learner.close()
    assert generation_threads() == []


@pytest.mark.parametrize("method", ["advance", "load_weights"])
def test_memory_that_runs_out_in_generation_ahead_is_repeated_there_and_loses_no_round(method: str) -> None:
    undisturbed, node = Node(section(max_staleness=1)), Node(section(max_staleness=1))
    engine = node.learner.learning.engine
    real, calls = getattr(engine, method), [0]

    def sometimes(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] % 3 == 0:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(*arguments)

    setattr(engine, method, sometimes)
    node.learner.phases._plan = SizePlan(node.learner.phases.sizes, node.learner.phases.sizes, Sizes(16, 8192))
    expected, found = undisturbed.run(6), node.run(6)
    assert [(r.reward, r.loss, r.staleness_max) for r in found] == [
        (r.reward, r.loss, r.staleness_max) for r in expected
    ]
    assert {e.phase for e in node.events if isinstance(e, OutOfMemory)} == {
        "generate" if method == "advance" else "publish"
    }


@pytest.mark.parametrize("settings_", [{"behind": 1}, {"most": 1}])
def test_engine_that_shares_the_learners_modules_cannot_hold_older_weights(settings_: dict[str, int]) -> None:
    config = Config(
        learner=section(max_staleness=settings_.get("most", 0)),
        objective=ObjectiveSection(research=ResearchSection(weights_behind=settings_.get("behind", 0))),
    )
    policy, tasks = tiny_policy(), known_tasks()
    with pytest.raises(ValueError, match="engine that owns its weights"):
        learner_of(
            config,
            policy,
            tasks,
            TorchEngine(policy, rows=4, seed=0),
            HereScorer(tasks),
            RolloutIntake(None, tasks, config.learner, lambda: 0.0),
            MasterAdamW(policy.trainable(), config.learner),
            LearnerState(),
            report=lambda event: None,
            clock=lambda: 0.0,
        )


def test_shared_group_names_the_oldest_version_that_had_a_part_in_it() -> None:
    tokens = tiny_policy().tokens
    task = CountTask("even")

    def sample(*versions: int) -> Sample:
        length = len(versions)
        segments = tuple(Segment(version, 1) for version in versions)
        return Sample(np.full(length, 3), np.full(length, -0.5, np.float32), FinishReason.LENGTH, segments)

    rollout = Rollout(task.prompt(task.ref(0)), (2, 3, 8), (sample(7), sample(5, 7)), (b"b", b"bb"))
    assert group_of(rollout, [0.0, 1.0], tokens, family=b"f" * 16).policy_version == 5


def test_equal_completions_by_unequal_weights_keep_their_own_log_probabilities() -> None:
    task = CountTask("even")

    def sample(version: int, logp: float) -> Sample:
        return Sample(np.array([3, 1]), np.full(2, logp, np.float32), FinishReason.STOP, (Segment(version, 2),))

    samples = (sample(4, -0.5), sample(4, -0.5), sample(3, -2.0), sample(4, -0.5))
    rollout = Rollout(task.prompt(task.ref(0)), (2, 3, 8), samples, (b"b",) * 4)
    objective, rewards = ObjectiveSection(), [1.0, 1.0, 1.0, 0.0]
    rule = AdvantageRule.of(objective.research.advantage, [rewards])
    group = own_training_group(rollout, rewards, objective, rule)
    assert [(c.count, float(c.alignment.behaviour_logps[0])) for c in group.completions] == [
        (2, -0.5),
        (1, -2.0),
        (1, -0.5),
    ]
