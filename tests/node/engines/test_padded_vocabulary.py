"""A model with more rows of logits than its tokenizer has tokens: padding is never sampled and counts for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from node.engines.engine import GenerationRequest, Sample, Sampling
from node.engines.torch import TorchEngine
from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, TrainingCompletion
from node.learner.objective.forward import MicroBatch, Network, check_network, completion_logps
from node.policy.policy import Policy

ROWS = 64
ASKED = [GenerationRequest([5, 9, 2], 6, 12), GenerationRequest([7], 6, 12)]
Load = Callable[..., Policy]


def padded(policy: Policy) -> Policy:
    """The same policy with rows after its tokens that any sampler would prefer to them."""
    model: Any = policy.model
    tokens = policy.tokens.vocabulary
    model.resize_token_embeddings(ROWS, mean_resizing=False)
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head[tokens:] = 1.5 * head[: ROWS - tokens]
    return replace(policy, vocabulary=ROWS)


@pytest.fixture(params=["qwen3", "llama", "gpt2"])  # a tied head, a head of its own, the generic decoder
def policy(request: pytest.FixtureRequest, load_policy: Load) -> Policy:
    return padded(load_policy(request.param))


def generated(policy: Policy, temperature: float = 1.0) -> list[list[Sample]]:
    return TorchEngine(policy, rows=8, seed=0).generate(ASKED, Sampling(temperature))


def logits_of(policy: Policy, prompt: list[int], sample: Sample) -> torch.Tensor:
    """(T, rows) by the model's own forward pass."""
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *sample.token_ids.tolist()]])
        logits: torch.Tensor = policy.model(ids).logits[0, len(prompt) - 1 : -1]
    return logits


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_padding_is_never_sampled_and_the_tokens_share_all_probability(policy: Policy, temperature: float) -> None:
    tokens, of_padding = policy.tokens.vocabulary, 0.0
    for request, samples in zip(ASKED, generated(policy, temperature), strict=True):
        for sample in samples:
            assert policy.tokens.knows(sample.token_ids)
            logits = logits_of(policy, list(request.prompt_ids), sample) / (temperature or 1.0)
            expected = logits[:, :tokens].log_softmax(-1).gather(1, torch.from_numpy(sample.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.from_numpy(sample.logps), expected, atol=1e-4, rtol=0)
            of_padding = max(of_padding, float(logits.softmax(-1)[:, tokens:].sum(-1).max()))
    assert of_padding > 0.5, "without a mask it would be sampled"


def test_the_learner_gives_a_sample_the_probability_with_which_it_was_drawn(policy: Policy) -> None:
    network = Network.of(policy.model, policy.tokens.vocabulary)
    check_network(policy.model, network)
    for request, samples in zip(ASKED, generated(policy), strict=True):
        completions = tuple(
            TrainingCompletion(s.token_ids, Alignment(torch.arange(len(s.logps)).numpy(), s.logps, 0), 1.0, SELF)
            for s in samples
        )
        batch = MicroBatch((tuple(request.prompt_ids),), (0,) * len(samples), completions)
        logps, _ = completion_logps(network, batch)
        drawn = torch.cat([torch.from_numpy(sample.logps) for sample in samples])
        torch.testing.assert_close(logps.detach(), drawn, atol=1e-4, rtol=0)
        everywhere, _ = completion_logps(Network.of(policy.model), batch)
        assert float((everywhere.detach() - drawn).abs().max()) > 0.5, "over all rows it would be another distribution"


def test_learning_leaves_the_rows_of_padding_as_they_are(policy: Policy) -> None:
    network = Network.of(policy.model, policy.tokens.vocabulary)
    [sample, *_] = generated(policy)[0]
    length = len(sample.token_ids)
    completion = TrainingCompletion(
        sample.token_ids, Alignment(torch.arange(length).numpy(), sample.logps, 0), 1.0, SELF
    )
    logps, entropies = completion_logps(network, MicroBatch(((5, 9, 2),), (0,), (completion,)))
    (logps.sum() + entropies.sum()).backward()
    grad = network.head.weight.grad
    assert grad is not None
    assert not grad[policy.tokens.vocabulary :].any()
    assert grad[: policy.tokens.vocabulary].any(1).all()
