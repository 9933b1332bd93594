"""Groups as the learner learns from them: whose tokens, which completions, and what happens to impossible claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from node.engines.engine import Sample, Segment
from node.learner.generation.own_rollouts import Rollout
from node.learner.objective.advantages import AdvantageRule
from node.learner.objective.batch import SELF, TrainingGroup
from node.learner.objective.training_groups import foreign_training_group, own_training_group
from node.policy.tokens import TokenTable
from node.tasks.task import Prompt
from protocol.messages import PromptRef
from protocol.rollouts import Completion, FinishReason, Group
from tests.node.learner.objective_sections import objective_section

LETTERS = "abc"
REF = PromptRef("t", 1, b"c" * 16, 1)


def table(*merges: tuple[str, str]) -> TokenTable:
    """Letters, and merges of two of them."""
    vocabulary = {token: i for i, token in enumerate(["<eos>", *LETTERS, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    tokenizer.decoder = decoders.Fuse()
    return TokenTable(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>"))


OURS, THEIRS = table(), table(("a", "b"))


def written(text: str, tokens: TokenTable, logp: float = -1.0) -> Completion:
    """``text`` as a policy with ``tokens`` would send it, ended by end-of-sequence."""
    split = tokens.tokenize_completion(text.encode())
    assert split is not None
    ids, lengths = np.array([*split[0], tokens.eos_id]), np.array([*split[1], 0])
    return Completion(text.encode(), ids, lengths, np.full(len(ids), logp, np.float32), FinishReason.STOP, 0.0)


def foreign(
    completions: Sequence[Completion], rewards: Sequence[float], tokens: TokenTable = OURS, **keys: Any
) -> TrainingGroup:
    section = objective_section(**keys)
    return foreign_training_group(
        Group(REF, b"f" * 16, tokens.fingerprint, 1, tuple(completions)),
        (1,),
        rewards,
        peer="p",
        tokens=OURS,
        section=section,
        rule=AdvantageRule.of(section.research.advantage, [rewards]),
        success=0.25,
        context=64,
        max_new_tokens=64,
        capability_ratio=2.0,
    )


def own(texts: Sequence[str], rewards: Sequence[float], **keys: Any) -> TrainingGroup:
    sent = [written(text, OURS) for text in texts]
    samples = tuple(Sample(c.token_ids, c.logps, c.finish, (Segment(1, len(c.token_ids)),)) for c in sent)
    rollout = Rollout(Prompt(REF, "a", "a", {}), (1,), samples, tuple(c.text for c in sent))
    section = objective_section(**keys)
    return own_training_group(rollout, rewards, section, AdvantageRule.of(section.research.advantage, [rewards]))


def test_a_certain_claim_for_different_answers_drops_the_group_and_counts_it() -> None:
    texts = ["a", "b", "c"]
    group = foreign([written(text, OURS, 0.0) for text in texts], [1.0, 1.0, 0.0])
    assert (group.completions, group.unusable, group.size) == ((), 3, 0)
    assert not group.informative


def test_the_same_claim_is_taken_as_text_when_so_configured() -> None:
    texts = ["ab", "b", "c"]
    group = foreign([written(t, OURS, 0.0) for t in texts], [1.0, 1.0, 0.0], unusable_logps="as_text")
    assert [c.as_text for c in group.completions] == [True, True]
    assert [c.alignment.behaviour_logps.tolist() for c in group.completions] == [[0.0] * 3, [0.0] * 2]
    assert (group.unusable, group.size, group.informative) == (3, 2, True)  # what teaches nothing counts nowhere


def test_one_absurd_completion_leaves_the_others_in_place() -> None:
    group = foreign([written("a", OURS, -30.0), written("b", OURS)], [1.0, 1.0])
    assert len(group.completions) == 1 and not group.completions[0].as_text
    assert (group.unusable, group.size) == (1, 1)


def test_token_level_correction_takes_another_tokenizers_completions_as_text() -> None:
    sent = [written("abc", THEIRS), written("cab", THEIRS)]
    aligned = foreign(sent, [1.0, 1.0], THEIRS)
    assert [c.alignment.spans for c in aligned.completions] == [3, 3]  # ab|c|end in four own tokens
    assert [c.alignment.multi_token for c in aligned.completions] == [1, 1]
    as_text = foreign(sent, [1.0, 1.0], THEIRS, correction="f_tis")
    assert [(c.as_text, c.alignment.spans) for c in as_text.completions] == [(True, 4), (True, 4)]
    assert as_text.unusable == 0
    same = foreign([written("abc", OURS)], [1.0], OURS, correction="f_tis")
    assert [c.as_text for c in same.completions] == [False]


def test_advantages_of_foreign_groups_are_against_the_learner_or_among_themselves() -> None:
    sent = [written("a", OURS), written("b", OURS), written("c", OURS)]
    relative = foreign(sent, [1.0, 1.0, 0.0])
    assert [c.advantage for c in relative.completions] == [0.75, 0.75]
    among = foreign(sent, [1.0, 1.0, 0.0], foreign_advantage="group", advantage="mean")
    assert [c.advantage for c in among.completions] == pytest.approx([1 / 3, 1 / 3, -2 / 3])
    assert (among.tokens, among.size) == (6, 3)
    capable = foreign(sent, [1.0, 1.0, 0.0], foreign_advantage="capability")  # mean 2/3, κ = 2, std √(1/3)
    expected = [2 * (r - 1 / 3) / (3**-0.5 + 1e-4) for r in (1.0, 1.0, 0.0)]
    assert [c.advantage for c in capable.completions] == pytest.approx(expected)


def test_completions_without_advantage_are_kept_for_the_kl_term_and_teach_nothing_else() -> None:
    texts, rewards = ["a", "ab", "ab"], [1.0, 1.0, 1.0]
    assert own(texts, rewards).completions == ()
    kept = own(texts, rewards, kl_weight=0.1)
    assert [(c.count, c.advantage, c.peer) for c in kept.completions] == [(1, 0.0, SELF), (2, 0.0, SELF)]
    assert not kept.informative
    assert (kept.tokens, kept.size) == (8, 3)


def test_equal_completions_count_as_often_as_they_occur() -> None:
    group = own(["a", "a", "b", "a"], [1.0, 1.0, 0.0, 1.0])
    assert [c.count for c in group.completions] == [3, 1]
    assert sum(c.count * c.advantage for c in group.completions) == pytest.approx(0, abs=1e-6)
    assert group.completions[0].advantage == pytest.approx(0.25 / (math.sqrt(0.25) + 1e-4))
