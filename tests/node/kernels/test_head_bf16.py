"""The head with bf16 products: values and gradients against the definition in float64, within the bounds it states.

Triton's kernels run in its interpreter, the torch operations as on a GPU for which Triton is not installed.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from node.kernels import linear_logp
from node.kernels.head import bf16_logps, triton_blocks
from node.kernels.head.bf16_logps import torch_fold, torch_slope_of
from node.kernels.head.blocks import CPU_BLOCK, block_shape_for, gpu_block_shape
from node.kernels.head.slopes import Slopes
from node.kernels.linear_logp import linear_logps

# Of a gradient, relative to the magnitudes that it is a sum of. Triton's interpreter truncates to bf16, which is twice
# as coarse; that a GPU rounds is read off the compiled code, in test_triton_kernels.py.
ROUNDING = {"triton": 2.0**-6, "torch": 2.0**-7}
FLOAT32 = 2e-5
SHAPES = {  # (N, V, D), in blocks of 16 tokens and 32 words
    "less than a block": (5, 11, 3),
    "one past the block on both sides": (17, 65, 5),
    "one token, long vocabulary": (1, 100, 3),
}


@pytest.fixture(params=["triton", "torch"])
def on_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of the two it is."""
    request.getfixturevalue("by_triton" if request.param == "triton" else "as_gpu_without_triton")
    monkeypatch.setattr(linear_logp, "DENSE_LOGITS", 0)
    monkeypatch.setattr(bf16_logps, "block_shape_for", lambda device: (16, 32))
    return str(request.param)


@dataclass
class Head:
    hidden: Tensor  # (N, D)
    weight: Tensor  # (V, D)
    bias: Tensor | None  # (V,)
    targets: Tensor  # (N,)
    g: Tensor  # (N,) gradient of the log-probabilities
    e: Tensor  # (N,) of the entropies

    @classmethod
    def of(cls, shape: tuple[int, int, int], *, with_bias: bool = False) -> Head:
        n, v, d = shape
        seeded = torch.Generator().manual_seed(0)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=seeded).bfloat16()

        targets = torch.randint(v, (n,), generator=seeded)
        targets[0] = v - 1
        bias = normal(v).requires_grad_() if with_bias else None
        hidden, weight = normal(n, d).requires_grad_(), normal(v, d).requires_grad_()
        return cls(hidden, weight, bias, targets, normal(n).float(), normal(n).float())

    def inputs(self) -> list[Tensor]:
        return [x for x in (self.hidden, self.weight, self.bias) if x is not None]

    def log_softmax(self, temperature: float) -> Tensor:
        logits = self.hidden.double() @ self.weight.double().T
        return ((logits if self.bias is None else logits + self.bias.double()) / temperature).log_softmax(1)

    def reference(self, temperature: float) -> tuple[Tensor, Tensor]:
        log_p = self.log_softmax(temperature)
        return log_p.gather(1, self.targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)

    def exact(self) -> Head:
        """The same in float64, in which a gradient is not rounded either."""
        hidden, weight, *bias = (x.detach().double().requires_grad_() for x in self.inputs())
        return Head(hidden, weight, bias[0] if bias else None, self.targets, self.g, self.e)

    def gradients(self, outputs: tuple[Tensor, Tensor], used: str) -> list[Tensor]:
        loss = torch.zeros((), dtype=torch.float64)
        if "logps" in used:
            loss = loss + (outputs[0] * self.g).sum()
        if "entropies" in used:
            loss = loss + (outputs[1] * self.e).sum()
        return list(torch.autograd.grad(loss, self.inputs()))

    def magnitudes(self, used: str, temperature: float) -> list[Tensor]:
        """What each gradient is a sum of, all signs positive."""
        log_p = self.log_softmax(temperature).detach()
        p, entropies = log_p.exp(), -(log_p.exp() * log_p).sum(1, keepdim=True)
        slope = torch.zeros_like(p)
        if "logps" in used:
            slope += self.g.abs().double()[:, None] * (torch.nn.functional.one_hot(self.targets, p.shape[1]) + p)
        if "entropies" in used:
            slope += self.e.abs().double()[:, None] * p * (log_p + entropies).abs()
        slope /= temperature
        hidden, weight = self.hidden.detach().double().abs(), self.weight.detach().double().abs()
        return [slope @ weight, slope.T @ hidden, slope.sum(0)][: len(self.inputs())]


@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_values_and_gradients_are_those_of_log_softmax_within_the_stated_bounds(
    shape: tuple[int, int, int], with_bias: bool, on_gpu: str
) -> None:
    head = Head.of(shape, with_bias=with_bias)
    exact = head.exact()
    outputs = linear_logps(head.hidden, head.weight, head.targets, head.bias, temperature=0.7)
    for got, wanted in zip(outputs, exact.reference(0.7), strict=True):
        assert got.dtype == torch.float32
        assert float((got - wanted).detach().abs().max()) < FLOAT32 * (1 + float(wanted.detach().abs().max()))
    for used in ("logps", "entropies", "logps and entropies"):
        outputs = linear_logps(head.hidden, head.weight, head.targets, head.bias, temperature=0.7)
        found = head.gradients(outputs, used)
        expected = exact.gradients(exact.reference(0.7), used)
        for got, wanted, magnitude in zip(found, expected, exact.magnitudes(used, 0.7), strict=True):
            assert got.dtype == torch.bfloat16
            assert ((got.double() - wanted).abs() <= ROUNDING[on_gpu] * magnitude + 1e-6).all()


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("trained", [("hidden",), ("weight",), ("bias",), ("hidden", "bias")])
@pytest.mark.parametrize("used", ["logps", "logps and entropies"])
def test_frozen_inputs_get_no_gradient_and_the_others_the_same_one(trained: tuple[str, ...], used: str) -> None:
    whole = Head.of((17, 65, 5), with_bias=True)
    kernel = linear_logps(whole.hidden, whole.weight, whole.targets, whole.bias)
    expected = dict(zip(("hidden", "weight", "bias"), whole.gradients(kernel, used), strict=True))
    head = Head.of((17, 65, 5), with_bias=True)
    tensors = {"hidden": head.hidden, "weight": head.weight, "bias": head.bias}
    for name, tensor in tensors.items():
        assert tensor is not None
        tensor.requires_grad_(name in trained)
    logps, entropies = linear_logps(head.hidden, head.weight, head.targets, head.bias)
    loss = (logps * head.g).sum() + ((entropies * head.e).sum() if "entropies" in used else 0)
    loss.backward()
    for name, tensor in tensors.items():
        assert tensor is not None
        if name in trained:
            assert tensor.grad is not None
            torch.testing.assert_close(tensor.grad, expected[name])
        else:
            assert tensor.grad is None


@pytest.mark.usefixtures("on_gpu")
def test_a_token_that_is_nearly_certain_keeps_its_small_gradient() -> None:
    """1 − p is 1e-4: were it a difference of bf16 numbers, nothing would be left of it."""
    hidden = torch.tensor([[9.25]], dtype=torch.bfloat16, requires_grad=True)
    weight = torch.tensor([[1.0], [0.0], [-1.0]], dtype=torch.bfloat16, requires_grad=True)
    logps, _ = linear_logps(hidden, weight, torch.tensor([0]))
    logps.sum().backward()
    p = torch.softmax(hidden.detach().double() @ weight.detach().double().T, 1)[0]
    assert hidden.grad is not None and weight.grad is not None
    assert float(hidden.grad) == pytest.approx(float(1 - p[0] + p[2]), rel=0.01)
    assert float(weight.grad[0]) == pytest.approx(float(9.25 * (1 - p[0])), rel=0.01)


@pytest.mark.usefixtures("on_gpu")
def test_not_a_number_in_one_token_reaches_that_token_alone() -> None:
    head = Head.of((7, 40, 3))
    with torch.no_grad():
        head.hidden[2, 1] = torch.nan
    logps, entropies = linear_logps(head.hidden, head.weight, head.targets)
    assert logps.isnan().tolist() == entropies.isnan().tolist() == [i == 2 for i in range(7)]


@pytest.mark.usefixtures("on_gpu")
def test_no_tokens_give_empty_outputs_and_zero_gradients() -> None:
    hidden = torch.zeros(0, 3, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(50, 3, dtype=torch.bfloat16, requires_grad=True)
    logps, entropies = linear_logps(hidden, weight, torch.zeros(0, dtype=torch.long))
    (logps.sum() + entropies.sum()).backward()
    assert logps.shape == entropies.shape == (0,)
    assert weight.grad is not None and not weight.grad.any()


@pytest.mark.usefixtures("by_triton")
def test_kernels_between_products_equal_the_torch_operations() -> None:
    seeded = torch.Generator().manual_seed(4)
    products, bias = torch.randn(6, 300, generator=seeded), torch.randn(300, generator=seeded).bfloat16()
    wide = torch.zeros(3, 9)
    wide[0], wide[1], wide[2] = 0.5, 2.0, -1.0
    other = wide.clone()
    got = triton_blocks.fold(wide[:, 2:8], products, bias, 1.25)
    expected = torch_fold(other[:, 2:8], products.clone(), bias, 1.25)
    torch.testing.assert_close(wide, other)
    for found, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(found, wanted)
    slopes = Slopes(torch.full((6,), 7.0), torch.full((6,), 5.0), torch.arange(1000, 1006), wide[0, :6], wide[1, :6])
    found = triton_blocks.slope_of(products, bias, 1000, 1.25, slopes)
    torch.testing.assert_close(found, torch_slope_of(products, bias, 1000, 1.25, slopes))


@pytest.mark.parametrize(
    ("card", "tokens"), [(0, 128), (1 << 26, 128), (4 << 30, 2048), (8 << 30, 4096), (80 << 30, 4096)]
)
def test_a_block_takes_at_most_one_part_in_32_of_a_card(card: int, tokens: int) -> None:
    assert gpu_block_shape(card) == (tokens, 8192)
    assert 6 * tokens * 8192 <= max(card // 32, 6 * 128 * 8192)


def test_a_cpu_keeps_its_blocks() -> None:
    assert block_shape_for(torch.device("cpu")) == CPU_BLOCK


@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize("words", [31, 32, 40])
def test_rows_after_the_vocabulary_count_for_nothing(words: int) -> None:
    """The same blocks are multiplied as for a weight without those rows, so that nothing differs by rounding."""
    head, cut = Head.of((17, 65, 5), with_bias=True), Head.of((17, 65, 5), with_bias=True)
    assert head.bias is not None
    assert cut.bias is not None
    targets = head.targets % words
    with torch.no_grad():
        head.weight[words:] *= 100
    outputs = linear_logps(head.hidden, head.weight, targets, head.bias, temperature=0.7, vocabulary=words)
    expected = linear_logps(cut.hidden, cut.weight[:words], targets, cut.bias[:words], temperature=0.7)
    for got, wanted in zip(outputs, expected, strict=True):
        assert torch.equal(got, wanted)
    for got, wanted in zip(
        head.gradients(outputs, "logps and entropies"), cut.gradients(expected, "logps and entropies"), strict=True
    ):
        assert torch.equal(got, wanted), "the rest has the gradient zero"
