from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from node.kernels import linear_logp
from node.kernels.linear_logp import BLOCK_TOKENS, BLOCK_VOCABULARY, DENSE_LOGITS, linear_logps
from node.kernels.products import TorchProducts

TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2e-2}
SHAPES = {  # (N, V, D), in blocks of 16 tokens and 32 words
    "less than a block": (5, 11, 3),
    "one block": (16, 32, 4),
    "whole blocks": (48, 64, 4),
    "one past the block on both sides": (33, 65, 5),
    "one token, long vocabulary": (1, 1001, 3),
    "many tokens, tiny vocabulary": (1001, 7, 2),
}


@dataclass
class Case:
    hidden: Tensor  # (N, D)
    weight: Tensor  # (V, D)
    targets: Tensor  # (N,)
    bias: Tensor | None  # (V,)
    logp_grad: Tensor  # (N,)
    entropy_grad: Tensor  # (N,)

    @classmethod
    def of(cls, shape: tuple[int, int, int], dtype: torch.dtype, *, with_bias: bool = False, seed: int = 0) -> Case:
        n, v, d = shape
        seeded = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=seeded, dtype=torch.float64).to(dtype)

        targets = torch.randint(v, (n,), generator=seeded)
        targets[0] = v - 1
        bias = normal(v) if with_bias else None
        return cls(normal(n, d), normal(v, d), targets, bias, normal(n), normal(n))

    def reference(self, temperature: float) -> tuple[Tensor, Tensor]:
        """The definition, in float64."""
        logits = self.hidden.double() @ self.weight.double().T
        if self.bias is not None:
            logits = logits + self.bias.double()
        log_p = (logits / temperature).log_softmax(-1)
        return log_p[torch.arange(len(self.targets)), self.targets], -(log_p.exp() * log_p).sum(-1)

    def kernel(self, temperature: float) -> tuple[Tensor, Tensor]:
        return linear_logps(self.hidden, self.weight, self.targets, self.bias, temperature=temperature)

    def gradients(self, outputs: tuple[Tensor, Tensor], used: str) -> list[Tensor]:
        loss = torch.zeros((), dtype=torch.float64)
        if "logps" in used:
            loss = loss + (outputs[0] * self.logp_grad).sum()
        if "entropies" in used:
            loss = loss + (outputs[1] * self.entropy_grad).sum()
        return list(torch.autograd.grad(loss, self.inputs()))

    def inputs(self) -> list[Tensor]:
        return [x for x in (self.hidden, self.weight, self.bias) if x is not None]


def require_gradients(case: Case) -> Case:
    for tensor in case.inputs():
        tensor.requires_grad_()
    return case


def error(got: Tensor, expected: Tensor) -> float:
    """Largest deviation relative to the largest value."""
    got, expected = got.detach(), expected.detach()
    assert got.shape == expected.shape
    return float((got.double() - expected).abs().max() / (1 + expected.abs().max()))


def assert_equal_to_log_softmax(case: Case) -> None:
    dtype, bound = case.hidden.dtype, TOLERANCE[case.hidden.dtype]
    tight = TOLERANCE[torch.float32] if dtype is torch.bfloat16 else bound  # bfloat16 inputs, float32 sums
    for got, wanted in zip(case.kernel(0.7), case.reference(0.7), strict=True):
        assert got.dtype == torch.promote_types(dtype, torch.float32)
        assert error(got, wanted) < tight
    for used in ("logps", "entropies", "logps and entropies"):
        expected = case.gradients(case.reference(0.7), used)
        for got, wanted in zip(case.gradients(case.kernel(0.7), used), expected, strict=True):
            assert got.dtype == dtype
            assert error(got, wanted.double()) < bound


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_logp, "DENSE_LOGITS", 0)
    monkeypatch.setattr(linear_logp, "BLOCK_TOKENS", 16)
    monkeypatch.setattr(linear_logp, "BLOCK_VOCABULARY", 32)


@pytest.fixture
def tiny_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_logp, "DENSE_LOGITS", 0)
    monkeypatch.setattr(linear_logp, "BLOCK_TOKENS", 3)
    monkeypatch.setattr(linear_logp, "BLOCK_VOCABULARY", 4)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.usefixtures("small_blocks")
def test_values_and_gradients_in_blocks_equal_log_softmax(
    shape: tuple[int, int, int], with_bias: bool, dtype: torch.dtype
) -> None:
    assert_equal_to_log_softmax(require_gradients(Case.of(shape, dtype, with_bias=with_bias)))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_values_and_gradients_of_a_small_problem_equal_log_softmax(dtype: torch.dtype) -> None:
    assert_equal_to_log_softmax(require_gradients(Case.of((30, 70, 5), dtype, with_bias=True)))


@pytest.mark.parametrize("small", [False, True], ids=["blocked", "dense"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
def test_gradients_equal_finite_differences(with_bias: bool, small: bool, request: pytest.FixtureRequest) -> None:
    if not small:
        request.getfixturevalue("tiny_blocks")
    case = require_gradients(Case.of((7, 10, 3), torch.float64, with_bias=with_bias))

    def kernel(hidden: Tensor, weight: Tensor, *bias: Tensor) -> tuple[Tensor, Tensor]:
        return linear_logps(hidden, weight, case.targets, bias[0] if bias else None, temperature=1.3)

    assert torch.autograd.gradcheck(kernel, case.inputs())


@pytest.mark.parametrize("small", [False, True], ids=["blocked", "dense"])
@pytest.mark.parametrize("used", ["logps", "entropies", "logps and entropies"])
@pytest.mark.parametrize("trained", [("hidden",), ("weight",), ("bias",), ("hidden", "bias"), ("weight", "bias")])
def test_frozen_inputs_get_no_gradient_and_the_others_the_same_one(
    trained: tuple[str, ...], used: str, small: bool, request: pytest.FixtureRequest
) -> None:
    if not small:
        request.getfixturevalue("tiny_blocks")
    whole = require_gradients(Case.of((7, 10, 3), torch.float64, with_bias=True))
    expected = dict(zip(("hidden", "weight", "bias"), whole.gradients(whole.kernel(1.0), used), strict=True))
    case = Case.of((7, 10, 3), torch.float64, with_bias=True)
    tensors: dict[str, Any] = {"hidden": case.hidden, "weight": case.weight, "bias": case.bias}
    for name in trained:
        tensors[name].requires_grad_()
    logps, entropies = case.kernel(1.0)
    loss = ("logps" in used) * (logps * case.logp_grad).sum()
    loss = loss + (entropies * case.entropy_grad).sum() if "entropies" in used else loss
    loss.backward()
    for name, tensor in tensors.items():
        if name in trained:
            torch.testing.assert_close(tensor.grad, expected[name], rtol=1e-10, atol=1e-10)
        else:
            assert tensor.grad is None


@pytest.mark.usefixtures("tiny_blocks")
def test_logits_far_from_zero_and_rising_from_block_to_block_stay_exact() -> None:
    hidden = torch.tensor([[1.0], [-1.0], [0.0]], dtype=torch.float32)
    weight = torch.linspace(-3000, 3000, 25)[:, None]
    logps, entropies = linear_logps(hidden, weight, torch.tensor([24, 0, 7]))
    torch.testing.assert_close(logps, torch.tensor([0.0, 0.0, -3.2188758]))
    torch.testing.assert_close(entropies, torch.tensor([0.0, 0.0, 3.2188758]))
    assert (logps <= 0).all() and (entropies >= 0).all()


@pytest.mark.usefixtures("tiny_blocks")
def test_a_token_that_is_certain_never_has_positive_log_probability() -> None:
    case = Case.of((500, 40, 6), torch.float32)
    case.hidden *= 30
    case.targets = (case.hidden @ case.weight.T).argmax(1)
    logps, entropies = case.kernel(1.0)
    assert float(logps.max()) == 0.0 and float(logps.min()) < 0.0
    assert (entropies >= 0).all()


@pytest.mark.usefixtures("tiny_blocks")
def test_not_a_number_in_one_token_reaches_that_token_alone() -> None:
    case = Case.of((7, 10, 3), torch.float32)
    case.hidden[2, 1] = torch.nan
    logps, entropies = case.kernel(1.0)
    assert logps.isnan().tolist() == entropies.isnan().tolist() == [i == 2 for i in range(7)]


@pytest.mark.usefixtures("tiny_blocks")
def test_strided_inputs_give_the_same() -> None:
    case = Case.of((7, 10, 3), torch.float32)
    strided = Case.of((7, 10, 3), torch.float32)
    strided.hidden = case.hidden.T.contiguous().T.requires_grad_()
    strided.weight = case.weight.T.contiguous().T.requires_grad_()
    expected = require_gradients(case).gradients(case.kernel(1.0), "logps and entropies")
    for got, wanted in zip(strided.gradients(strided.kernel(1.0), "logps and entropies"), expected, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.fixture
def plain_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device, or a build of torch, without oneDNN."""
    monkeypatch.setattr(linear_logp, "products_for", lambda device, dtype: TorchProducts())


@pytest.mark.usefixtures("small_blocks", "plain_products")
def test_without_onednn_values_and_gradients_equal_log_softmax() -> None:
    assert_equal_to_log_softmax(require_gradients(Case.of((33, 65, 5), torch.float32, with_bias=True)))


@pytest.mark.usefixtures("tiny_blocks", "plain_products")
def test_autocast_does_not_lower_the_precision() -> None:
    case = Case.of((7, 10, 3), torch.float32)
    expected = case.kernel(1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = case.kernel(1.0)
    assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])


@pytest.mark.parametrize("vocabulary", [10, DENSE_LOGITS])
def test_no_tokens_give_empty_outputs_and_zero_gradients(vocabulary: int) -> None:
    hidden, weight = torch.zeros(0, 3, requires_grad=True), torch.ones(vocabulary, 3, requires_grad=True)
    logps, entropies = linear_logps(hidden, weight, torch.zeros(0, dtype=torch.long))
    (logps.sum() + entropies.sum()).backward()
    assert logps.shape == entropies.shape == (0,)
    assert weight.grad is not None and not weight.grad.any()


class LargestOutput(TorchDispatchMode):
    """Records the largest tensor that any operation makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("used", ["logps", "logps and entropies"])
def test_no_tensor_larger_than_a_block_is_ever_made(used: str) -> None:
    n, v = BLOCK_TOKENS + 1, 2 * BLOCK_VOCABULARY
    case = require_gradients(Case.of((n, v, 4), torch.float32, with_bias=True))
    assert n * v > DENSE_LOGITS
    with LargestOutput() as blocked:
        case.gradients(case.kernel(0.9), used)
    with LargestOutput() as dense:
        case.gradients(case.reference(0.9), used)
    assert blocked.elements == BLOCK_TOKENS * BLOCK_VOCABULARY
    assert dense.elements == n * v  # the watch does see such tensors


def test_shapes_and_targets_that_do_not_fit_are_refused_with_the_values_seen() -> None:
    hidden, weight, targets = torch.zeros(4, 3), torch.zeros(10, 3), torch.zeros(4, dtype=torch.long)
    with pytest.raises(ValueError, match=r"\[0, 10\], outside the vocabulary \[0, 10\)"):
        linear_logps(hidden, weight, torch.tensor([0, 1, 10, 2]))
    with pytest.raises(ValueError, match=r"\[-100, 3\], outside"):
        linear_logps(hidden, weight, torch.tensor([0, 1, -100, 3]))
    with pytest.raises(ValueError, match=r"\(4, 3\) and weight \(10, 2\)"):
        linear_logps(hidden, torch.zeros(10, 2), targets)
    with pytest.raises(ValueError, match=r"4 integers, got \(3,\)"):
        linear_logps(hidden, weight, targets[:3])
    with pytest.raises(ValueError, match="4 integers"):
        linear_logps(hidden, weight, targets.float())
    with pytest.raises(ValueError, match=r"shape \(10,\), got \(9,\)"):
        linear_logps(hidden, weight, targets, torch.zeros(9))
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        linear_logps(hidden, weight, targets, temperature=0.0)


@pytest.mark.parametrize("whole", [True, False], ids=["dense", "in blocks"])
@pytest.mark.parametrize("words", [1, 31, 32, 33, 64])
def test_rows_after_the_vocabulary_count_for_nothing(
    words: int, whole: bool, monkeypatch: pytest.MonkeyPatch, small_blocks: None
) -> None:
    if whole:
        monkeypatch.setattr(linear_logp, "DENSE_LOGITS", 1 << 20)
    case = Case.of((33, 65, 5), torch.float64, with_bias=True)
    case.weight[words:] *= 100
    case.targets %= words
    bias = case.bias
    assert bias is not None
    require_gradients(case)
    cut = Case(
        case.hidden.detach().clone(),
        case.weight.detach()[:words].clone(),
        case.targets,
        bias.detach()[:words].clone(),
        case.logp_grad,
        case.entropy_grad,
    )
    require_gradients(cut)
    outputs = linear_logps(case.hidden, case.weight, case.targets, bias, temperature=0.7, vocabulary=words)
    for got, wanted in zip(outputs, cut.reference(0.7), strict=True):
        assert error(got, wanted) < TOLERANCE[torch.float64]
    of_hidden, of_weight, of_bias = case.gradients(outputs, "logps and entropies")
    expected = cut.gradients(cut.reference(0.7), "logps and entropies")
    for got, wanted in zip((of_hidden, of_weight[:words], of_bias[:words]), expected, strict=True):
        assert error(got, wanted) < TOLERANCE[torch.float64]
    assert not of_weight[words:].any()
    assert not of_bias[words:].any()


@pytest.mark.parametrize("vocabulary", [0, -1, 11])
def test_a_vocabulary_that_the_weight_has_no_rows_for_is_refused(vocabulary: int) -> None:
    with pytest.raises(ValueError, match=f"a vocabulary of {vocabulary}, and 10 rows"):
        linear_logps(torch.zeros(1, 3), torch.zeros(10, 3), torch.tensor([0]), vocabulary=vocabulary)


def test_a_target_in_the_padding_is_refused() -> None:
    with pytest.raises(ValueError, match=r"outside the vocabulary \[0, 9\)"):
        linear_logps(torch.zeros(1, 3), torch.zeros(10, 3), torch.tensor([9]), vocabulary=9)
