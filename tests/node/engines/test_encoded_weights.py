"""An engine that receives weights as bytes holds exactly the sender's afterwards, or exactly those it had before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from node.engines.encoded_weights import EncodedWeights, load_encoded
from node.engines.engine import GenerationProgress, GenerationRequest, Sampling, Segment
from node.engines.torch import TorchEngine
from node.kernels.weight_diff_kernels import encode_diff_fast, patterns_of, weights_hash_fast
from node.policy.policy import Policy
from node.policy.weight_layout import layout_of
from protocol.errors import IntegrityError, MalformedError, ProtocolError, StaleBaseError
from protocol.weights.dense_weights import encode_dense
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_diff import join_diff, pack_tensor
from tests.examples import examples

Load = Callable[..., Policy]
ASKED = [GenerationRequest([5, 6, 7], 2, 12), GenerationRequest([8], 3, 16)]


def rounded(policy: Policy) -> list[Tensor]:
    """The policy's trained weights in bf16, in the layout's order."""
    live = policy.trainable()
    return [live[name].detach().to(torch.bfloat16, copy=True) for name in layout_of(policy.trainable()).names]


def hash_of(policy: Policy) -> bytes:
    return weights_hash_fast(layout_of(policy.trainable()), rounded(policy))


def dense(policy: Policy) -> EncodedWeights:
    blob = encode_dense(layout_of(policy.trainable()), patterns_of(rounded(policy)))
    return EncodedWeights(hash_of(policy), blob)


def diff(layout: TensorLayout, old: Sequence[Tensor], new: Sequence[Tensor]) -> EncodedWeights:
    base, target = (weights_hash_fast(layout, weights) for weights in (old, new))
    return EncodedWeights(target, encode_diff_fast(layout, old, new, base_hash=base, target_hash=target))


def moved(policy: Policy, seed: int, share: float = 0.02) -> None:
    """A step that changes about this share of the bf16 patterns."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            chosen = torch.rand(parameter.shape, generator=generator) < share
            parameter[chosen] *= 1.0625


def holding(policy: Policy) -> TorchEngine:
    """Returns an engine with a copy of the policy's weights that it received as bytes."""
    engine = TorchEngine(policy, rows=16, seed=0, owns_weights=True)
    engine.load_weights(1, dense(policy))
    return engine


def says(engine: TorchEngine) -> list[list[float]]:
    return [sample.logps.tolist() for group in engine.generate(ASKED, Sampling(0.0)) for sample in group]


CASES = [
    ("qwen3", {"dtype": "bfloat16"}),
    ("qwen3", {}),
    ("gpt2", {"dtype": "bfloat16"}),
    ("qwen3", {"adapter_rank": 4}),
]


@pytest.mark.parametrize(("name", "section"), CASES)
def test_after_each_of_many_diffs_the_engine_has_the_learners_weights_to_the_bit(
    load_policy: Load, name: str, section: dict[str, object]
) -> None:
    policy = load_policy(name, **section)
    engine, beside = holding(policy), TorchEngine(policy, rows=16, seed=0, owns_weights=True)
    layout, held = layout_of(policy.trainable()), rounded(policy)
    for version in range(2, 7):
        moved(policy, version)
        new = rounded(policy)
        message = msgspec.msgpack.encode(diff(layout, held, new))
        engine.load_weights(version, msgspec.msgpack.decode(message, type=EncodedWeights))
        held = new
        assert engine.version == version
        assert hash_of(engine._policy) == hash_of(policy)
        for name_, tensor in zip(layout.names, new, strict=True):
            assert torch.equal(engine._policy.trainable()[name_].detach(), tensor.to(policy.dtype))
        beside.load_weights(version, {n: t.to(policy.dtype) for n, t in zip(layout.names, new, strict=True)})
        assert says(engine) == says(beside)


@pytest.mark.parametrize("section", [{"dtype": "bfloat16"}, {}])
def test_a_diff_from_other_weights_is_refused_and_everything_stays(
    load_policy: Load, section: dict[str, object]
) -> None:
    policy = load_policy("qwen3", **section)
    engine = holding(policy)
    before, said = hash_of(engine._policy), says(engine)
    moved(policy, 1)
    older = rounded(policy)
    moved(policy, 2)
    with pytest.raises(StaleBaseError):
        engine.load_weights(9, diff(layout_of(policy.trainable()), older, rounded(policy)))
    assert (engine.version, hash_of(engine._policy), says(engine)) == (1, before, said)


@pytest.mark.parametrize("section", [{"dtype": "bfloat16"}, {}])
def test_a_diff_that_leads_elsewhere_than_it_says_is_taken_back(load_policy: Load, section: dict[str, object]) -> None:
    policy = load_policy("qwen3", **section)
    engine, layout, old = holding(policy), layout_of(policy.trainable()), rounded(policy)
    before, said = hash_of(engine._policy), says(engine)
    moved(policy, 1)
    new = rounded(policy)
    sections = [pack_tensor(*pair) for pair in zip(patterns_of(old), patterns_of(new), strict=True)]
    wrong = bytes(31) + b"w"
    with pytest.raises(IntegrityError, match=wrong.hex()):
        engine.load_weights(9, EncodedWeights(wrong, join_diff(layout, before, wrong, sections)))
    with pytest.raises(IntegrityError, match=wrong.hex()[:16]):
        engine.load_weights(9, EncodedWeights(wrong, diff(layout, old, new).blob))
    assert (engine.version, hash_of(engine._policy), says(engine)) == (1, before, said)
    engine.load_weights(9, diff(layout, old, new))
    assert hash_of(engine._policy) == hash_of(policy)


@examples(120)
@given(data=st.data(), is_diff=st.booleans(), dtype=st.sampled_from([torch.bfloat16, torch.float32]))
def test_no_damage_on_the_way_changes_a_weight(data: st.DataObject, is_diff: bool, dtype: torch.dtype) -> None:
    layout = TensorLayout.of({"bias": (7,), "matrix": (20, 9)})
    generator = torch.Generator().manual_seed(0)
    old = [torch.randn(shape, generator=generator).bfloat16() for _, shape in layout.tensors]
    new = [torch.where(torch.rand(t.shape, generator=generator) < 0.1, 1.5 * t, t) for t in old]
    whole = EncodedWeights(weights_hash_fast(layout, new), encode_dense(layout, patterns_of(new)))
    sound = diff(layout, old, new) if is_diff else whole
    trained = {name: tensor.to(dtype, copy=True) for name, tensor in zip(layout.names, old, strict=True)}
    blob = bytearray(sound.blob)
    cut = data.draw(st.integers(0, len(blob)), "bytes that arrive")
    if cut == len(blob):
        blob[data.draw(st.integers(0, len(blob) - 1), "damaged byte")] ^= 1 << data.draw(st.integers(0, 7), "bit")
    with pytest.raises(ProtocolError):
        load_encoded(EncodedWeights(sound.target, bytes(blob[:cut])), trained, None)
    assert all(torch.equal(trained[name], tensor.to(dtype)) for name, tensor in zip(layout.names, old, strict=True))
    load_encoded(sound, trained, None)
    assert all(torch.equal(trained[name], tensor.to(dtype)) for name, tensor in zip(layout.names, new, strict=True))


def test_whole_weights_are_taken_whatever_the_engine_holds_and_only_with_their_hash(load_policy: Load) -> None:
    policy = load_policy("qwen3", dtype="bfloat16")
    engine = TorchEngine(policy, rows=16, seed=0, owns_weights=True)
    moved(policy, 1)
    with pytest.raises(IntegrityError, match="0" * 16):
        engine.load_weights(3, EncodedWeights(bytes(32), dense(policy).blob))
    assert engine.version == 0
    assert hash_of(engine._policy) != hash_of(policy)
    engine.load_weights(3, dense(policy))
    assert hash_of(engine._policy) == hash_of(policy)


def test_values_that_are_not_finite_do_not_reach_the_engine_whole(load_policy: Load) -> None:
    policy = load_policy("qwen3", dtype="bfloat16")
    engine = holding(policy)
    before = hash_of(engine._policy)
    with torch.no_grad():
        next(iter(policy.trainable().values())).view(-1)[0] = torch.nan
    with pytest.raises(MalformedError, match="not finite"):
        engine.load_weights(2, dense(policy))
    assert (engine.version, hash_of(engine._policy)) == (1, before)


def test_a_diff_fits_after_tensors_too(load_policy: Load) -> None:
    policy = load_policy("qwen3", dtype="bfloat16")
    engine = holding(policy)
    moved(policy, 1)
    engine.load_weights(2, policy.trainable())
    old = rounded(policy)
    moved(policy, 2)
    engine.load_weights(3, diff(layout_of(policy.trainable()), old, rounded(policy)))
    assert hash_of(engine._policy) == hash_of(policy)


def test_an_engine_that_shares_the_learners_modules_takes_no_bytes(load_policy: Load) -> None:
    policy = load_policy("qwen3")
    with pytest.raises(ValueError, match="encoded"):
        TorchEngine(policy, rows=4, seed=0).load_weights(1, dense(policy))


def test_tensors_of_which_one_does_not_fit_leave_all_as_they_were(load_policy: Load) -> None:
    policy = load_policy("llama")
    engine = TorchEngine(policy, rows=4, seed=0, owns_weights=True)
    before = hash_of(engine._policy)
    name = next(iter(policy.trainable()))
    fitting = {name: torch.zeros_like(policy.trainable()[name])}
    with pytest.raises(ValueError, match="has shape"):
        engine.load_weights(1, fitting | {"model.norm.weight": torch.zeros(3)})
    with pytest.raises(KeyError, match="no_such"):
        engine.load_weights(1, fitting | {"no_such": torch.zeros(3)})
    assert (engine.version, hash_of(engine._policy)) == (0, before)


def test_every_token_is_recorded_under_the_version_that_sampled_it_when_weights_come_as_diffs(
    load_policy: Load,
) -> None:
    policy = load_policy("qwen3", dtype="bfloat16")
    engine, layout, held = holding(policy), layout_of(policy.trainable()), rounded(policy)
    asked = [GenerationRequest([5, 6, 7], 4, 30)]
    reached = engine.advance(asked, Sampling(seed=1), _After(3))
    for version in (4, 7):
        moved(policy, version)
        new = rounded(policy)
        engine.load_weights(version, diff(layout, held, new))
        held = new
        going_on = [replace(asked[0], begun=reached[0])]
        reached = engine.advance(going_on, Sampling(seed=version), _After(5) if version == 4 else None)
    longest = max(reached[0].samples, key=lambda sample: len(sample.token_ids))
    assert longest.segments == (Segment(1, 3), Segment(4, 5), Segment(7, len(longest.token_ids) - 8))
    _check_versions(reached[0])


def _check_versions(progress: GenerationProgress) -> None:
    for sample in progress.samples:
        assert sum(segment.tokens for segment in sample.segments) == len(sample.token_ids)
        assert [segment.version for segment in sample.segments] == [1, 4, 7][: len(sample.segments)]
        assert np.isfinite(sample.logps).all()


class _After:
    """Returns True after so many tokens of the batch."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def __call__(self, complete: int) -> bool:
        self._left -= 1
        return self._left < 0
