"""The engine on a device for which Triton compiles: its interpreter stands for the device, on CPU tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode

from node.engines import cache_size
from node.engines.draws import Draws
from node.engines.engine import GenerationRequest, Sampling
from node.engines.lean import step_kernels
from node.engines.lean.decoder import LeanDecoder
from node.engines.lean.device_rows import DevicePrompts, DeviceRows
from node.engines.torch import TorchEngine, decoder_for
from node.kernels.decoding import agreement
from node.policy.policy import Policy
from tests.node.engines.test_torch_engine import check, logps_by_forward
from tests.node.engines.test_turns import Said, asked, assert_sampled_after_what_was_read

pytestmark = pytest.mark.usefixtures("by_triton")
Load = Callable[..., Policy]
# These start no kernel: they make a view, or take memory.
VIEWS = "alias as_strided detach expand flatten numpy_T select slice split squeeze t transpose unbind unsqueeze view"
WITHOUT_LAUNCH = frozenset([*VIEWS.split(), "reshape", "view_as_real", "empty", "empty_like", "new_empty"])


@pytest.mark.parametrize(("name", "shared"), [("qwen3", True), ("neox", False)])
def test_samples_have_the_log_probabilities_of_the_models_own_forward_pass(
    load_policy: Load, name: str, shared: bool
) -> None:
    policy = load_policy(name)
    asked = [GenerationRequest([5, 9, 3], 2, 3), GenerationRequest([7] * 9, 1, 2)]
    engine = TorchEngine(policy, rows=2, seed=0, shared_prompts=shared, look_every=2)
    decoder = engine._decoder
    assert isinstance(decoder, LeanDecoder)
    check(policy, asked, engine.generate(asked, Sampling()))
    assert isinstance(decoder._rows, DeviceRows)
    assert isinstance(decoder._prompts, DevicePrompts) is shared


def test_bfloat16_agrees_with_the_exact_model_as_far_as_it_rounds(load_policy: Load) -> None:
    policy, exact = load_policy("qwen3", dtype="bfloat16"), load_policy("qwen3")
    asked = [GenerationRequest([5, 9, 3], 1, 3)]
    for sample in TorchEngine(policy, rows=4, seed=0, shared_prompts=True).generate(asked, Sampling())[0]:
        expected = logps_by_forward(exact, [5, 9, 3], sample.token_ids.tolist(), 1.0)
        np.testing.assert_allclose(sample.logps, expected, atol=0.12)


@pytest.mark.parametrize(("name", "shared", "look_every"), [("qwen3", True, 3), ("neox", False, 1)])
def test_conversations_keep_their_rows_over_turns_and_the_log_probabilities_are_the_forward_passs(
    load_policy: Load, name: str, shared: bool, look_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_size, "SLOT_MULTIPLE", 8)
    policy, request = load_policy(name), asked(2)[1]
    engine = TorchEngine(policy, rows=2, seed=0, shared_prompts=shared, look_every=look_every)
    decoder: Any = engine._decoder
    longer = decoder._lengthen = Mock(side_effect=decoder._lengthen)
    (found,) = engine.advance([request], Sampling(1.0, 5), turns=Said(turns=3, most=8))
    assert len(found.samples) == 2 and all(len(each.observed) == 2 for each in found.samples)
    for sample in found.samples:
        assert_sampled_after_what_was_read(policy, request, sample)
    assert longer.called


class Launches(TorchDispatchMode):
    """Counts what starts a kernel on a GPU: torch's operators, and launches of Triton's kernels beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in WITHOUT_LAUNCH:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    launches = Launches()
    kernel = triton.runtime.interpreter.GridExecutor

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        launches.counts[self.fn.__name__] += 1

    with launches, monkeypatch.context() as patch:
        patch.setattr(kernel, "__call__", launch)
        yield launches.counts


@pytest.mark.parametrize("processors", [1, 1000])  # with many, rows are read in parts
@pytest.mark.parametrize("shared", [False, True])
def test_a_decode_step_of_24_layers_and_its_draw_take_at_most_272_launches(
    load_policy: Load, shared: bool, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_kernels, "_processors", lambda device: processors)
    policy = load_policy("qwen2", dtype="bfloat16")
    decoder = decoder_for(policy, shared_prompts=shared)
    draws = Draws(0, 1.0, policy.device, 40)
    with torch.inference_mode():
        decoder.begin(8, [8], 300, 60)
        prefilled = decoder.prefill([[5] * 300], [8])
        decoder.join(prefilled, [0] * 8)
        draws.prepare(np.arange(8), np.zeros(8, np.int64), 2)
        tokens = draws.draw(prefilled.logits.expand(8, -1))[0]
        with counted(monkeypatch) as counts:
            draws.draw(decoder.step(tokens))
    of_a_layer = ["_rotate_and_keep", "_attend", "_join", "_gate", "addmm", "mm", "rms_norm", "linear"]
    # Two layers were counted, and with them the norm and the product of the head.
    layers = sum(counts[name] for name in of_a_layer) - 2
    assert layers // 2 * 24 + counts.total() - layers <= 272, counts
    assert counts["_join"] == (2 if processors > 1 else 0)


def test_kernels_that_disagree_with_torch_are_not_used(
    load_policy: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agreement, "attend", lambda heads, rows, processors: heads[:, :, :-2] * 1.01)
    step_kernels._agree.cache_clear()
    try:
        engine = TorchEngine(load_policy("qwen3"), rows=2, seed=0)
        assert isinstance(engine._decoder, LeanDecoder) and engine._decoder._kernels is None
        assert "attention differs" in caplog.text
    finally:
        step_kernels._agree.cache_clear()
