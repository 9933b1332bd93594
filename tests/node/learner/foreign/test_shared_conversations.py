"""Rounds with conversations of others, really encoded: what is learnt from, what is refused, what is shared."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from node.configuration import LearnerSection, ObjectiveSection, TasksSection
from node.environments.audit import Audit
from node.environments.conversation import ConversationTask, transcript
from node.events import Fault, ForeignGroups, Samples
from node.learner.assembly import environment_audits
from node.learner.assembly.environment_audits import EnvironmentAudits
from node.learner.foreign.candidates import as_scored
from node.learner.objective.advantages import AdvantageRule
from node.learner.objective.training_groups import foreign_training_group
from node.policy.policy import Policy
from node.tasks.split import Part, part_of
from node.tasks.task import Task
from node.tasks.worker import score_one
from protocol.conversations import Action
from protocol.rollouts import Completion, FinishReason, Group
from scripts.experiments.harness.simulated_swarm import SimulatedSwarm
from tests.node.learner.letter_environment import FindLetter
from tests.node.learner.letter_node import LETTERS, WAIT_SECONDS, LetterTask, MemorySwarm, Node, policy

FIND = ConversationTask(FindLetter())
KNOWN: dict[str, Task] = {"find": FIND, "first": LetterTask("first")}
SECTION = LearnerSection(own_groups=6, completions=4, foreign_groups=8, learning_rate=1e-2, replay_seconds=60.0)
SEEDS = range(40)


def right_conversation(seed: int) -> list[str]:
    """Two actions: one that is wrong, and the letter."""
    rewards = {a: score_one(FIND, FIND.prompt(FIND.ref(seed)), transcript([a])).reward for a in LETTERS}
    return [min(rewards, key=lambda a: (rewards[a], a)), max(rewards, key=lambda a: rewards[a])]


def taught(own: Policy, seed: int) -> Group:
    """A group of four times the right conversation, as a node with this policy would share it."""
    actions = right_conversation(seed)
    verdict = score_one(FIND, FIND.prompt(FIND.ref(seed)), transcript(actions))
    assert verdict.played is not None
    ids, lengths, ends = list[int](), list[int](), list[int]()
    for action in actions:
        found = own.tokens.tokenize_completion(action.encode())
        assert found is not None
        ids += [*found[0], own.tokens.eos_id]
        lengths += [*found[1], 0]
        ends.append(len(ids))
    rows = zip(np.diff([0, *ends]).tolist(), verdict.played.digests[1:], strict=True)
    completion = Completion(
        "".join(actions).encode(),
        np.array(ids, np.int64),
        np.array(lengths, np.int64),
        np.full(len(ids), -0.4, np.float32),
        FinishReason.STOP,
        verdict.reward,
        tuple(Action(tokens, True, digest) for tokens, digest in rows),
    )
    of_policy = own.family, own.tokens.fingerprint, 3
    return Group(FIND.ref(seed), *of_policy, (completion,) * 4, verdict.played.digests[0])


def training_seeds(count: int) -> list[int]:
    found = [seed for seed in SEEDS if part_of(FIND.prompt(FIND.ref(seed))) is Part.TRAINING]
    return found[:count]


def outcomes(node: Node) -> Counter[str]:
    counted: Counter[str] = Counter()
    for event in node.events:
        if isinstance(event, ForeignGroups):
            for by_outcome in event.by_peer.values():
                counted.update(by_outcome)
    return counted


@pytest.mark.parametrize("merging", [False, True], ids=["same tokenizer", "other tokenizer"])
def test_two_nodes_learn_from_each_others_conversations(swarm: MemorySwarm, merging: bool) -> None:
    section = SECTION.model_copy(update={"own_groups": 16, "completions": 8})
    known: dict[str, Task] = {"find": FIND}
    ann = Node("ann", swarm.member("ann"), own_policy=policy(1), learner=section, known=known)
    bob = Node("bob", swarm.member("bob"), own_policy=policy(2, merging=merging), learner=section, known=known)
    for _ in range(8):
        to_ann, to_bob = ann.round(), bob.round()
    assert to_ann.foreign_groups_used_total > 0
    assert to_bob.foreign_groups_used_total > 0
    for node in (ann, bob):
        assert set(swarm.verdicts(node.config.name)) <= {"used", "unused"}
        assert node.faults() == []
        assert "differs" not in outcomes(node)
        assert swarm.groups(node.config.name)
        assert all(group.converses for group in swarm.groups(node.config.name))


def test_two_unlike_nodes_learn_from_each_others_conversations_over_a_network(tmp_path: Path) -> None:
    section = SECTION.model_copy(update={"own_groups": 16, "completions": 8})
    known: dict[str, Task] = {"find": FIND}
    with SimulatedSwarm(["ann", "bob"], tmp_path, seed=1) as network:
        policies = {"ann": policy(1), "bob": policy(2, merging=True)}
        nodes = [
            Node(name, network.member(name), own_policy=own, learner=section, known=known)
            for name, own in policies.items()
        ]
        for _ in range(8):
            for node in nodes:
                node.now_seconds = network.now_seconds()
                node.round()
                network.pass_time(1.0)
        for node in nodes:
            assert outcomes(node)["used"] > 0
            assert not {"differs", "not_checked", "malformed"} & set(outcomes(node))
            assert node.faults() == []
            assert all(peer.banned_because is None for peer in network.member(node.config.name).peers())


@pytest.mark.parametrize("merging", [False, True])
def test_actions_are_learnt_after_our_own_observations_and_nothing_else_is(merging: bool) -> None:
    own, teacher = policy(5), policy(9, merging=merging)
    seed = training_seeds(1)[0]
    group = taught(teacher, seed)
    prompt = FIND.prompt(FIND.ref(seed))
    verdict = score_one(FIND, prompt, as_scored(group.completions[0]))
    assert verdict.played is not None
    made = foreign_training_group(
        group,
        tuple(own.tokens.prompt_ids(prompt.text)),
        [1.0] * 4,
        peer="bob",
        tokens=own.tokens,
        section=ObjectiveSection(),
        rule=AdvantageRule("group"),
        success=0.2,
        context=32,
        max_new_tokens=2,
        played=(verdict.played,) * 4,
        asked=prompt,
    )
    (completion,) = made.completions
    assert completion.count == 4
    assert completion.advantage == pytest.approx(0.8)
    actions = right_conversation(seed)
    wanted = [[*(own.tokens.tokenize_completion(a.encode()) or ([],))[0], own.tokens.eos_id] for a in actions]
    heard = own.tokens.reply_ids(verdict.played.observations[0], after=own.tokens.eos_id)
    assert completion.row_ids.tolist() == [*wanted[0], *heard, *wanted[1]]
    assert completion.token_ids.tolist() == [*wanted[0], *wanted[1]]
    assert made.tokens == 4 * len(completion.token_ids)
    assert completion.alignment.span_of_token.tolist() == [0, 1, 2, 3]  # of each action the letter and its end
    assert completion.alignment.behaviour_logps.tolist() == pytest.approx([-0.4] * 4)


def test_spans_of_two_tokenizers_never_reach_over_an_observation() -> None:
    own, teacher = policy(5), policy(9, merging=True)
    group = taught(teacher, 1)
    ids = teacher.tokens.tokenize_completion(b"de")
    assert ids is not None
    assert len(ids[0]) == 1
    pairs = np.array([*ids[0], teacher.tokens.eos_id] * 2, np.int64)
    completion = replace(
        group.completions[0],
        text=b"dede",
        token_ids=pairs,
        token_bytes=np.array([2, 0, 2, 0]),
        logps=np.array([-1.0, -0.5, -2.0, -0.25], np.float32),
        actions=(Action(2, True, bytes(16)), Action(2, True, bytes(16))),
    )
    verdict = score_one(FIND, FIND.prompt(FIND.ref(1)), as_scored(completion))
    assert verdict.played is not None
    made = foreign_training_group(
        replace(group, completions=(completion,)), (2, 3), [1.0],
        peer="bob", tokens=own.tokens, section=ObjectiveSection(), rule=AdvantageRule("group"), success=0.0,
        context=32, max_new_tokens=3, played=(verdict.played,), asked=FIND.prompt(FIND.ref(1)),
    )  # fmt: skip
    (learnt,) = made.completions
    assert learnt.alignment.span_of_token.tolist() == [0, 0, 1, 2, 2, 3]
    assert learnt.alignment.behaviour_logps.tolist() == [-1.0, -0.5, -2.0, -0.25]
    assert learnt.alignment.multi_token == 2
    assert len(learnt.observed) == 1
    assert learnt.observed[0][0] == 3


def test_conversation_that_leaves_no_room_in_our_context_is_left_out() -> None:
    own = policy(5)
    group = taught(policy(9), 1)
    verdict = score_one(FIND, FIND.prompt(FIND.ref(1)), as_scored(group.completions[0]))
    assert verdict.played is not None
    make = partial(
        foreign_training_group, group, (2, 3), [1.0] * 4,
        peer="bob", tokens=own.tokens, section=ObjectiveSection(), rule=AdvantageRule("group"), success=0.0,
        max_new_tokens=2, played=(verdict.played,) * 4, asked=FIND.prompt(FIND.ref(1)),
    )  # fmt: skip
    (whole,) = make(context=32).completions
    assert make(context=2 + whole.row_length).completions
    assert not make(context=1 + whole.row_length).completions


def test_right_conversations_of_a_peer_become_likelier_and_are_shown_with_what_was_said(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"), learner=SECTION, known={"find": FIND})
    teacher = policy(9, merging=True)
    rounds = []
    seeds = training_seeds(24)
    for number in range(6):
        for seed in seeds[4 * number : 4 * number + 4]:
            swarm.put("bob", taught(teacher, seed))
        rounds.append(node.round())
    assert outcomes(node)["used"] > 12
    late, early = (np.mean([each.reward_by_task["find"] for each in some]) for some in (rounds[-2:], rounds[:2]))
    assert late > early
    shown = [each.learnt_from for each in node.events if isinstance(each, Samples) and each.learnt_from is not None]
    assert shown
    assert shown[0].peer == "bob"
    assert all(answer.text.startswith("> ") and answer.text.count("\n> ") == 1 for answer in shown[0].answers)


def test_liar_about_what_followed_pays_like_for_false_rewards_and_nothing_of_it_is_learnt(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"), learner=SECTION, known={"find": FIND})
    for seed in training_seeds(3):
        group = taught(policy(9), seed)
        (first, second) = group.completions[0].actions
        lie = replace(group.completions[0], actions=(first, replace(second, digest=bytes(16))))
        swarm.put("mallory", replace(group, completions=(*group.completions[:3], lie)))
    done = node.round()
    assert done.foreign_groups_used == 0
    assert done.foreign_rejected == {"differs": 3}
    assert swarm.verdicts("ann") == {"false_reward": 3}
    details = {detail for _, _, _, detail in swarm.judged}
    assert details == {"completion 3: turn 2 of 2 goes otherwise here"}


def test_three_peers_that_differ_alike_are_believed_and_own_conversations_stay_here(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"), learner=SECTION, known={"find": FIND})
    seeds = iter(training_seeds(16))
    for peer in ("bob", "cat", "dan", "eve"):
        group = taught(policy(9), next(seeds))
        swarm.put(peer, replace(group, beginning=bytes(16)))
    node.round()
    found = outcomes(node)
    assert found["differs"] == 2
    assert found["we_differ"] == 2
    assert swarm.verdicts("ann") == {"false_reward": 2}
    assert node.faults() == ["environment_differs"]
    shared = [seen for seen in swarm.board if seen.peer == "ann"]
    node.round()
    assert [seen for seen in swarm.board if seen.peer == "ann"] == shared == []


def test_conversations_are_not_learnt_from_without_time_to_replay_them(swarm: MemorySwarm) -> None:
    section = SECTION.model_copy(update={"replay_seconds": 0.0})
    node = Node("ann", swarm.member("ann"), learner=section, known={"find": FIND})
    swarm.put("bob", taught(policy(9), training_seeds(1)[0]))
    done = node.round()
    assert done.foreign_rejected == {"not_checked": 1}
    assert swarm.verdicts("ann") == {}


def test_environment_is_shared_once_it_has_passed_its_audit_and_one_that_fails_is_named() -> None:
    events: list[Fault] = []
    reached = threading.Event()
    leaky = ConversationTask(FindLetter(name="leaky"))
    tasks: dict[str, Task] = {"find": FIND, "leaky": leaky, "first": LetterTask("first")}

    def fault_of(task: ConversationTask) -> str | None:
        if task is not leaky:
            return None
        reached.set()
        return "seed 3: 'a' or 'b'"

    audits = EnvironmentAudits(
        tasks,
        fault_of,
        events.append,  # type: ignore[arg-type]
        lambda: 5.0,
        round_number=lambda: 7,
    )
    assert reached.wait(WAIT_SECONDS)
    audits.close()
    assert set(audits.shared) == {"find", "first"}
    assert [(event.kind, event.round, event.fatal) for event in events] == [("environment_not_shared", 7, False)]
    assert "leaky" in events[0].detail


def test_audit_whose_record_cannot_be_written_counts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = Audit("find", FIND.config_hash.hex(), 1, 2, (), (), 0.0, 1.0, 1, 100)
    monkeypatch.setattr(environment_audits, "audit", lambda section, name: found)
    records = tmp_path / "no folder" / "audits.json"
    assert environment_audits.audit_fault(FIND, TasksSection(), records) is None
    assert "is not kept" in caplog.text


def test_environment_that_is_not_shared_is_trained_on_alone(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"), learner=SECTION, known=KNOWN, shared={"first": KNOWN["first"]})
    swarm.put("bob", taught(policy(9), training_seeds(1)[0]))
    done = node.round()
    assert done.foreign_rejected == {"unknown_task": 1}
    assert done.reward_by_task["find"] > 0
    assert {seen.advert.prompt.task for seen in swarm.board if seen.peer == "ann"} <= {"first"}
