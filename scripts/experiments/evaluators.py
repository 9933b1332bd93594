"""What is a message (seed, reward) of a machine that only evaluates worth beside the rollouts of a donor?

    python -m scripts.experiments.evaluators [--model builtin:wren] [--batches 64] [--members 64] [--json]

Both are estimates of the gradient of mean reward in the model's weights. A rollout batch gives that of REINFORCE with
the group's mean as baseline; P pairs of perturbations of rank 1, drawn from seeds and evaluated by forward passes alone
on equal prompts, give that of evolution strategies (EGGROLL, arXiv 2511.16652):

    ĝ = 1/(2 σ P) Σ (F(θ + σ ε) − F(θ − σ ε)) ε,   ε = a bᵀ of a matrix, normal of a vector

Printed are processor seconds, bytes, and the cosine of each with the mean of ``--batches`` further rollout batches. A
random direction has a cosine of about 1/√d; of P pairs at most √(P / (P + d)).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import torch
from torch import Tensor

from node.configuration import ObjectiveSection, PolicySection
from node.engines.engine import GenerationRequest, Sampling
from node.engines.torch import TorchEngine
from node.learner.generation.own_rollouts import Rollout, rollout_of, scored
from node.learner.objective.advantages import AdvantageRule
from node.learner.objective.forward import Network, completion_logps, plan_micro_batches
from node.learner.objective.training_groups import own_training_group
from node.policy.policy import Policy
from node.tasks.default_swarm import DEFAULT_TASKS
from node.tasks.split import training_prompt
from scripts.experiments.harness.nodes_run import OwnProcessScorer

GROUPS: Final = 32
COMPLETIONS: Final = 4
SIGMAS: Final = (0.01, 0.1, 0.3)  # times the root mean square of each tensor
MESSAGE_BYTES: Final = 12  # a seed and a float32
TOKEN_BYTES: Final = 8  # of a rollout, with its log-probability
TASKS: Final = {task.name: task for task in DEFAULT_TASKS}
Gradient = dict[str, Tensor]


class Evaluated:
    """A policy whose mean reward is measured, and its gradient estimated."""

    def __init__(self, model: str) -> None:
        self.policy = Policy.load(PolicySection(model=model, device="cpu", dtype="float32"))
        self.weights = {name: p.detach() for name, p in self.policy.trainable().items()}
        self.start = {name: w.clone() for name, w in self.weights.items()}
        self.size = sum(w.numel() for w in self.weights.values())
        self._engine = TorchEngine(self.policy, rows=128, seed=0)
        self._network = Network.of(self.policy.model, self.policy.tokens.vocabulary)
        self._scorer = OwnProcessScorer(TASKS)

    def put(self, moved: Mapping[str, Tensor]) -> None:
        """Puts θ + ``moved`` in place; nothing is moved by an empty one."""
        for name, weight in self.weights.items():
            weight.copy_(self.start[name] + moved[name] if moved else self.start[name])
        self._engine.load_weights(0, self.weights)

    def rollouts(self, seed: int) -> list[tuple[Rollout, tuple[float, ...]]]:
        draws, names = Random(seed), list(TASKS)
        prompts = [training_prompt(TASKS[names[n % len(names)]], draws.getrandbits(32)) for n in range(GROUPS)]
        asked = [self.policy.tokens.prompt_ids(prompt.text, prompt.tools) for prompt in prompts]
        requests = [
            GenerationRequest(ids, COMPLETIONS, TASKS[prompt.ref.task].max_new_tokens)
            for prompt, ids in zip(prompts, asked, strict=True)
        ]
        samples = self._engine.generate(requests, Sampling(1.0, seed))
        found = [rollout_of(p, ids, of, self.policy.tokens) for p, ids, of in zip(prompts, asked, samples, strict=True)]
        return [(r, tuple(s.rewards)) for r, s in zip(found, scored(found, self._scorer), strict=True)]

    def reward(self, seed: int) -> float:
        return statistics.fmean(reward for _, rewards in self.rollouts(seed) for reward in rewards)

    def policy_gradient(self, rollouts: Sequence[tuple[Rollout, tuple[float, ...]]]) -> Gradient:
        """Returns ∇ of the mean reward by the score function; the baseline is the group's mean."""
        rule = AdvantageRule("mean")
        groups = [own_training_group(rollout, rewards, ObjectiveSection(), rule) for rollout, rewards in rollouts]
        parameters = self.policy.trainable()
        for parameter in parameters.values():
            parameter.grad = None
        for each in plan_micro_batches(groups, batch_tokens=8192, pads_prompts=self._network.pads_prompts):
            logps, _ = completion_logps(self._network, each)
            lengths = torch.tensor([len(c.token_ids) for c in each.completions])
            weights = torch.tensor([c.advantage * c.count for c in each.completions])
            (torch.repeat_interleave(weights, lengths) @ logps / (GROUPS * COMPLETIONS)).backward()  # type: ignore[no-untyped-call]
        zero = {name: torch.zeros_like(p) for name, p in parameters.items()}
        return {name: zero[name] if p.grad is None else p.grad.clone() for name, p in parameters.items()}

    def perturbation(self, seed: int, sigma: float) -> Gradient:
        """Returns σ ε, σ being ``sigma`` times the root mean square of each tensor."""
        draws = torch.Generator().manual_seed(seed)
        found = {}
        for name, weight in self.start.items():
            scale = sigma * float(weight.square().mean().sqrt())
            if weight.ndim == 2:
                rows, columns = (torch.randn(size, generator=draws) for size in weight.shape)
                found[name] = scale * torch.outer(rows, columns)
            else:
                found[name] = scale * torch.randn(weight.shape, generator=draws)
        return found


def cosine(one: Gradient, other: Gradient) -> float:
    dot = sum(float((one[name] * other[name]).sum()) for name in one)
    return dot / math.sqrt(
        sum(float(t.square().sum()) for t in one.values()) * sum(float(t.square().sum()) for t in other.values())
    )


def mean(gradients: Sequence[Gradient]) -> Gradient:
    return {name: torch.stack([each[name] for each in gradients]).mean(0) for name in gradients[0]}


def evolved(policy: Evaluated, members: int, sigma: float) -> tuple[Gradient, float]:
    """Returns the estimate of ``members`` messages, a pair of them for each seed, and the processor seconds of one."""
    total = {name: torch.zeros_like(w) for name, w in policy.start.items()}
    spent = 0.0
    for seed in range(members // 2):
        moved = policy.perturbation(seed, sigma)
        began, rewards = time.process_time(), []
        for sign in (1.0, -1.0):
            policy.put({name: sign * tensor for name, tensor in moved.items()})
            rewards.append(policy.reward(seed))
        spent += time.process_time() - began
        for name, tensor in moved.items():  # a gradient in the tensors' own units: ε / scale
            scale = sigma * float(policy.start[name].square().mean().sqrt())
            total[name] += (rewards[0] - rewards[1]) / 2 * tensor / scale**2 if scale else tensor
    policy.put({})
    return total, spent / members


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="builtin:wren")
    parser.add_argument("--batches", type=int, default=64, help="rollout batches of the gradient to compare with")
    parser.add_argument("--members", type=int, default=64, help="messages of evaluators; an even number")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    policy = Evaluated(options.model)
    policy.policy_gradient(policy.rollouts(0))  # what is compiled is compiled
    began = time.process_time()
    batches = [policy.rollouts(1 + n) for n in range(options.batches)]
    generating = (time.process_time() - began) / options.batches
    began = time.process_time()
    gradients = [policy.policy_gradient(batch) for batch in batches]
    learning = (time.process_time() - began) / options.batches
    half = options.batches // 2
    tokens = statistics.fmean(sum(rollout.tokens for rollout, _ in batch) for batch in batches)
    reference = mean(gradients)
    alone = [cosine(each, mean([g for g in gradients if g is not each])) for each in gradients[:32]]
    rows = [
        {"what": "one rollout batch", "cosine": statistics.fmean(alone), "cpu_seconds": generating + learning},
        {"what": f"{half} rollout batches", "cosine": cosine(mean(gradients[:half]), mean(gradients[half:])),
         "cpu_seconds": half * (generating + learning)},
    ]  # fmt: skip
    for sigma in SIGMAS:
        found, seconds = evolved(policy, options.members, sigma)
        rows.append({"what": f"{options.members} messages, sigma {sigma:g}", "cosine": cosine(found, reference),
                     "cpu_seconds": options.members * seconds})  # fmt: skip
        print(rows[-1], file=sys.stderr, flush=True)
    figures = {
        "weights": policy.size,
        "random_cosine": 1 / math.sqrt(policy.size),
        "most_cosine": math.sqrt(options.members / 2 / (options.members / 2 + policy.size)),
        "batch_completions": GROUPS * COMPLETIONS,
        "generate_cpu_seconds": generating,
        "learn_cpu_seconds": learning,
        "batch_bytes": TOKEN_BYTES * tokens,
        "message_bytes": MESSAGE_BYTES,
        "message_bits_of_reward": math.log2(GROUPS * COMPLETIONS + 1),
        "rows": rows,
    }
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        if name != "rows":
            print(f"{name}: {value:.4g}")
    for row in rows:
        print(f"{row['what']}: cosine {row['cosine']:.4f}, {row['cpu_seconds']:.2f} processor seconds")


if __name__ == "__main__":
    main()
