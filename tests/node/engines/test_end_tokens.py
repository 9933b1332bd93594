"""A completion ends at whichever of the policy's end tokens is sampled first."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from node.configuration import PolicySection
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.policy.policy import Policy
from node.policy.tokens import TokenTable
from protocol.errors import ConfigurationError
from protocol.rollouts import FinishReason
from tests.node.engines.conftest import EOS, VOCABULARY


def with_end_tokens(policy: Policy, count: int) -> Policy:
    """The policy with ``count`` end tokens: its own, and characters that are declared to be control tokens."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(policy.base.config.name_or_path))
    others = list(range(VOCABULARY - count + 1, VOCABULARY))
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [tokenizer.convert_ids_to_tokens(token_id) for token_id in others]}
    )
    return replace(policy, tokens=TokenTable(tokenizer, declared=others))


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_a_completion_ends_at_any_end_token_and_has_none_before(load_policy: Callable[..., Policy], name: str) -> None:
    policy = with_end_tokens(load_policy(name), 5)
    ends = policy.tokens.eos_ids
    assert (len(ends), ends[0]) == (5, EOS)
    engine = TorchEngine(policy, rows=64, seed=0)
    [samples] = engine.generate([GenerationRequest([2, 3, 4], 64, 40)], Sampling(1.0, 1))
    stopped = [sample.token_ids.tolist() for sample in samples if sample.finish is FinishReason.STOP]
    assert {ids[-1] for ids in stopped} - {EOS}, "others than the tokenizer's own end are sampled"
    for sample in samples:
        *before, last = sample.token_ids.tolist()
        assert set(before).isdisjoint(ends)
        assert (last in ends) == (sample.finish is FinishReason.STOP)
        assert policy.tokens.byte_lengths([last]) == [0 if last in ends else 1]


def test_a_model_whose_tokenizer_goes_beyond_its_embeddings_is_refused(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(model_folder("qwen2"), tmp_path / "model")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    tokenizer.add_tokens(["word", "another"])
    tokenizer.save_pretrained(folder)
    with pytest.raises(ConfigurationError, match=rf"the model's {VOCABULARY} embeddings, with 2 ids"):
        Policy.load(PolicySection(model=str(folder)))


def test_the_chat_template_is_chosen_by_the_configuration(load_policy: Callable[..., Policy]) -> None:
    assert not load_policy("qwen2").tokens.uses_chat
    with pytest.raises(ConfigurationError, match="no chat template"):
        load_policy("qwen2", chat="on")
