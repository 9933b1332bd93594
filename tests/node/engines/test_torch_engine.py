from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, MambaConfig

import node.engines.batch
from node.engines.engine import GenerationRequest, Sample, Sampling
from node.engines.generic import GenericDecoder
from node.engines.lean.architectures import architecture_of
from node.engines.lean.decoder import LeanDecoder
from node.engines.torch import TorchEngine, decoder_for
from node.kernels.products import OneDnnProducts, TorchProducts
from node.policy.policy import Policy
from protocol.errors import ConfigurationError
from protocol.rollouts import FinishReason
from tests.node.learner.memory.failing_operation import FailsAt

LEAN = ["qwen3", "llama", "llama-scaled", "qwen2", "neox", "neox-serial"]
GENERIC = ["gpt2", "mistral-sliding", "gemma3-mixed"]
# model, whether prompts are held apart from the rows
EITHER_LAYOUT = [*((name, False) for name in LEAN + GENERIC), *((name, True) for name in LEAN)]
Load = Callable[..., Policy]


def requests(count: int = 6, completions: int = 3, longest: int = 24) -> list[GenerationRequest]:
    random = np.random.default_rng(count)
    return [
        GenerationRequest(random.integers(2, 40, random.integers(1, 15)).tolist(), completions, int(limit))
        for limit in random.integers(1, longest + 1, count)
    ]


def logps_by_forward(policy: Policy, prompt: Sequence[int], tokens: Sequence[int], temperature: float) -> torch.Tensor:
    """Log-probabilities by transformers' own forward pass over the whole sequence."""
    with torch.no_grad():
        logits = policy.model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0]


def check(policy: Policy, asked: list[GenerationRequest], given: list[list[Sample]], temperature: float = 1.0) -> None:
    """Every sample is complete, ended for the right reason, and has the forward pass's log-probabilities."""
    assert [len(samples) for samples in given] == [request.completions for request in asked]
    for request, samples in zip(asked, given, strict=True):
        for sample in samples:
            tokens = sample.token_ids.tolist()
            stopped = tokens[-1] == policy.tokens.eos_id
            assert policy.tokens.eos_id not in tokens[:-1]
            assert len(tokens) == request.max_new_tokens or (stopped and len(tokens) < request.max_new_tokens)
            assert sample.finish is (FinishReason.STOP if stopped else FinishReason.LENGTH)
            expected = logps_by_forward(policy, request.prompt_ids, tokens, temperature)
            torch.testing.assert_close(torch.from_numpy(sample.logps), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("name", "shared"), EITHER_LAYOUT)
def test_log_probabilities_of_samples_equal_the_models_own_forward_pass(
    load_policy: Load, name: str, shared: bool
) -> None:
    policy, asked = load_policy(name), requests()
    engine = TorchEngine(policy, rows=128, seed=0, shared_prompts=shared)
    check(policy, asked, engine.generate(asked, Sampling()))
    check(policy, asked, engine.generate(asked, Sampling(temperature=0.6)), 0.6)


@pytest.mark.parametrize(("name", "shared"), EITHER_LAYOUT)
def test_prompts_that_wait_for_rows_join_later_and_lose_nothing(load_policy: Load, name: str, shared: bool) -> None:
    policy, asked = load_policy(name), requests(14)
    check(policy, asked, TorchEngine(policy, rows=5, seed=0, shared_prompts=shared).generate(asked, Sampling()))


@pytest.mark.parametrize("name", LEAN + GENERIC)
def test_greedy_completions_equal_those_of_generate(load_policy: Load, name: str) -> None:
    policy, asked = load_policy(name), requests(5, completions=1)
    for request, samples in zip(asked, TorchEngine(policy, rows=3, seed=0).generate(asked, Sampling(0.0)), strict=True):
        ids = torch.tensor([list(request.prompt_ids)])
        model: Any = policy.model
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=request.max_new_tokens,
            eos_token_id=policy.tokens.eos_id,
            pad_token_id=0,
        )
        assert samples[0].token_ids.tolist() == output[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", LEAN)
def test_lean_and_generic_decoders_give_equal_logits_while_rows_come_and_go(
    load_policy: Load, name: str, shared: bool
) -> None:
    policy = load_policy(name)
    architecture = architecture_of(policy.base.config)
    assert architecture is not None
    logits: list[list[torch.Tensor]] = []
    decoders: tuple[Any, ...] = (
        LeanDecoder(policy.base, architecture, shared_prompts=shared),
        GenericDecoder(policy.base),
    )
    for decoder in decoders:
        random = np.random.default_rng(1)
        seen: list[torch.Tensor] = []
        with torch.inference_mode():
            decoder.begin(12, [1, 2, 1] * 11, 9, 55)  # no row lives for more than 52 steps
            rows = 0
            for turn in range(11):
                prompts = [random.integers(2, 40, size).tolist() for size in (3 + turn % 5, 9, 1)]
                prefilled = decoder.prefill(prompts, [1, 2, 1])
                decoder.join(prefilled, [0, 1, 1, 2])
                seen.append(prefilled.logits)
                rows += 4
                for _ in range(12):
                    seen.append(decoder.step(torch.from_numpy(random.integers(2, 40, rows))).clone())
                decoder.leave([0, 1], [0, 1], [rows - 2, rows - 1], rows - 2)
                rows -= 2
                seen.append(decoder.step(torch.from_numpy(random.integers(2, 40, rows))).clone())
                if rows > 6:
                    decoder.leave(list(range(2, rows)), [], [], 2)
                    rows = 2
        logits.append(seen)
    for lean, generic in zip(*logits, strict=True):
        torch.testing.assert_close(torch.log_softmax(lean, -1), torch.log_softmax(generic, -1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("compiled", [False, True])  # compiled rows have slots of their own and never move
def test_long_crowded_batch_moves_its_timeline_back_and_stays_exact(load_policy: Load, compiled: bool) -> None:
    policy, asked = load_policy("qwen3"), requests(40, longest=12)
    engine = TorchEngine(policy, rows=4, seed=0)
    decoder = engine._decoder
    assert isinstance(decoder, LeanDecoder)
    decoder._compiled = compiled
    given = engine.generate(asked, Sampling())
    check(policy, asked, given)
    assert sum(len(sample.token_ids) for samples in given for sample in samples) / 4 > decoder._rows.keys.shape[3]


def test_one_engine_serves_calls_of_many_sizes_and_what_they_leave_behind_does_no_harm(load_policy: Load) -> None:
    policy = load_policy("neox")
    engine = TorchEngine(policy, rows=24, seed=0)
    for count, completions, longest in ((12, 4, 30), (2, 3, 4), (8, 3, 20), (1, 1, 1), (12, 2, 26)):
        asked = requests(count, completions, longest)
        check(policy, asked, engine.generate(asked, Sampling()))


def test_prompt_is_computed_once_for_all_its_completions(load_policy: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TorchEngine(load_policy("qwen3"), rows=5, seed=0)
    computed: list[list[int]] = []
    prefill = engine._decoder.prefill

    def counting(prompts: Sequence[Sequence[int]], *rest: Any) -> object:
        computed.extend(list(prompt) for prompt in prompts)
        return prefill(prompts, *rest)

    monkeypatch.setattr(engine._decoder, "prefill", counting)
    asked = requests(5, completions=12)
    engine.generate(asked, Sampling())
    assert computed == [list(request.prompt_ids) for request in asked]


def test_prompts_too_many_for_one_pass_are_computed_in_several(
    load_policy: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, asked = load_policy("llama"), requests(9)
    monkeypatch.setattr(node.engines.batch, "PREFILL_TOKENS", 20)
    check(policy, asked, TorchEngine(policy, rows=64, seed=0).generate(asked, Sampling()))


def test_equal_seeds_give_equal_samples_and_other_seeds_others(load_policy: Load) -> None:
    policy, asked = load_policy("neox"), requests()

    def tokens(seed: int) -> list[list[int]]:
        given = TorchEngine(policy, rows=7, seed=seed).generate(asked, Sampling())
        return [sample.token_ids.tolist() for samples in given for sample in samples]

    assert tokens(3) == tokens(3)
    assert tokens(3) != tokens(4)


@pytest.mark.parametrize(("adapter_rank", "merge"), [(0, True), (4, True), (4, False)])
@pytest.mark.parametrize("owns", [False, True])
def test_new_weights_are_used_once_loaded_and_by_an_engine_of_its_own_not_before(
    load_policy: Load, adapter_rank: int, merge: bool, owns: bool
) -> None:
    policy, asked = load_policy("qwen3", adapter_rank=adapter_rank), requests()
    engine = TorchEngine(policy, rows=128, seed=0, owns_weights=owns, merge_adapters=merge)
    generator = torch.Generator().manual_seed(5)

    def greedy() -> list[list[float]]:
        return [samples[0].logps.tolist() for samples in engine.generate(asked, Sampling(0.0))]

    before = greedy()
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    if owns:
        assert greedy() == before
    assert engine.version == 0
    engine.load_weights(7, policy.trainable())
    assert engine.version == 7
    given = engine.generate(asked, Sampling(0.0))
    check(policy, asked, given)
    assert [samples[0].logps.tolist() for samples in given] != before


def test_weights_from_elsewhere_are_copied_into_the_policy(load_policy: Load) -> None:
    policy = load_policy("llama")
    engine = TorchEngine(policy, rows=8, seed=0)
    name = "model.norm.weight"
    other = torch.full_like(policy.trainable()[name], 0.5)
    engine.load_weights(1, {name: other})
    assert torch.equal(policy.trainable()[name].detach(), other)
    check(policy, requests(), engine.generate(requests(), Sampling()))
    with pytest.raises(KeyError, match="no_such"):
        engine.load_weights(2, {"no_such": other})


def test_dropout_is_off_while_sampling_even_in_training_mode(load_policy: Load) -> None:
    policy, asked = load_policy("gpt2"), requests()
    policy.model.train()
    given = TorchEngine(policy, rows=16, seed=0).generate(asked, Sampling())
    assert policy.model.training
    policy.model.eval()
    check(policy, asked, given)


def test_completion_is_cut_at_the_end_of_the_models_context(load_policy: Load) -> None:
    policy = load_policy("gpt2")
    engine = TorchEngine(policy, rows=4, seed=0)
    full = [GenerationRequest([5] * 90, 4, 64)]
    lengths = [len(sample.token_ids) for sample in engine.generate(full, Sampling())[0]]
    assert max(lengths) == 6
    with pytest.raises(ConfigurationError, match="96"):
        engine.generate([GenerationRequest([5] * 96, 1, 1)], Sampling())


@pytest.mark.parametrize(
    "request_", [GenerationRequest([], 1, 1), GenerationRequest([2], 1, 0), GenerationRequest([40], 1, 1)]
)
def test_request_that_cannot_be_is_refused(load_policy: Load, request_: GenerationRequest) -> None:
    with pytest.raises(ValueError, match="prompt"):
        TorchEngine(load_policy("llama"), rows=4, seed=0).generate([request_], Sampling())


def test_nothing_asked_gives_nothing(load_policy: Load) -> None:
    engine = TorchEngine(load_policy("llama"), rows=4, seed=0)
    assert engine.generate([], Sampling()) == []
    assert engine.generate([GenerationRequest([2], 0, 4)], Sampling()) == [[]]


def test_lean_decoder_in_bfloat16_agrees_within_its_rounding(load_policy: Load) -> None:
    asked = requests()
    policy = load_policy("qwen3", dtype="bfloat16")
    exact = load_policy("qwen3")
    for request, samples in zip(asked, TorchEngine(policy, rows=8, seed=0).generate(asked, Sampling()), strict=True):
        for sample in samples:
            expected = logps_by_forward(exact, request.prompt_ids, sample.token_ids.tolist(), 1.0)
            assert float((torch.from_numpy(sample.logps) - expected).abs().max()) < 0.25


def test_products_fused_by_onednn_equal_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias, other = (torch.randn(size, generator=generator) for size in ((5, 24), (16, 24), (16,), (5, 16)))
    plain, fused = TorchProducts(), OneDnnProducts()
    for offset in (None, bias):
        results = [
            (p.plain(x, weight, offset), p.times(x, weight, offset, other), p.plus(x, weight, offset, other))
            for p in (plain, fused)
        ]
        torch.testing.assert_close(results[0], results[1])
        for activation in ("silu", "gelu", "relu"):
            both = [p.activated(x, weight, offset, activation) for p in (plain, fused)]
            torch.testing.assert_close(both[0], both[1])


def test_engine_without_onednn_is_as_exact(load_policy: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    policy, asked = load_policy("qwen3"), requests()
    engine = TorchEngine(policy, rows=16, seed=0)
    assert isinstance(engine._decoder, LeanDecoder)
    assert isinstance(engine._decoder._packer._products, TorchProducts)
    check(policy, asked, engine.generate(asked, Sampling()))


@pytest.mark.parametrize("name", LEAN + GENERIC)
def test_decoder_is_lean_where_the_architecture_is_covered(load_policy: Load, name: str) -> None:
    assert isinstance(decoder_for(load_policy(name)), LeanDecoder if name in LEAN else GenericDecoder)


def test_model_with_a_recurrent_state_is_refused_with_the_reason(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, state_size=4)
    with pytest.raises(ConfigurationError, match="mamba"):
        GenericDecoder(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_call_that_fails_anywhere_can_be_repeated_after_release_with_the_same_samples(
    load_policy: Load, name: str
) -> None:
    policy, asked, sampling = load_policy(name), requests(3), Sampling(seed=5)

    def tokens_of(engine: TorchEngine) -> list[list[int]]:
        return [s.token_ids.tolist() for samples in engine.generate(asked, sampling) for s in samples]

    counting, engine = FailsAt(), TorchEngine(policy, rows=16, seed=0)
    with counting:
        expected = tokens_of(engine)
    for number in range(0, counting.seen // 2, counting.seen // 12):
        with pytest.raises(torch.OutOfMemoryError), FailsAt(number):
            engine.generate(asked, sampling)
        with FailsAt(0):
            engine.release()  # and it allocates nothing
        assert tokens_of(engine) == expected


def test_rows_can_be_changed_between_two_calls_and_not_below_one(load_policy: Load) -> None:
    engine = TorchEngine(load_policy("qwen3"), rows=16, seed=0)
    asked = requests()
    engine.rows = 2
    assert engine.rows == 2
    check(load_policy("qwen3"), asked, engine.generate(asked, Sampling(seed=1)))
    with pytest.raises(ValueError, match="rows is 0"):
        engine.rows = 0
