"""The round for real: tiny random models, the real engine, groups really encoded on their way to each other."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from node.checkpoints.checkpoints import BackgroundCheckpoints, read_newest
from node.configuration import AllocationSection, CheckpointSection, Config, LearnerSection
from node.engines.torch import TorchEngine
from node.events import (
    CheckpointSaved,
    Event,
    Fault,
    ForeignGroups,
    PhaseBegan,
    RoundDone,
    decode_event,
    encode_event,
)
from node.learner import loop
from node.learner.foreign.intake import BACKLOG, NO_SWARM_PROCESS, RolloutIntake, Swarm
from node.learner.loop import Learner
from node.learner.optimizer import MasterAdamW
from node.learner.persistence import LearnerState, Persistence, restore
from node.policy.policy import Policy
from node.policy.tokens import TokenTable
from node.tasks.scorer import Scores
from node.tasks.scorer import ScoringFault as ScoringFault
from node.tasks.task import Prompt, Task, check_ref
from node.tasks.worker import FaultReason
from protocol.blob_id import blob_id
from protocol.errors import UnreachableError
from protocol.messages import Heartbeat, PromptRef, TaskSuccess
from protocol.rollouts import Completion, FinishReason, Group, advert_of, encode_group
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


class HereScorer:
    """Scores in this process; ``fails`` says which texts cannot be scored."""

    def __init__(self, known: Mapping[str, Task], fails: Callable[[str], bool] = lambda _: False) -> None:
        self._tasks, self._fails = known, fails

    def score(self, items: Sequence[tuple[PromptRef, Sequence[str]]]) -> list[Scores]:
        return [self._score(ref, texts) for ref, texts in items]

    def _score(self, ref: PromptRef, texts: Sequence[str]) -> Scores:
        task = self._tasks[ref.task]
        rewards = task.rewards(task.prompt(ref), texts)
        faults = tuple(ScoringFault(FaultReason.TIMEOUT, "slow") if self._fails(text) else None for text in texts)
        return Scores(tuple(0.0 if f else r for r, f in zip(rewards, faults, strict=True)), faults)


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
    """What a swarm process does for one learner, for several in one process: groups are really encoded and stored."""

    folder: Path
    now_seconds: Callable[[], float]
    board: list[SeenGroup] = field(default_factory=list)
    judged: list[tuple[str, str, Judgement, str]] = field(default_factory=list)  # by whom, of whom, what, why
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
    """One learner with everything around it, in memory but for checkpoints."""

    def __init__(
        self,
        name: str,
        member: Swarm | None = None,
        *,
        own_policy: Policy | None = None,
        learner: LearnerSection | None = None,
        allocation: AllocationSection | None = None,
        rounds: int = 0,
        tokens: int = 0,
        fails: Callable[[str], bool] = lambda _: False,
        folder: Path | None = None,
    ) -> None:
        section = learner or LearnerSection(own_groups=4, completions=4, foreign_groups=4, learning_rate=1e-2)
        checkpoint = CheckpointSection(every_rounds=2)
        self.config = Config(
            name=name,
            learner=section,
            allocation=allocation or AllocationSection(),
            rounds=rounds,
            tokens=tokens,
            checkpoint=checkpoint,
        )
        self.events: list[Event] = []
        self.now_seconds = 1_000_000.0
        self.policy = own_policy or policy()
        optimizer = MasterAdamW(self.policy.trainable(), section)
        state, position, persistence = LearnerState(), None, None
        if folder is not None:
            state, position = restore(read_newest(folder), folder, self.policy, optimizer)
            self.checkpoints = BackgroundCheckpoints(folder, keep=2)
            persistence = Persistence(
                self.checkpoints, self.config, self.policy, optimizer, self.events.append, self._clock
            )
        known = tasks()
        self.exchange = RolloutIntake(member, known, section, self._clock, position)
        self.learner = Learner(
            self.config,
            self.policy,
            known,
            TorchEngine(self.policy, rows=16, seed=0),
            HereScorer(known, fails),
            self.exchange,
            optimizer,
            state,
            report=self.events.append,
            clock=self._clock,
            persistence=persistence,
        )

    def _clock(self) -> float:
        return self.now_seconds

    def round(self) -> RoundDone:
        """One round, a second after the last; what it asked of the swarm has been done when it returns."""
        self.now_seconds += 1.0
        done = self.learner.round()
        self.exchange.settle(WAIT_SECONDS)
        return done

    def faults(self) -> list[str]:
        return [event.kind for event in self.events if isinstance(event, Fault)]


@pytest.fixture
def swarm(tmp_path: Path) -> MemorySwarm:
    return MemorySwarm(tmp_path, lambda: 1_000_000.0)


def right_group(own_policy: Policy, seed: int = 0, answers: Sequence[str] | None = None) -> Group:
    """A group whose four completions are right, by somebody sure of it; ``answers`` put others in their place."""
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


def test_node_without_a_swarm_process_trains_alone_and_says_why() -> None:
    node = Node("ann")
    before = {n: p.detach().clone() for n, p in node.policy.trainable().items()}
    rounds = [node.round() for _ in range(3)]
    assert [r.round for r in rounds] == [1, 2, 3]
    assert all(r.alone_because == NO_SWARM_PROCESS for r in rounds)
    assert all(r.own_groups == 4 and r.foreign_groups_used == 0 and r.groups_shared == 0 for r in rounds)
    assert rounds[-1].tokens_generated_total == sum(r.tokens_generated for r in rounds) > 0
    assert any(not torch.equal(before[n], p) for n, p in node.policy.trainable().items())
    assert rounds[-1].policy_version == sum(r.loss is not None for r in rounds)
    assert node.learner.state.success.of("first") != 0.1


def test_own_completions_are_on_policy() -> None:
    done = Node("ann").round()
    assert done.divergence_by_peer["self"] == pytest.approx(0.0, abs=1e-6)
    assert done.effective_sample_share == pytest.approx(1.0, abs=1e-5)
    assert done.clip_share == 0


def test_node_alone_gets_better_at_its_tasks() -> None:
    node = Node("ann", learner=LearnerSection(own_groups=8, completions=8, learning_rate=3e-3))
    rounds = [node.round() for _ in range(80)]
    first, last = np.mean([r.reward for r in rounds[:10]]), np.mean([r.reward for r in rounds[-20:]])
    assert last > first + 0.2


def test_every_event_of_a_round_survives_its_way_to_the_supervisor(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"))
    swarm.put("bob", right_group(node.policy))
    node.round()
    node.round()
    assert len(node.events) >= 2
    for event in node.events:
        assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize("merging", [False, True])
def test_two_nodes_use_each_others_groups(swarm: MemorySwarm, merging: bool) -> None:
    ann = Node("ann", swarm.member("ann"), own_policy=policy(1))
    bob = Node("bob", swarm.member("bob"), own_policy=policy(2, merging=merging))
    for _ in range(6):
        to_ann, to_bob = ann.round(), bob.round()
    assert to_ann.foreign_groups_used_total > 0
    assert to_bob.foreign_groups_used_total > 0
    assert to_ann.alone_because is None
    assert to_ann.bytes_fetched > 0
    assert "bob" in to_ann.divergence_by_peer
    shares = [e.multi_token_span_share for e in ann.events if isinstance(e, RoundDone)]
    found = [share for share in shares if share is not None]
    assert (max(found) > 0) if merging else (max(found) == 0)
    assert set(swarm.verdicts("ann")) <= {"used", "unused"}
    assert swarm.verdicts("ann")["used"] == to_ann.foreign_groups_used_total
    assert swarm.beats["ann"].round > 0
    assert swarm.beats["bob"].tokenizer == bob.policy.tokens.fingerprint


def test_right_answers_of_others_become_likelier(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"), learner=LearnerSection(own_groups=1, completions=2, learning_rate=3e-3))
    teacher = policy(9, merging=True)
    group = right_group(teacher, seed=4)
    prompt = node.policy.tokens.prompt_ids(LetterTask("first").prompt(group.prompt).text)
    answer = node.policy.tokens.tokenize_completion(group.completions[0].text)
    assert answer is not None

    def answer_logp() -> float:
        ids = torch.tensor([prompt])
        with torch.no_grad():
            logits = node.policy.model(input_ids=ids).logits
        return float(torch.log_softmax(logits[0, -1], -1)[answer[0][0]])

    before = answer_logp()
    rounds = []
    for version in range(8):
        swarm.put("bob", replace(group, policy_version=version))
        rounds.append(node.round())
    assert node.learner.state.foreign_groups_used == 8
    assert sum(r.foreign_groups_replayed for r in rounds) > 8
    assert swarm.verdicts("ann") == {"used": 8}  # a sender hears of each group once
    assert answer_logp() > before + 0.3


def test_liar_is_found_out_judged_and_not_learnt_from(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"))
    swarm.put("liar", with_first(right_group(node.policy, answers=["f", "a", "a", "a"]), reward=1.0))
    done = node.round()
    assert done.foreign_groups_used == 0
    assert done.foreign_rejected == {"false_reward": 1}
    (verdict,) = swarm.judged
    assert verdict[:3] == ("ann", "liar", Judgement.FALSE_REWARD)
    assert "claimed reward 1, recomputed 0" in verdict[3]


def test_completion_that_our_scorer_cannot_score_accuses_nobody(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"), fails=lambda text: text == "a")
    swarm.put("bob", right_group(node.policy, seed=0))
    done = node.round()
    assert done.foreign_rejected == {"not_scored": 1}
    assert swarm.verdicts("ann") == {"unused": 1}


HOSTILE: dict[str, Callable[[Group], Group]] = {
    "ids over the vocabulary": lambda g: with_first(g, token_ids=g.completions[0].token_ids + 1000),
    "ids of another text": lambda g: with_first(g, token_ids=np.array([3, 1], np.int64)),
    "end of sequence without saying so": lambda g: with_first(g, finish=FinishReason.LENGTH),
    "more tokens than the task allows": lambda g: with_first(
        g,
        text=b"aaaaaa",
        token_ids=np.full(6, 2, np.int64),
        token_bytes=np.ones(6, np.int64),
        logps=np.zeros(6, np.float32),
        finish=FinishReason.LENGTH,
    ),
    "a seed that the task does not have": lambda g: replace(
        g, prompt=PromptRef("first", 1, g.prompt.config_hash, 10**9)
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_impossible_group_is_malformed_and_the_round_goes_on(swarm: MemorySwarm, what: str) -> None:
    node = Node("ann", swarm.member("ann"))
    swarm.put("eve", HOSTILE[what](right_group(node.policy, seed=0)))
    swarm.put("bob", right_group(node.policy, seed=1))
    done = node.round()
    assert done.foreign_rejected == {"malformed": 1}
    assert done.foreign_groups_used == 1
    assert [(of, what) for _, of, what, _ in swarm.judged] == [("eve", Judgement.MALFORMED), ("bob", Judgement.USED)]


def test_blob_that_does_not_decode_or_is_not_the_one_advertised_is_judged(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"))
    group = right_group(node.policy)
    swarm.put("eve", group, blob=b"SLG1 and then nonsense")
    swarm.put("mallory", group, blob=encode_group(right_group(node.policy, seed=5)))
    done = node.round()
    assert done.foreign_groups_used == 0
    assert done.foreign_rejected == {"integrity": 1, "malformed": 1}
    assert swarm.verdicts("ann") == {"malformed": 2}


def test_blob_that_nobody_serves_any_more_is_counted_and_forgotten(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"))
    seen = swarm.put("bob", right_group(node.policy))
    (swarm.folder / seen.advert.blob.hex()).unlink()
    assert node.round().foreign_rejected == {"not_fetched": 1}
    assert node.round().foreign_rejected == {}
    assert swarm.judged == []


def test_completion_outside_our_alphabet_is_left_out_and_the_rest_of_its_group_used(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"))
    strange = with_first(
        right_group(node.policy, seed=0),
        text="aé".encode(),
        token_ids=np.array([7, 8, 9], np.int64),
        token_bytes=np.array([1, 2, 0], np.int64),
        logps=np.full(3, -0.1, np.float32),
    )
    swarm.put("bob", replace(strange, tokenizer=b"another kind one"))
    done = node.round()
    assert done.foreign_groups_used == 1
    assert done.divergence_by_peer.keys() >= {"bob"}
    assert swarm.verdicts("ann") == {"used": 1}


def test_swarm_process_that_is_gone_is_told_once_and_found_again(swarm: MemorySwarm) -> None:
    member = swarm.member("ann")
    node = Node("ann", member)
    swarm.put("bob", right_group(node.policy, seed=0))
    member.gone = True
    first, second = node.round(), node.round()
    for done in (first, second):
        assert done.alone_because is not None
        assert "does not answer" in done.alone_because
        assert done.foreign_groups_used == 0
    assert node.faults() == ["unreachable"]
    member.gone = False
    assert node.round().foreign_groups_used == 1
    node.round()
    member.gone = True
    node.round()
    assert node.faults() == ["unreachable", "unreachable"]


def test_groups_that_come_late_are_used_a_round_later(swarm: MemorySwarm) -> None:
    member = swarm.member("ann")
    node = Node("ann", member)
    swarm.put("bob", right_group(node.policy, seed=0))
    member.may_fetch.clear()
    node.now_seconds += 1
    early = node.learner.round()  # the fetch hangs: the round does not
    assert member.fetching.is_set()
    assert early.foreign_groups_used == 0
    assert early.foreign_rejected == {"late": 1}
    member.may_fetch.set()
    node.exchange.settle(WAIT_SECONDS)
    assert node.round().foreign_groups_used == 1


def test_calls_to_a_silent_swarm_process_do_not_pile_up(swarm: MemorySwarm) -> None:
    member = swarm.member("ann")
    node = Node("ann", member)
    seen = swarm.put("bob", right_group(node.policy, seed=0))
    member.may_fetch.clear()
    node.learner.round()
    for _ in range(2 * BACKLOG):
        node.exchange.judge("bob", seen.advert.blob, Judgement.UNUSED)
    assert len(node.exchange.faults()) > BACKLOG  # dropped, and said so
    member.may_fetch.set()
    node.exchange.settle(WAIT_SECONDS)
    assert 0 < len(swarm.judged) <= BACKLOG


def test_connected_node_that_finds_nothing_useful_says_so(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"))
    assert node.round().alone_because == "no peer was found"
    swarm.member("bob")
    assert "none has announced a group that would help" in str(node.round().alone_because)


def test_rounds_that_follow_each_other_at_once_share_no_more_than_peers_accept(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"), learner=LearnerSection(own_groups=8, completions=8))
    done = [node.learner.round() for _ in range(3)]  # no time passes
    node.exchange.settle(WAIT_SECONDS)
    assert done[0].groups_shared > 0
    assert [r.groups_shared for r in done[1:]] == [0, 0]
    assert node.round().groups_shared > 0


def test_shared_group_holds_what_was_generated(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"), learner=LearnerSection(own_groups=8, completions=8))
    done = node.round()
    assert len(swarm.board) == done.groups_shared > 0
    for seen in swarm.board:
        content = (swarm.folder / seen.advert.blob.hex()).read_bytes()
        assert blob_id(content) == seen.advert.blob
        assert max(seen.advert.rewards) == 1.0
        assert seen.policy_version == 0
        assert seen.family == node.policy.family


@pytest.mark.parametrize(("limits", "because"), [({"rounds": 3}, "rounds"), ({"tokens": 40}, "tokens"), ({}, "asked")])
def test_run_ends_at_its_limit_or_when_asked_with_a_checkpoint(
    tmp_path: Path, limits: dict[str, int], because: str
) -> None:
    node = Node("ann", folder=tmp_path, **limits)
    rounds_seen = [0]

    def should_stop() -> str | None:
        rounds_seen[0] += 1
        return "asked" if rounds_seen[0] > 5 and not limits else None

    stopped = node.learner.run(should_stop)
    assert stopped.because == because
    done = [e for e in node.events if isinstance(e, RoundDone)]
    assert stopped.round == len(done) == {"rounds": 3, "tokens": len(done), "asked": 5}[because]
    if because == "tokens":
        assert done[-1].tokens_generated_total >= 40 > done[-1].tokens_generated_total - done[-1].tokens_generated
    saved = read_newest(tmp_path)
    assert saved.snapshot is not None
    assert saved.snapshot.round == stopped.round
    assert stopped.checkpoint == str(saved.path)
    assert [e.round for e in node.events if isinstance(e, CheckpointSaved)][-1] == stopped.round


@pytest.mark.parametrize("method", ["uniform", "posterior", "sgpo", "dps"])
def test_interrupted_run_goes_on_exactly_as_if_it_had_not_been(tmp_path: Path, method: str) -> None:
    allocation = AllocationSection.model_validate({"method": method})
    whole = Node("ann", allocation=allocation, folder=tmp_path / "whole", rounds=4)
    whole.learner.run(lambda: None)
    first = Node("ann", allocation=allocation, folder=tmp_path / "parts", rounds=2)
    first.learner.run(lambda: None)
    second = Node("ann", own_policy=policy(77), allocation=allocation, folder=tmp_path / "parts", rounds=2)
    second.learner.run(lambda: None)
    ours, theirs = whole.policy.trainable(), second.policy.trainable()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert second.learner.state == whole.learner.state
    rounds = [
        [(e.round, e.reward, e.loss) for e in n.events if isinstance(e, RoundDone)] for n in (first, second, whole)
    ]
    assert rounds[0] + rounds[1] == rounds[2]


def test_restarted_node_uses_no_foreign_group_twice(swarm: MemorySwarm, tmp_path: Path) -> None:
    first = Node("ann", swarm.member("ann"), folder=tmp_path / "c", rounds=1)
    swarm.put("bob", right_group(first.policy, seed=0))
    first.learner.run(lambda: None)
    assert first.learner.state.foreign_groups_used == 1
    second = Node("ann", swarm.member("ann"), folder=tmp_path / "c")
    swarm.put("bob", right_group(first.policy, seed=1))
    assert second.round().foreign_groups_used == 1
    assert second.round().foreign_groups_used == 0


def test_bytes_and_foreign_completions_are_counted_and_a_second_use_costs_no_bytes(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"))
    sizes = [swarm.put("bob", right_group(node.policy, seed=seed)).advert.size for seed in range(2)]
    first, second = node.round(), node.round()
    assert (first.bytes_fetched, second.bytes_fetched) == (sum(sizes), 0)
    assert (first.foreign_completions, second.foreign_completions) == (8, 8)
    assert (second.bytes_fetched_total, second.foreign_completions_total) == (sum(sizes), 16)
    assert second.bytes_per_foreign_completion == sum(sizes) / 16


def test_a_round_tells_what_became_of_each_foreign_group_and_whose_it_was(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"))
    swarm.put("bob", right_group(node.policy))
    swarm.put("liar", with_first(right_group(node.policy, seed=1, answers=["f", "a", "a", "a"]), reward=1.0))
    swarm.put("eve", right_group(node.policy, seed=2), blob=b"SLG1 and then nonsense")
    task = LetterTask("first")
    wrong = [letter for letter in LETTERS if letter != task.prompt(task.ref(3)).answer]
    swarm.put("dull", right_group(node.policy, seed=3, answers=wrong[:4]))
    away = swarm.put("away", right_group(node.policy, seed=4))
    (swarm.folder / away.advert.blob.hex()).unlink()
    done = node.round()
    told, last = [event for event in node.events if isinstance(event, ForeignGroups | RoundDone)]
    assert isinstance(told, ForeignGroups) and last == done and told.round == done.round
    assert told.by_peer == {
        "bob": {"used": 1},
        "liar": {"false_reward": 1},
        "eve": {"malformed": 1},
        "dull": {"not_better": 1},
        "away": {"not_fetched": 1},
    }
    assert {group.peer: group.outcome for group in told.groups} == {
        peer: outcome for peer, outcomes in told.by_peer.items() for outcome in outcomes
    }
    lie = next(group for group in told.groups if group.peer == "liar")
    assert lie.detail is not None and "recomputed 0" in lie.detail and lie.reward_mean == 0.25
    assert done.foreign_fetched == 3 and done.foreign_waiting == 0
    assert done.foreign_rejected == {"false_reward": 1, "malformed": 1, "not_better": 1, "not_fetched": 1}
    node.round()
    again = next(event for event in reversed(node.events) if isinstance(event, ForeignGroups))
    assert again.by_peer == {"bob": {"replayed": 1}}


def test_a_round_says_what_it_is_at_where_that_took_long_in_the_round_before(
    monkeypatch: pytest.MonkeyPatch, swarm: MemorySwarm
) -> None:
    node = Node("ann", swarm.member("ann"))
    monkeypatch.setattr(loop, "SLOW_PHASE_SECONDS", -1.0)
    node.round()
    assert not any(isinstance(event, PhaseBegan) for event in node.events)  # there was no round before
    monkeypatch.setattr(loop, "SLOW_PHASE_SECONDS", 1e9)
    node.round()
    node.round()
    told = [(event.round, event.phase) for event in node.events if isinstance(event, PhaseBegan)]
    assert told == [(2, phase) for phase in ("allocate", "generate", "collect", "score", "learn", "publish")]


def test_learner_practises_more_at_what_another_says_it_succeeds_at(swarm: MemorySwarm) -> None:
    """Our own success is next to none on both tasks; the other's heartbeat makes the difference."""
    section = LearnerSection(own_groups=16, completions=4, foreign_groups=0, learning_rate=1e-6, share_groups=0)
    allocation = AllocationSection(method="posterior", forgetting=0.0, peer_prior=512.0)
    node = Node("ann", swarm.member("ann"), learner=section, allocation=allocation)
    before = [node.round() for _ in range(10)]
    bob = Heartbeat("bob", "", "", bytes(16), bytes(16), 1, 1, "", 1.0, 0, 0, ())
    claims = TaskSuccess("first", 1.0, 10_000), TaskSuccess("again", 0.0, 10_000)
    swarm.beats["bob"] = msgspec.structs.replace(bob, tasks=claims)
    node.round()
    after = [node.round() for _ in range(10)]
    assert all(sum(done.completions_by_task.values()) == 64 for done in (*before, *after))
    assert sum(done.completions_by_task["first"] for done in before) < 0.6 * 640
    assert sum(done.completions_by_task["first"] for done in after) > 0.65 * 640
