"""The round for real with groups of others, really encoded: what is trained on, what is refused, what is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from node.configuration import LearnerSection, ObjectiveSection, ResearchSection
from node.events import (
    ForeignGroups,
    RoundDone,
)
from node.learner.foreign.swarm_calls import MAX_WAITING_CALLS
from node.learner.influence.standing import PROBATION_ROUNDS
from node.policy.policy import Policy
from node.tasks.scorer import ScoringFault as ScoringFault
from node.tasks.split import Part, held_out_prompts
from protocol.messages import PromptRef
from protocol.rollouts import FinishReason, Group, encode_group
from swarm.api import Judgement
from tests.node.learner.letter_node import (
    LETTERS,
    WAIT_SECONDS,
    LetterTask,
    MemorySwarm,
    Node,
    policy,
    right_group,
    with_first,
)

COPYING = ObjectiveSection(research=ResearchSection(free_text="copy"))  # what random policies write has text around it


@pytest.mark.parametrize("merging", [False, True])
def test_two_nodes_use_each_others_groups(swarm: MemorySwarm, merging: bool) -> None:
    # Few right answers of such policies end by themselves, so each makes many.
    learner = LearnerSection(own_groups=12, completions=8, foreign_groups=12, learning_rate=1e-2)
    ann = Node("ann", swarm.member("ann"), own_policy=policy(1), learner=learner, objective=COPYING)
    bob = Node("bob", swarm.member("bob"), own_policy=policy(2, merging=merging), learner=learner, objective=COPYING)
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
    section = LearnerSection(own_groups=1, completions=2, foreign_groups=32, learning_rate=3e-3)
    node = Node("ann", swarm.member("ann"), learner=section)
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
        swarm.put("bob", right_group(teacher, seed=4 + 36 * version))  # the same prompt under another reference
        rounds.append(node.round())
    assert node.learner.state.foreign_groups_used == 8
    assert sum(r.foreign_groups_replayed for r in rounds) > 8
    assert swarm.verdicts("ann") == {"used": 8}  # a sender hears of each group once
    assert answer_logp() > before + 0.3


def test_engine_hears_of_the_answers_that_are_learnt_from_and_of_no_liars(
    swarm: MemorySwarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node("ann", swarm.member("ann"))
    heard: list[tuple[list[int], list[list[int]]]] = []
    monkeypatch.setattr(
        node.learner.learning.engine, "remember", lambda prompt, answers: heard.append((list(prompt), list(answers)))
    )
    swarm.put("liar", with_first(right_group(node.policy, answers=["f", "a", "a", "a"], seed=7), reward=1.0))
    group = right_group(policy(9, merging=True), seed=4)
    swarm.put("bob", group)
    assert node.round().foreign_groups_used == 1
    answer = node.policy.tokens.tokenize_completion(group.completions[0].text)
    assert answer is not None
    ((prompt, answers),) = heard
    assert prompt == node.policy.tokens.prompt_ids(LetterTask("first").prompt(group.prompt).text)
    assert [*answer[0], node.policy.tokens.eos_id] in answers


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
    "a seed that the task does not have": lambda g: replace(
        g, prompt=PromptRef("first", 1, g.prompt.config_hash, 10**9)
    ),
}


def test_group_longer_than_its_task_allows_is_not_even_fetched(swarm: MemorySwarm) -> None:
    node = Node("ann", swarm.member("ann"))
    longer = with_first(
        right_group(node.policy, seed=0),
        text=b"aaaaaa",
        token_ids=np.full(6, 2, np.int64),
        token_bytes=np.ones(6, np.int64),
        logps=np.zeros(6, np.float32),
        finish=FinishReason.LENGTH,
    )
    swarm.put("eve", longer)
    done = node.round()
    assert (done.foreign_rejected, done.bytes_fetched) == ({"too_long": 1}, 0)


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
    swarm.put("eve", right_group(node.policy, seed=1), blob=b"SLG1 and then nonsense")
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
    node.intake.settle(WAIT_SECONDS)
    assert node.round().foreign_groups_used == 1


def test_calls_to_a_silent_swarm_process_do_not_pile_up(swarm: MemorySwarm) -> None:
    member = swarm.member("ann")
    node = Node("ann", member)
    seen = swarm.put("bob", right_group(node.policy, seed=0))
    member.may_fetch.clear()
    node.learner.round()
    for _ in range(2 * MAX_WAITING_CALLS):
        node.intake.judge("bob", seen.advert.blob, Judgement.UNUSED)
    assert len(node.intake.faults()) > MAX_WAITING_CALLS  # dropped, and said so
    member.may_fetch.set()
    node.intake.settle(WAIT_SECONDS)
    assert 0 < len(swarm.judged) <= MAX_WAITING_CALLS


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


@pytest.mark.parametrize("part", [Part.VALIDATION, Part.TEST])
def test_group_on_a_question_that_only_measures_is_refused_and_costs_its_sender(swarm: MemorySwarm, part: Part) -> None:
    node = Node("ann", swarm.member("ann"))
    task = LetterTask("first")
    (prompt, *_) = held_out_prompts({"first": task}, part, 1)["first"]
    swarm.put("eve", right_group(node.policy, seed=prompt.ref.seed))
    done = node.round()
    assert done.foreign_groups_used == 0
    assert done.foreign_rejected == {"held_out": 1}
    assert swarm.verdicts("ann") == {"malformed": 1}


def padded(group: Group, **changes: Any) -> Group:
    """Returns the group with the same change in each completion."""
    return replace(group, completions=tuple(replace(each, **changes) for each in group.completions))


def cut_short(own: Policy) -> Group:
    ends = {"token_ids": np.array([2]), "token_bytes": np.array([1]), "logps": np.array([-0.1], np.float32)}
    return padded(right_group(own), finish=FinishReason.LENGTH, **ends)


def in_few_tokens_of_another_tokenizer(own: Policy) -> Group:
    return right_group(policy(9, merging=True), answers=["abcdef"] * 4)


@pytest.mark.parametrize("spoilt", [cut_short, in_few_tokens_of_another_tokenizer])
def test_true_right_answers_that_are_not_worth_copying_teach_nothing(
    swarm: MemorySwarm, spoilt: Callable[[Policy], Group]
) -> None:
    node = Node("ann", swarm.member("ann"), objective=COPYING)
    swarm.put("eve", spoilt(node.policy))
    done = node.round()
    assert done.foreign_groups_used == 0
    assert done.foreign_rejected == {"not_canonical": 1}
    assert swarm.verdicts("ann") == {"unused": 1}  # every claim held


def test_strangers_teach_a_little_from_the_first_round_and_gain_nothing_before_own_success_is_known(
    swarm: MemorySwarm,
) -> None:
    node = Node("ann", swarm.member("ann"), trusting=False)
    used = []
    for version in range(PROBATION_ROUNDS + 2):
        swarm.put("bob", replace(right_group(node.policy, seed=version), policy_version=version))
        used.append(node.round().foreign_groups_used)
    assert used[0] == 1
    assert not node.learner.state.influence.watch.is_warm
    assert node.learner.state.influence.standings.of("bob").calm_rounds == 0
