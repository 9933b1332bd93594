"""Learners in one process: tiny random models on letters, the real engine, groups really encoded and stored."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from node.checkpoints.checkpoints import BackgroundCheckpoints, read_newest
from node.configuration import (
    CheckpointSection,
    Config,
    EvaluationSection,
    LearnerSection,
    ObjectiveSection,
)
from node.engines.engine import Engine
from node.engines.torch import TorchEngine
from node.evaluation.while_training import EvaluationWhileTraining
from node.events import (
    Event,
    Fault,
    RoundDone,
)
from node.learner.assembly.wiring import Extras, learner_of
from node.learner.foreign.intake import RolloutIntake
from node.learner.foreign.swarm_calls import Swarm
from node.learner.generation.own_rollouts import RewardScorer
from node.learner.memory.phases import SizePlan
from node.learner.state.learner_state import LearnerState
from node.learner.state.persistence import Persistence, restore
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy
from node.policy.tokens import TokenTable
from node.tasks.scorer import Scores
from node.tasks.scorer import ScoringFault as ScoringFault
from node.tasks.task import Prompt, Task, check_ref
from node.tasks.worker import FaultReason, score_one
from protocol.errors import UnreachableError
from protocol.messages import Heartbeat, PromptRef
from protocol.rollouts import Completion, FinishReason, Group, advert_of, decode_group, encode_group
from swarm.api import Fetched, Judgement, PeerStatus, SeenGroup, SwarmStatus, Wanted

LETTERS = "abcdef"
WAIT_SECONDS = 60.0  # a hang guard


class LetterTask:
    """ "ab>" wants a completion that begins with the prompt's first letter."""

    def __init__(self, name: str, max_new_tokens: int = 4) -> None:
        self.name, self.version, self.max_new_tokens = name, 1, max_new_tokens
        self.config_hash = hashlib.sha256(name.encode()).digest()[:16]

    def ref(self, seed: int) -> PromptRef:
        return PromptRef(self.name, 1, self.config_hash, seed % 1000)

    def prompt(self, ref: PromptRef) -> Prompt:
        check_ref(self, ref, 1000)
        first, second = LETTERS[ref.seed % 6], LETTERS[ref.seed // 6 % 6]
        return Prompt(ref, f"{first}{second}>", first, {})

    def rewards(self, prompt: Prompt, completions: Sequence[str]) -> list[float]:
        return [float(text.startswith(str(prompt.answer))) for text in completions]


def tasks() -> dict[str, Task]:
    return {name: LetterTask(name) for name in ("first", "again")}


class HereScorer(RewardScorer):
    """Scores in this process; ``fails`` says which texts cannot be scored."""

    def __init__(self, known: Mapping[str, Task], fails: Callable[[str], bool] = lambda _: False) -> None:
        self._tasks, self._fails = known, fails

    def score(self, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]:
        return [self._score(ref, texts) for ref, texts in items]

    def _score(self, ref: PromptRef, texts: Sequence[str]) -> Scores:
        task = self._tasks[ref.task]
        verdicts = [score_one(task, task.prompt(ref), text) for text in texts]
        faults = tuple(ScoringFault(FaultReason.TIMEOUT, "slow") if self._fails(text) else None for text in texts)
        rewards = tuple(0.0 if f else v.reward for v, f in zip(verdicts, faults, strict=True))
        return Scores(rewards, faults, tuple(None if f else v.played for f, v in zip(faults, verdicts, strict=True)))


def character_tokens() -> TokenTable:
    vocabulary = {"<pad>": 0, "<eos>": 1} | {c: 2 + i for i, c in enumerate(LETTERS + ">")}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return TokenTable(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>"))


def merging_tokens() -> TokenTable:
    """The same letters, and every pair of neighbours in the alphabet as one token."""
    pairs = [(a, b) for a, b in itertools.pairwise(LETTERS)]
    vocabulary = {token: i for i, token in enumerate(["<eos>", *LETTERS, ">", *(a + b for a, b in pairs)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.decoder = decoders.Fuse()
    return TokenTable(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>"))


def policy(seed: int = 0, *, merging: bool = False) -> Policy:
    torch.manual_seed(seed)
    tokens = merging_tokens() if merging else character_tokens()
    shape: dict[str, Any] = {
        "vocab_size": tokens.vocabulary,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 32,
    }
    model: Any = LlamaForCausalLM(LlamaConfig(**shape)) if merging else Qwen3ForCausalLM(Qwen3Config(**shape))
    family = hashlib.sha256(f"{merging}".encode()).digest()[:16]
    return Policy(model.eval(), tokens, family, "tiny", torch.device("cpu"), torch.float32, tokens.vocabulary)


@dataclass
class MemorySwarm:
    """Does for several learners in one process what a swarm process does for one; groups are really encoded."""

    folder: Path
    now_seconds: Callable[[], float]
    board: list[SeenGroup] = field(default_factory=list)
    judged: list[tuple[str, str, Judgement, str]] = field(default_factory=list)  # judge, sender, judgement, detail
    beats: dict[str, Heartbeat] = field(default_factory=dict)
    members: set[str] = field(default_factory=set)

    def member(self, name: str) -> Member:
        self.members.add(name)
        return Member(self, name)

    def put(self, peer: str, group: Group, blob: bytes | None = None) -> SeenGroup:
        """Announces ``group`` as ``peer`` would; ``blob`` stands in for its content."""
        content = encode_group(group) if blob is None else blob
        advert = advert_of(group, content)
        (self.folder / advert.blob.hex()).write_bytes(content)
        cursor = len(self.board) + 1
        seen = SeenGroup(cursor, peer, self.now_seconds(), group.family, group.tokenizer, group.policy_version, advert)
        self.board.append(seen)
        return seen

    def groups(self, peer: str) -> list[Group]:
        """Returns what ``peer`` has announced."""
        blobs = [seen.advert.blob.hex() for seen in self.board if seen.peer == peer]
        return [decode_group((self.folder / blob).read_bytes()) for blob in blobs]

    def verdicts(self, by: str) -> dict[str, int]:
        counts: dict[str, int] = {}
        for judge, _, judgement, _ in self.judged:
            if judge == by:
                counts[judgement.value] = counts.get(judgement.value, 0) + 1
        return counts


@dataclass
class Member:
    """One learner's view of a ``MemorySwarm``."""

    swarm: MemorySwarm
    name: str
    gone: bool = False
    fetching: threading.Event = field(default_factory=threading.Event)
    may_fetch: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_fetch.set()

    def _check(self) -> None:
        if self.gone:
            raise UnreachableError("no swarm process answers")

    def status(self) -> SwarmStatus:
        self._check()
        others = len(self.swarm.members) - 1
        alone = None if others else "no peer was found"
        return SwarmStatus(self.name, "test", "", (), 0.0, others, alone, 0, 0, 0, {}, {})

    def peers(self) -> list[PeerStatus]:
        self._check()
        return [
            PeerStatus(name, True, (), None, beat, 1.0, 0, 0, 0, 0.9, None)
            for name, beat in self.swarm.beats.items()
            if name != self.name
        ]

    def share(self, groups: Sequence[Group]) -> None:
        self._check()
        for group in groups:
            self.swarm.put(self.name, group)

    def seen_groups(self, after: int, limit: int) -> list[SeenGroup]:
        self._check()
        return [seen for seen in self.swarm.board if seen.cursor > after and seen.peer != self.name][:limit]

    def fetch(self, wanted: Sequence[Wanted], *, deadline_seconds: float) -> list[Fetched]:
        self._check()
        self.fetching.set()
        assert self.may_fetch.wait(WAIT_SECONDS)
        paths = [(each.blob, self.swarm.folder / each.blob.hex()) for each in wanted]
        return [Fetched(b, str(p), None) if p.exists() else Fetched(b, None, "missing") for b, p in paths]

    def beat(self, heartbeat: Heartbeat) -> None:
        self._check()
        self.swarm.beats[self.name] = heartbeat

    def judge(self, peer: str, blob: bytes, judgement: Judgement, detail: str = "") -> None:
        self._check()
        self.swarm.judged.append((self.name, peer, judgement, detail))


class Node:
    """One learner with everything around it, in memory except for checkpoints."""

    def __init__(
        self,
        name: str,
        member: Swarm | None = None,
        *,
        own_policy: Policy | None = None,
        learner: LearnerSection | None = None,
        evaluation: EvaluationSection | None = None,
        objective: ObjectiveSection | None = None,
        rows: int = 16,
        rounds: int = 0,
        tokens: int = 0,
        fails: Callable[[str], bool] = lambda _: False,
        folder: Path | None = None,
        trusting: bool = True,
        around: Callable[[TorchEngine], Engine] = lambda engine: engine,
        known: Mapping[str, Task] | None = None,
        shared: Mapping[str, Task] | None = None,
        size_plan: SizePlan | None = None,
    ) -> None:
        """``known``: what it trains on, by default ``tasks()``; ``shared``: of these what is shared, by default all.
        ``around`` returns the engine that the learner gets, made from its own. ``trusting``: peers have full influence
        from their first group on, as members of a private cluster do."""
        section = learner or LearnerSection(own_groups=4, completions=4, foreign_groups=4, learning_rate=1e-2)
        checkpoint = CheckpointSection(every_rounds=2)
        self.config = Config(
            name=name,
            learner=section,
            evaluation=evaluation or EvaluationSection(every_rounds=0),
            objective=objective or ObjectiveSection(),
            rounds=rounds,
            tokens=tokens,
            checkpoint=checkpoint,
        )
        self.events: list[Event] = []
        self.now_seconds = 1_000_000.0
        self.policy = own_policy or policy()
        self.optimizer = optimizer = MasterAdamW(self.policy.trainable(), section)
        state, position, persistence = LearnerState(), None, None
        if folder is not None:
            state, position = restore(read_newest(folder), folder, self.policy, optimizer)
            self.checkpoints = BackgroundCheckpoints(folder, keep=2)
            persistence = Persistence(
                self.checkpoints, self.config, self.policy, optimizer, self.events.append, self._clock
            )
        state.influence.standings.trusting = trusting
        known = known or tasks()
        self.intake = RolloutIntake(member, known if shared is None else shared, section, self._clock, position)
        self.engine = engine = TorchEngine(self.policy, rows=rows, seed=0)
        scorer = HereScorer(known, fails)
        measured = EvaluationWhileTraining(
            self.config.evaluation, self.policy.tokens, lambda: engine, scorer, known, context=32
        )
        self.learner = learner_of(
            self.config,
            self.policy,
            known,
            around(engine),
            scorer,
            self.intake,
            optimizer,
            state,
            report=self.events.append,
            clock=self._clock,
            extras=Extras(persistence=persistence, evaluation=measured, size_plan=size_plan),
        )

    def _clock(self) -> float:
        return self.now_seconds

    def round(self) -> RoundDone:
        """Runs one round, a second after the last one. When it returns, the swarm has done what the round asked."""
        self.now_seconds += 1.0
        done = self.learner.round()
        self.intake.settle(WAIT_SECONDS)
        return done

    def faults(self) -> list[str]:
        return [event.kind for event in self.events if isinstance(event, Fault)]


def right_group(own_policy: Policy, seed: int = 0, answers: Sequence[str] | None = None) -> Group:
    """Returns a group of four right completions with high log-probabilities; ``answers`` replace them."""
    task = LetterTask("first")
    ref = task.ref(seed)
    right = str(task.prompt(ref).answer)
    completions = []
    for text in answers or [right] * 4:
        content = text.encode()
        found = own_policy.tokens.tokenize_completion(content)
        assert found is not None
        ids, lengths = [*found[0], own_policy.tokens.eos_id], [*found[1], 0]
        completions.append(
            Completion(
                content,
                np.array(ids, np.int64),
                np.array(lengths, np.int64),
                np.full(len(ids), -0.1, np.float32),
                FinishReason.STOP,
                float(text.startswith(right)),
            )
        )
    return Group(ref, own_policy.family, own_policy.tokens.fingerprint, 3, tuple(completions))


def with_first(group: Group, **changes: Any) -> Group:
    first, *others = group.completions
    return replace(group, completions=(replace(first, **changes), *others))
