"""Conversations in the embedded engine on this device: against the model's own forward pass, then each token computed
once against prompting anew each turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from scripts.bench.gpu.bench import Bench
from scripts.bench.gpu.engine import LOGP_BOUNDS
from scripts.bench.gpu.shapes import random_policy
from scripts.bench.kept_turns import WAYS, Environment, Shape, conversed

if TYPE_CHECKING:
    from node.policy.policy import Policy

LOOKS = (16, 8, 4)  # tokens between two looks of the host


def turns(bench: Bench) -> None:
    shape = bench.at_scale(tiny="tiny", quick="Qwen2.5-0.5B", full="Qwen2.5-0.5B")
    layers = bench.at_scale(tiny=2, quick=4, full=4)
    for dtype in bench.at_scale(tiny=(torch.bfloat16,), quick=tuple(LOGP_BOUNDS), full=tuple(LOGP_BOUNDS)):
        _against_the_model(bench, random_policy(shape, bench.device, dtype, layers=layers))
    _speed(bench, random_policy(shape, bench.device, torch.bfloat16))


@torch.inference_mode()
def _against_the_model(bench: Bench, policy: Policy) -> None:
    """Every action's log-probabilities, in rows that parted and came back, and became longer than planned."""
    from node.engines.engine import GenerationRequest, Sampling
    from node.engines.resumption import row_of
    from node.engines.torch import TorchEngine

    shape = bench.at_scale(tiny=Shape(2, 2, 4, 3, 2), quick=Shape(24, 5, 30, 40, 9), full=Shape(24, 5, 30, 40, 9))
    environment = Environment(shape, policy.tokens.vocabulary, None, 0.0)
    asked = [GenerationRequest(ids, 1, shape.most, conversation_tokens=shape.tokens) for ids in environment.prompts]
    engine = TorchEngine(policy, rows=bench.at_scale(tiny=2, quick=10, full=10), seed=0, look_every=4)
    reached = engine.advance(asked, Sampling(1.0, 0), turns=environment)
    worst = 0.0
    for request, each in zip(asked, reached, strict=True):
        (sample,) = each.samples
        row = row_of(request.prompt_ids, sample)
        log_p = policy.model(input_ids=torch.tensor([row], device=policy.device)).logits[0].float()
        log_p = log_p[:, : policy.tokens.vocabulary].log_softmax(-1)
        place, sampled = len(request.prompt_ids), 0
        for end, said in (*sample.observed, (len(sample.token_ids), ())):
            action = torch.from_numpy(sample.token_ids[sampled:end]).to(policy.device)
            own = log_p[place - 1 : place - 1 + len(action)].gather(1, action[:, None])[:, 0].cpu()
            worst = max(worst, float((own - torch.from_numpy(sample.logps[sampled:end])).abs().max()))
            place, sampled = place + len(action) + len(said), end
    name = str(policy.dtype).removeprefix("torch.")
    bench.check(f"{name}: log-probability of actions in kept rows", worst, LOGP_BOUNDS[policy.dtype])


def _speed(bench: Bench, policy: Policy) -> None:
    from node.engines.torch import TorchEngine

    shape = bench.at_scale(tiny=Shape(2, 2, 4, 3, 2), quick=Shape(64, 8, 120, 30, 20), full=Shape(128, 8, 120, 30, 20))
    rates = dict[str, float]()
    for look in bench.at_scale(tiny=LOOKS[:1], quick=LOOKS, full=LOOKS):
        engine = TorchEngine(policy, rows=shape.episodes, seed=0, look_every=look)
        for way in (WAYS[0], WAYS[2]) if look == LOOKS[0] else WAYS[2:]:
            rate = 0.0
            for _ in range(bench.at_scale(tiny=1, quick=2, full=3)):  # the first compiles and records
                environment = Environment(shape, policy.tokens.vocabulary, None, 0.0)
                _, wall, tokens = conversed(engine, shape, way, environment)
                engine.release()
                rate = max(rate, tokens / wall)
            rates[way] = max(rates.get(way, 0.0), rate)
            bench.figure(f"{way}, {shape.episodes} conversations of {shape.turns} turns, a look every {look} tokens",
                         rate, "tokens/s")  # fmt: skip
    bench.figure("computed once against anew", rates[WAYS[2]] / rates[WAYS[0]], "×")
