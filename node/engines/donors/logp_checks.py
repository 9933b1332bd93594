"""Whether a donor's tokens were drawn from the weights that it names, with the log-probabilities that it claims.

Of each batch of a donor a few completions are drawn at random, after it has sent them, and the learner computes the
distributions of their tokens itself, from the same version. Per token, with claim c, log-probability l, entropy H and
variance V of log p under the learner's distribution:

    claim     |c − l| is rounding: over a completion of T tokens Σ|c − l| ≤ SLACK + MEAN T, and no token is off by more
              than MOST
    bias      over all tokens checked so far, once there are MANY: |mean(c − l)| ≤ BIAS
    draws     Σ (l + H) is a sum of martingale differences with variance Σ V where tokens were drawn from the
              distribution, wherever a completion stops. It fails beyond Z standard deviations, if it is also more than
              DRIFT nats a token: rounding alone adds up over long times

The bounds are for a donor that computes in bfloat16 beside a learner in float32; ``MEAN`` is many times what was
measured between such (docs/engines.md). A donor that stays within them can shift a completion's log-probability by
``SLACK + MEAN T`` nats, and one that lies in a share f of its completions is found in a batch with probability
1 − (1 − f)^k, k being the number of those checked.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from node.policy.policy import Policy
from protocol.streams.engine_batches import Sampled

CHECKED: Final = 2  # completions of each batch, at least
CHECKED_SHARE: Final = 1 / 64  # of its completions
MEAN: Final = 0.1  # nats
SLACK: Final = 1.0
MOST: Final = 3.0
BIAS: Final = 0.05
MANY: Final = 1000  # tokens
Z: Final = 6.0
DRIFT: Final = 0.1
_PASS_TOKENS: Final = 4096  # of completions that are computed together, with their prompts and padding
_HEAD_TOKENS: Final = 256  # for which logits are held at a time


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """The learner's distributions at the tokens of a completion, (T,) each, float64."""

    logps: NDArray[np.float64]
    entropies: NDArray[np.float64]
    variances: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CheckedSoFar:
    """What all checks of a donor add up to."""

    tokens: int = 0
    claimed_above: float = 0.0  # Σ (c − l)
    drift: float = 0.0  # Σ (l + H)
    variance: float = 0.0  # Σ V

    def with_one(self, claimed: NDArray[np.float32], measured: Measured) -> CheckedSoFar:
        return CheckedSoFar(
            self.tokens + len(claimed),
            self.claimed_above + float((claimed - measured.logps).sum()),
            self.drift + float((measured.logps + measured.entropies).sum()),
            self.variance + float(measured.variances.sum()),
        )


def chosen_to_check(sampled: Sequence[Sampled], draws: random.Random) -> list[int]:
    """Returns which completions of a batch are checked, of those that have a token."""
    begun = [index for index, (token_ids, _) in enumerate(sampled) if len(token_ids)]
    return draws.sample(begun, min(len(begun), max(CHECKED, math.ceil(CHECKED_SHARE * len(begun)))))


def fault_of_claims(claimed: NDArray[np.float32], measured: Measured) -> str | None:
    """Returns why one completion's claims cannot be rounding, or None where they can: the rule ``claim`` above.

    ``claimed`` has the T log-probabilities that the donor sent, in nats; ``measured`` has the learner's for the same
    tokens. A claim that is not a number is a fault.
    """
    off = np.abs(claimed - measured.logps)
    bound = SLACK + MEAN * len(claimed)
    if not off.sum() <= bound:
        return (
            f"the log-probabilities of a completion of {len(claimed)} tokens are off by {off.sum():.3g} nats together; "
            f"at most {bound:.3g} can be rounding"
        )
    if not off.max() <= MOST:
        return f"a log-probability is off by {off.max():.3g} nats; at most {MOST:g} can be rounding"
    return None


def fault_so_far(checked: CheckedSoFar) -> str | None:
    """Returns what all checks of a donor together show to be false, or None."""
    if checked.tokens < MANY:
        return None
    bias = checked.claimed_above / checked.tokens
    if abs(bias) > BIAS:
        return f"its log-probabilities are off by {bias:+.3g} nats on average over {checked.tokens} tokens"
    drift, deviations = checked.drift / checked.tokens, checked.drift / math.sqrt(max(checked.variance, 1e-9))
    if abs(drift) > DRIFT and abs(deviations) > Z:
        return (
            f"its tokens are not drawn from the weights that it names: {drift:+.3g} nats a token over "
            f"{checked.tokens} tokens, {abs(deviations):.1f} standard deviations"
        )
    return None


def measure(
    policy: Policy, completions: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
) -> list[Measured]:
    """Computes the distributions from which ``policy`` would draw each completion's tokens after its prefix."""
    found: list[Measured] = []
    batch: list[tuple[Sequence[int], Sequence[int]]] = []
    longest = 0
    for prefix_ids, token_ids in completions:
        length = len(prefix_ids) + len(token_ids)
        if batch and (len(batch) + 1) * max(longest, length) > _PASS_TOKENS:
            found += _measured(policy, batch, temperature)
            batch, longest = [], 0
        batch.append((prefix_ids, token_ids))
        longest = max(longest, length)
    return found + _measured(policy, batch, temperature) if batch else found


@torch.inference_mode()
def _measured(
    policy: Policy, batch: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
) -> list[Measured]:
    """Padding behind a row changes nothing before it, since attention is causal."""
    rows = [[*prefix_ids, *token_ids[:-1]] for prefix_ids, token_ids in batch]
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=policy.device)  # (B, L)
    body, head = policy.base.base_model, policy.base.get_output_embeddings()  # type: ignore[no-untyped-call]
    hidden = body(input_ids=ids, use_cache=False).last_hidden_state  # (B, L, D)
    return [
        _of_tokens(policy, head, hidden[at, len(prefix_ids) - 1 : len(rows[at])], token_ids, temperature)
        for at, (prefix_ids, token_ids) in enumerate(batch)
    ]


def _of_tokens(
    policy: Policy, head: torch.nn.Module, hidden: torch.Tensor, token_ids: Sequence[int], temperature: float
) -> Measured:
    """``hidden``: the states from which each of ``token_ids`` is predicted, (T, D)."""
    targets = torch.tensor(list(token_ids), device=policy.device)  # (T,)
    logps, entropies, variances = list[torch.Tensor](), list[torch.Tensor](), list[torch.Tensor]()
    for begin in range(0, len(targets), _HEAD_TOKENS):
        part = slice(begin, begin + _HEAD_TOKENS)
        logits = head(hidden[part])[:, : policy.tokens.vocabulary].float() / (temperature or 1.0)  # (t, V)
        every = logits.log_softmax(-1)
        weights = every.exp()
        means = (weights * every).sum(-1)
        logps.append(every.gather(-1, targets[part, None])[:, 0])
        entropies.append(-means)
        variances.append((weights * (every - means[:, None]) ** 2).sum(-1))
    return Measured(*(torch.cat(each).cpu().double().numpy() for each in (logps, entropies, variances)))
