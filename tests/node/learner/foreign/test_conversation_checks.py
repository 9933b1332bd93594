"""Conversations of peers: played again within a time, most useful first; who is wrong where two replays differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.environments.conversation import ConversationTask, transcript
from node.learner.foreign.conversation_checks import (
    COMPLETIONS_AT_ONCE,
    DIFFERING_PEERS,
    REMEMBERED_PEERS,
    Agreement,
    Replays,
    most_useful_first,
)
from node.learner.foreign.verification import check_rewards, check_turns, regenerated_prompt
from node.tasks.scorer import Scores
from node.tasks.task import Task
from node.tasks.worker import score_one
from protocol.conversations import Action
from protocol.errors import MalformedError
from protocol.messages import PromptRef
from protocol.rollouts import Completion, FinishReason, Group
from tests.node.learner.letter_environment import FindLetter
from tests.node.learner.letter_node import LETTERS, HereScorer, LetterTask, character_tokens, policy, right_group

FIND = ConversationTask(FindLetter())
KNOWN: dict[str, Task] = {"find": FIND, "first": LetterTask("first")}
TOKENS = character_tokens()


def conversation(seed: int, actions: list[str]) -> tuple[Completion, bytes]:
    """What a peer says of these actions, and of the first text."""
    verdict = score_one(FIND, FIND.prompt(FIND.ref(seed)), transcript(actions))
    assert verdict.played is not None
    ids = [[*(TOKENS.tokenize_completion(action.encode()) or ([], []))[0], TOKENS.eos_id] for action in actions]
    joined = np.array([token_id for each in ids for token_id in each], np.int64)
    completion = Completion(
        "".join(actions).encode(),
        joined,
        np.array(TOKENS.byte_lengths(joined.tolist()), np.int64),
        np.full(len(joined), -0.5, np.float32),
        FinishReason.STOP,
        verdict.reward,
        tuple(Action(len(each), True, digest) for each, digest in zip(ids, verdict.played.digests[1:], strict=True)),
    )
    return completion, verdict.played.digests[0]


def group_of(seed: int, *conversations: list[str]) -> Group:
    said = [conversation(seed, actions) for actions in conversations]
    completions = tuple(completion for completion, _ in said)
    return Group(FIND.ref(seed), bytes(16), TOKENS.fingerprint, 3, completions, said[0][1])


def replayed(group: Group) -> Scores:
    (scores,) = Replays(HereScorer(KNOWN), 10.0).scores([Candidate(group)], lambda task: 0.0)
    assert scores is not None
    return scores


@dataclass
class Candidate:
    group: Group

    def scoring_item(self) -> tuple[PromptRef, list[str]]:
        turns = [[turn.text.decode() for turn in completion.turns()] for completion in self.group.completions]
        return self.group.prompt, [transcript(actions) for actions in turns]


def missed(seed: int, turns: int = 3) -> list[str]:
    """Actions that do not find the letter, so that the conversation goes on to its last turn."""
    wrong = [
        letter for letter in LETTERS if score_one(FIND, FIND.prompt(FIND.ref(seed)), transcript([letter])).reward == 0
    ]
    return wrong[:turns]


def test_true_conversations_agree_and_one_of_other_turns_differs_at_its_first() -> None:
    group = group_of(7, missed(7), missed(7, 2))
    assert check_turns(group, replayed(group)) is None
    assert check_rewards([completion.reward for completion in group.completions], replayed(group)) is None


@given(
    seed=st.integers(0, 999),
    place=st.integers(0, 1),
    turn=st.integers(0, 2),
    lie=st.sampled_from(["digest", "order", "dropped", "first text"]),
    data=st.data(),
)
def test_every_lie_about_a_turn_is_found_at_that_turn(
    seed: int, place: int, turn: int, lie: str, data: st.DataObject
) -> None:
    group = group_of(seed, missed(seed), missed(seed))
    completion = group.completions[place]
    actions = list(completion.actions)
    at = turn + 1
    if lie == "digest":
        bit = data.draw(st.integers(0, 127))
        flipped = int.from_bytes(actions[turn].digest, "big") ^ 1 << bit
        actions[turn] = replace(actions[turn], digest=flipped.to_bytes(16, "big"))
    elif lie == "order":
        other = (turn + 1) % 3
        actions[turn], actions[other] = actions[other], actions[turn]
        at = min(turn, other) + 1
    elif lie == "dropped":
        actions = actions[: max(1, turn)]
        at = len(actions) + 1
    else:
        group, at, place = replace(group, beginning=bytes(16)), 0, 0
    lying = replace(completion, actions=tuple(actions))
    completions = tuple(lying if number == place else each for number, each in enumerate(group.completions))
    found = check_turns(replace(group, completions=completions), replayed(group))
    assert found is not None
    where = "the first text" if at == 0 else f"turn {at} of"
    assert found.startswith(f"completion {place}: {where}")


def test_actions_after_the_end_differ_where_they_begin() -> None:
    (right,) = [letter for letter in LETTERS if letter not in missed(7, 6)]
    honest = group_of(7, [right])
    longer = replace(honest.completions[0], actions=(*honest.completions[0].actions, Action(1, True, bytes(16))))
    found = check_turns(replace(honest, completions=(longer,)), replayed(honest))
    assert found is not None
    assert found.startswith("completion 0: turn 2 of 2")


def test_reward_that_the_conversation_did_not_earn_is_a_false_one() -> None:
    group = group_of(7, missed(7))
    refusal = check_rewards([1.0], replayed(group))
    assert refusal is not None
    assert refusal.decision == "false_reward"


@pytest.mark.parametrize(
    "group",
    [
        right_group(policy()),
        replace(group_of(7, missed(7)), prompt=LetterTask("first").ref(3)),
        replace(right_group(policy()), prompt=FIND.ref(3)),
        group_of(8, missed(8)),
    ],
    ids=["an answer", "conversations of a task with answers", "answers of an environment", "conversations"],
)
def test_groups_are_conversations_exactly_where_their_task_has_them(group: Group) -> None:
    if group.converses == (group.prompt.task == "find"):
        assert regenerated_prompt(group, KNOWN, TOKENS).ref == group.prompt
    else:
        with pytest.raises(MalformedError, match="has none"):
            regenerated_prompt(group, KNOWN, TOKENS)


def test_conversation_of_more_turns_or_longer_actions_than_its_environment_allows_is_malformed() -> None:
    group = group_of(7, missed(7))
    (completion,) = group.completions
    first, second, third = completion.actions
    cut = replace(completion, actions=(first, second, Action(1, False, third.digest), Action(1, True, third.digest)))
    with pytest.raises(MalformedError, match="4 turns"):
        regenerated_prompt(replace(group, completions=(cut,)), KNOWN, TOKENS)
    long = group_of(7, ["ef", "ef", "ef"])
    with pytest.raises(MalformedError, match="3 tokens at once"):
        regenerated_prompt(long, KNOWN, TOKENS)


def test_end_of_sequence_in_the_middle_of_an_action_is_malformed() -> None:
    group = group_of(7, missed(7, 2))
    (completion,) = group.completions
    whole = replace(completion, actions=(Action(4, True, bytes(16)),))
    with pytest.raises(MalformedError):
        regenerated_prompt(
            replace(group, completions=(whole,)), {"find": ConversationTask(FindLetter(max_new_tokens=9))}, TOKENS
        )


def test_most_useful_a_turn_is_replayed_first() -> None:
    short = group_of(3, missed(3, 1))
    right = replace(short, completions=(replace(short.completions[0], reward=1.0),))
    slow = group_of(4, missed(4), missed(4))
    better = replace(slow, completions=tuple(replace(each, reward=1.0) for each in slow.completions))
    assert most_useful_first([slow, short, better, right], lambda task: 0.5) == [3, 2, 0, 1]


def clock(*seconds: float) -> Callable[[], float]:
    times = iter(seconds)
    return lambda: next(times)


def test_what_time_does_not_suffice_for_is_not_replayed() -> None:
    many = group_of(5, *[missed(5)] * (COMPLETIONS_AT_ONCE + 1))
    few = group_of(6, *[missed(6)] * 2)
    few = replace(few, completions=tuple(replace(each, reward=0.5) for each in few.completions))
    candidates = [Candidate(few), Candidate(many), Candidate(few)]
    scores = Replays(HereScorer(KNOWN), 1.0, clock(0.0, 0.5, 0.8, 0.9, 1.1)).scores(candidates, lambda task: 0.0)
    found = [None if each is None else len(each.rewards) for each in scores]
    assert found == [2, None, 2]
    assert Replays(HereScorer(KNOWN), 0.0, clock(0.0, 0.0)).scores([Candidate(few)], lambda task: 0.0) == [None]


def test_one_fault_of_the_scorer_leaves_the_other_conversations_of_a_group_with_theirs() -> None:
    group = group_of(7, missed(7), missed(7, 1))
    scorer = HereScorer(KNOWN, fails=lambda text: text == transcript(missed(7, 1)))
    (scores,) = Replays(scorer, 1.0).scores([Candidate(group)], lambda task: 0.0)
    assert scores is not None
    assert [fault is None for fault in scores.faults] == [True, False]
    assert check_turns(group, scores) is None
    refusal = check_rewards([completion.reward for completion in group.completions], scores)
    assert refusal is not None
    assert refusal.decision == "not_scored"


def test_fault_is_ours_once_more_peers_differ_than_agree_and_three_at_least() -> None:
    agreement = Agreement()
    assert not agreement.fault_is_ours("grid")
    for number in range(DIFFERING_PEERS):
        assert agreement.own_faults() == []
        agreement.note("grid", f"differs-{number}", False)
    assert agreement.own_faults() == ["grid"]
    for number in range(DIFFERING_PEERS):
        agreement.note("grid", f"agrees-{number}", True)
    assert not agreement.fault_is_ours("grid")
    agreement.note("grid", "agrees-0", False)
    agreement.note("grid", "agrees-0", True)
    assert agreement.fault_is_ours("grid")
    assert not agreement.fault_is_ours("mastermind")


def test_peers_that_make_no_difference_any_more_are_forgotten() -> None:
    agreement = Agreement()
    for number in range(DIFFERING_PEERS):
        agreement.note("grid", f"differs-{number}", False)
    for number in range(REMEMBERED_PEERS):
        agreement.note("grid", f"agrees-{number}", True)
    assert not agreement.fault_is_ours("grid")
