"""Foreign tokens in one's own tokenizer: the end token of a completion, and ids that no model of ours has."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from node.engines.engine import Sample, Segment
from node.learner.foreign.verification import regenerated_prompt
from node.learner.generation.own_rollouts import Rollout, can_be_shared, group_of
from node.learner.objective.advantages import AdvantageRule
from node.learner.objective.training_groups import foreign_training_group
from node.policy.tokens import TokenTable
from protocol import limits
from protocol.errors import MalformedError
from protocol.rollouts import FinishReason, Group
from tests.node.learner.letter_node import tasks
from tests.node.learner.objective_sections import objective_section

LETTERS = "abcdefgh>"
END, OTHER_END = 0, 1


def table(*ends: int) -> TokenTable:
    """One token for each letter, and control tokens of which ``ends`` end a completion besides the first."""
    vocabulary = {token: i for i, token in enumerate(["<eos>", "<turn>", "<tool>", *LETTERS])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<eos>", "<turn>", "<tool>"])
    return TokenTable(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>"), declared=ends)


def sample(ids: list[int], finish: FinishReason = FinishReason.STOP) -> Sample:
    return Sample(np.array(ids), np.full(len(ids), -1.0, np.float32), finish, (Segment(1, len(ids)),))


def rollout_of(tokens: TokenTable, *samples: Sample) -> Rollout:
    task = tasks()["first"]
    prompt = task.prompt(task.ref(3))
    texts = tuple(tokens.text_of(each.token_ids.tolist()) for each in samples)
    return Rollout(prompt, tuple(tokens.prompt_ids(prompt.text)), samples, texts)


def group(tokens: TokenTable, *samples: Sample) -> Group:
    return group_of(rollout_of(tokens, *samples), [0.0] * len(samples), tokens, family=bytes(16))


def test_a_completion_may_end_with_any_end_token_of_the_common_tokenizer() -> None:
    tokens = table(OTHER_END)
    ended = group(tokens, sample([3, 4, END]), sample([3, 4, OTHER_END]), sample([3, 4, 5], FinishReason.LENGTH))
    assert regenerated_prompt(ended, tasks(), tokens).ref == ended.prompt


@pytest.mark.parametrize(
    ("ids", "finish"),
    [
        ([3, OTHER_END, END], FinishReason.STOP),
        ([3, OTHER_END], FinishReason.LENGTH),
        ([3, 4], FinishReason.STOP),
    ],
)
def test_an_end_token_in_the_middle_or_with_another_finish_reason_is_malformed(
    ids: list[int], finish: FinishReason
) -> None:
    tokens = table(OTHER_END)
    with pytest.raises(MalformedError, match="end-of-sequence"):
        regenerated_prompt(group(tokens, sample(ids, finish)), tasks(), tokens)


def test_what_ended_is_given_our_end_token_and_within_one_tokenizer_keeps_its_own() -> None:
    ours, theirs = table(OTHER_END), table(OTHER_END, 2)
    assert ours.fingerprint != theirs.fingerprint
    for tokens, last in ((ours, OTHER_END), (theirs, ours.eos_id)):
        foreign = foreign_training_group(
            group(tokens, sample([3, 4, OTHER_END]), sample([3, 5, OTHER_END])),
            (3,),
            [1.0, 0.0],
            peer="p",
            tokens=ours,
            section=objective_section(),
            rule=AdvantageRule.of("group", [[1.0, 0.0]]),
            success=0.5,
            context=32,
            max_new_tokens=64,
        )
        # the wrong one teaches nothing
        assert [each.token_ids.tolist() for each in foreign.completions] == [[3, 4, last]]


def test_a_rollout_with_a_token_beyond_the_tokenizer_is_not_shared_and_a_peer_would_refuse_it() -> None:
    tokens = table()
    fine, beyond = sample([3, 4, END]), sample([3, 500, END])
    assert can_be_shared(rollout_of(tokens, fine, fine), tokens)
    assert not can_be_shared(rollout_of(tokens, fine, beyond), tokens)
    long = sample([3] * (limits.GROUP_TOKENS // 2))
    assert can_be_shared(rollout_of(tokens, long, long), tokens)
    assert not can_be_shared(rollout_of(tokens, long, long, fine), tokens)  # no peer would take a group as long as this
    with pytest.raises(MalformedError, match="token id 500"):
        regenerated_prompt(group(tokens, fine, beyond), tasks(), tokens)
