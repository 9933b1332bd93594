"""What arrives of hidden states where they cross from stage to stage, and what they take."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scripts.experiments.harness.crossings import Crosses, Crossing, quantised
from scripts.experiments.language_model.language import Language
from scripts.experiments.language_model.replicas import losses
from scripts.experiments.language_model.subspace_weights import SubspaceReplica


def crossed(crosses: Crosses, hidden: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Crossing]:
    crossing, given_hidden = Crossing(crosses), hidden.clone().requires_grad_()
    arrived = crossing(given_hidden)
    arrived.backward(gradient)
    assert given_hidden.grad is not None
    return arrived.detach(), given_hidden.grad, crossing


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("bits", "block"), [(8, None), (4, None), (4, 16)])
def test_numbers_in_few_bits_are_off_by_half_a_level_at_most(bits: int, block: int | None) -> None:
    numbers = drawn(5, 64)
    parts = numbers.view(-1, block or 64)
    level = parts.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
    off = (quantised(numbers, bits, block).view_as(parts) - parts).abs()
    assert (off <= 0.51 * level + 2 ** (bits - 1) * level / 256).all()  # scales are bfloat16


def test_hidden_states_that_lie_in_the_subspace_arrive_whole_and_gradients_are_projected_to_it() -> None:
    basis = torch.linalg.qr(drawn(32, 8)).Q
    hidden, gradient = 3.0 + drawn(4, 20, 8) @ basis.T, drawn(4, 20, 32, seed=2)
    arrived, back, _ = crossed(Crosses("subspace", 1 / 4), hidden, gradient)
    torch.testing.assert_close(arrived, hidden, rtol=0.01, atol=0.05)  # by way of bfloat16
    torch.testing.assert_close(back, gradient @ basis @ basis.T, rtol=0.01, atol=0.05)


def test_what_feedback_leaves_out_arrives_in_later_passes() -> None:
    hidden = drawn(3, 32)
    crossing = Crossing(Crosses("top-k", 1 / 4, feedback=True))
    total = sum(crossing(hidden.clone().requires_grad_()).detach() for _ in range(40))
    torch.testing.assert_close(total / 40, hidden, atol=0.25, rtol=0.0)
    plain = Crossing(Crosses("top-k", 1 / 4))(hidden.clone().requires_grad_()).detach()
    assert (plain == 0).float().mean() == 0.75


def test_bytes_are_those_of_both_directions_and_a_pass_without_gradient_is_not_counted() -> None:
    hidden, gradient = drawn(10, 64), drawn(10, 64, seed=2)
    _, _, eight = crossed(Crosses("all", bits=8), hidden, gradient)
    assert eight.bytes_of_a_token == 2 * (64 + 2)
    with torch.no_grad():
        eight(hidden)
    assert (eight.tokens, eight.bytes_of_a_token) == (10, 132)
    _, _, subspace = crossed(Crosses("subspace", 1 / 4), hidden, gradient)
    assert subspace.bytes == 10 * 2 * 32 + 2 * 64 * 17  # with the directions, and the mean


def test_a_replica_in_a_subspace_has_hidden_states_that_k_numbers_say() -> None:
    replica = SubspaceReplica(1, 32, 1 / 4, learning_rate=1e-2)
    tokens = torch.from_numpy(Language(1).documents(1, 8))[None]
    for _ in range(3):
        replica.step(tokens)
    weights, seen = {name: each[None] for name, each in replica.replica(0).items()}, list[Tensor]()

    def cut(layer: int, x: Tensor) -> Tensor:
        seen.append(x[0].view(8, -1, 32))
        return x

    losses(weights, tokens, cut)
    fixed = replica.fixed["embedding"][tokens[0, :, :-1]] + replica.fixed["position"][: tokens.shape[2] - 1]
    for hidden in seen:
        apart = hidden - fixed
        torch.testing.assert_close(apart @ replica.basis @ replica.basis.T, apart, rtol=1e-4, atol=1e-5)
        assert apart.abs().max() > 0.1
