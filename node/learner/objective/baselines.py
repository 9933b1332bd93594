"""The baseline of least variance (VCPO, arXiv 2602.17616), for ``advantage = "min_variance"``, per group:

    b* = Σ_i ‖g_i‖² R_i / Σ_i ‖g_i‖²,   g_i = Σ_t w_t ∇log π_θ(t),   A_i = R_i − b*

It needs the policy: one forward pass, without gradient, over the groups that wait for it, before the optimizer's steps.

VCPO takes ‖g_i‖ from a backward pass for each completion. Here ‖g_i‖ is the exact norm of the gradient with respect to
the HEAD's weight (and bias), in closed form, as a proxy for that of all weights, so that a pass has many completions:

    G_i = Σ_t w_t (e_{y_t} − p_t) h_tᵀ / temperature,   ‖G_i‖² = Σ_tt' w_t w_t' (e−p)_t·(e−p)_t' (h_t·h_t' + [bias])

For a policy that is only a head, such as a bandit, this is VCPO's baseline. The weights are those of the correction
before floor and filter, which depend on the sign of A. The result is not divided by a deviation. Where all gradients
are zero, b* is the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.configuration import ObjectiveSection
from node.kernels.linear_logp import linear_logps
from node.learner.objective.batch import RaggedSpans, TrainingCompletion, TrainingGroup
from node.learner.objective.forward import Network, PassSettings, completion_hidden, plan_micro_batches
from node.learner.objective.weights import span_weights

VOCABULARY_BLOCK: Final = 8192


@torch.no_grad()
def with_baselines(
    network: Network,
    groups: Sequence[TrainingGroup],
    passes: PassSettings,
    objective: ObjectiveSection,
    *,
    temperature: float,
) -> list[TrainingGroup]:
    """Returns ``groups`` in their order, every advantage known and completions without a gradient left out. Advantages
    have their group's influence in them."""
    norms: dict[int, float] = {}  # completion's identity: ‖g‖²
    waiting = [group for group in groups if group.baseline == "min_variance"]
    planned = plan_micro_batches(waiting, batch_tokens=passes.batch_tokens, pads_prompts=network.pads_prompts)
    for micro_batch in planned:
        hidden, targets = completion_hidden(network, micro_batch, passes)
        head = network.head
        words = network.vocabulary
        logps, _ = linear_logps(hidden, head.weight, targets, head.bias, temperature=temperature, vocabulary=words)
        weights = _token_weights(logps, micro_batch.completions, objective)
        start = 0
        for completion in micro_batch.completions:
            tokens = slice(start, start + len(completion.token_ids))
            start = tokens.stop
            norms[id(completion)] = squared_head_gradient(
                hidden[tokens],
                head.weight[:words],
                targets[tokens],
                weights[tokens],
                None if head.bias is None else head.bias[:words],
                temperature=temperature,
            )
    return [_influenced(_resolved(group, norms, keep_all=objective.kl_weight > 0)) for group in groups]


def _token_weights(logps: Tensor, completions: Sequence[TrainingCompletion], objective: ObjectiveSection) -> Tensor:
    """Returns the correction's weights (N,) without floor and filter, as for completions with A = 0 and D = 0."""
    spans = RaggedSpans.of([replace(c, advantage=0.0) for c in completions], logps.device, logps.dtype)
    no_divergence = torch.zeros_like(spans.advantages)
    return span_weights(spans.log_ratios(logps), no_divergence, spans, objective).values[spans.span_of_token]


def _resolved(group: TrainingGroup, norms: Mapping[int, float], *, keep_all: bool) -> TrainingGroup:
    if group.baseline == "fixed":
        return group
    each = group.completions
    rewards = np.array([c.reward for c in each])
    counts = np.array([c.count for c in each])
    advantages = rewards - least_variance_baseline(rewards, np.array([norms[id(c)] for c in each]), counts)
    kept = tuple(
        replace(c, advantage=float(a))
        for c, a in zip(each, advantages, strict=True)
        if a != 0 or (keep_all and not c.foreign)
    )
    return replace(group, completions=kept, baseline="fixed")


def _influenced(group: TrainingGroup) -> TrainingGroup:
    if group.influence == 1.0:
        return group
    scaled = tuple(replace(c, advantage=c.advantage * group.influence) for c in group.completions)
    return replace(group, completions=scaled if group.influence > 0 else ())


def least_variance_baseline(
    rewards: NDArray[np.float64], squared_norms: NDArray[np.float64], counts: NDArray[np.int64]
) -> float:
    """Returns b* of one group, from arrays (G,); the mean reward where every gradient is zero."""
    weights = counts * squared_norms
    total = float(weights.sum())
    return float((weights * rewards).sum()) / total if total > 0 else float((counts * rewards).sum() / counts.sum())


def squared_head_gradient(
    hidden: Tensor,  # (T, D)
    weight: Tensor,  # (V, D)
    targets: Tensor,  # (T,)
    token_weights: Tensor,  # (T,)
    bias: Tensor | None = None,  # (V,)
    *,
    temperature: float = 1.0,
) -> float:
    """Returns ‖∇ Σ_t w_t log π(target_t)‖² with respect to ``weight`` and ``bias``.

    Never holds more than (T, 8192) logits.
    """
    hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))

    def logits(block: slice) -> Tensor:
        z = hidden @ weight[block].to(hidden.dtype).T
        return (z if bias is None else z + bias[block]) / temperature  # (T, block)

    blocks = [slice(start, start + VOCABULARY_BLOCK) for start in range(0, len(weight), VOCABULARY_BLOCK)]
    log_sums = torch.stack([logits(block).logsumexp(-1) for block in blocks]).logsumexp(0)  # (T,)
    errors = hidden.new_zeros(len(hidden), len(hidden))  # (T, T) inner products of w_t (e − p)_t
    for block in blocks:
        error = -torch.exp(logits(block) - log_sums[:, None])
        inside = ((targets >= block.start) & (targets < block.start + error.shape[1])).nonzero()[:, 0]
        error[inside, targets[inside] - block.start] += 1.0
        error = error * token_weights[:, None]
        errors += error @ error.T
    inputs = hidden @ hidden.T + (0.0 if bias is None else 1.0)  # (T, T)
    return max(0.0, float((errors * inputs).sum()) / temperature**2)
