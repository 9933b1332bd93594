"""New weights from the learner to its engine: bytes and milliseconds, within the process and as encoded bytes.

    python -m scripts.bench.engine_weights [--models robin] [--json]

Steps are real: AdamW with float32 masters at learning rate 1e-6 (``MasterAdamW``), on gradients of the policy-gradient
loss of random completions with random advantages; the first few do not count. "in process" is what a node does when it
generates ahead: the learner's thread copies its weights, and the engine's thread loads the copy. "as bytes": the
learner rounds, hashes and encodes (``EngineWeights``); the engine decodes, patches, hashes and packs. Medians over the
steps. The random model is a Llama of about 100 M parameters.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, field, replace

import msgspec
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from node.configuration import LearnerSection, PolicySection
from node.engines.encoded_weights import EncodedWeights
from node.engines.engine import Weights
from node.engines.torch import TorchEngine
from node.learner.generation.engine_weights import EngineUpdate, EngineWeights
from node.learner.generation.schedule import HeldBack
from node.learner.optimizer import MasterAdamW
from node.policy.policy import Policy
from scripts.bench.common.reporting import Figure, add_json_flag, report

RANDOM = LlamaConfig(
    vocab_size=16384,
    hidden_size=768,
    intermediate_size=2048,
    num_hidden_layers=12,
    num_attention_heads=12,
    num_key_value_heads=12,
    tie_word_embeddings=True,
)
WARMING_STEPS = 3
BATCH = (4, 24)  # completions, tokens


class EngineElsewhere(TorchEngine):
    """Receives weights as the bytes that would pass a pipe."""

    seconds = 0.0

    @property
    def in_process(self) -> bool:
        return False

    @property
    def policy(self) -> Policy:
        """The policy that it samples from."""
        return self._policy

    def load_weights(self, version: int, weights: Weights) -> None:
        message = msgspec.msgpack.encode(weights)
        began = time.perf_counter()
        super().load_weights(version, msgspec.msgpack.decode(message, type=EncodedWeights))
        self.seconds = time.perf_counter() - began


@dataclass
class Times:
    """Milliseconds of each counted step."""

    copying: list[float] = field(default_factory=list)
    taking: list[float] = field(default_factory=list)
    encoding: list[float] = field(default_factory=list)
    applying: list[float] = field(default_factory=list)


def policy_of(model: str, dtype: str) -> Policy:
    section = PolicySection.model_validate({"model": "builtin:robin", "device": "cpu", "dtype": dtype})
    policy = Policy.load(section)
    if model == "robin":
        return policy
    torch.manual_seed(0)
    random = LlamaForCausalLM(RANDOM)
    torch.nn.Module.to(random, policy.dtype).train(False)
    return replace(policy, model=random, vocabulary=RANDOM.vocab_size)


def step(policy: Policy, optimizer: MasterAdamW) -> None:
    tokens = torch.randint(policy.vocabulary, BATCH)
    logps = policy.model(input_ids=tokens).logits[:, :-1].float().log_softmax(-1)
    taken = logps.gather(2, tokens[:, 1:, None])[..., 0]
    advantages = torch.randn(len(tokens), 1)
    (-(advantages * taken).mean()).backward()
    optimizer.step()


def patterns_of(policy: Policy) -> list[torch.Tensor]:
    return [p.detach().to(torch.bfloat16, copy=True) for p in policy.trainable().values()]


def hand_over(policy: Policy, held_back: HeldBack, near: TorchEngine, version: int, times: Times) -> None:
    """Passes the weights on within this process, as ``Ahead`` does."""
    began = time.perf_counter()
    newest = held_back.push(version, policy.trainable())
    copied = time.perf_counter()
    near.load_weights(*newest)
    times.copying.append(1e3 * (copied - began))
    times.taking.append(1e3 * (time.perf_counter() - copied))


def send(policy: Policy, weights: EngineWeights, far: EngineElsewhere, version: int, times: Times) -> EngineUpdate:
    """Passes the weights on as bytes."""
    began = time.perf_counter()
    sent = weights.load(version, policy.trainable())
    times.encoding.append(1e3 * (time.perf_counter() - began - far.seconds))
    times.applying.append(1e3 * far.seconds)
    return sent


def measured(model: str, dtype: str, steps: int) -> list[Figure]:
    policy = policy_of(model, dtype)
    optimizer = MasterAdamW(policy.trainable(), LearnerSection(learning_rate=1e-6))
    near, far = (engine(policy, rows=1, seed=0, owns_weights=True) for engine in (TorchEngine, EngineElsewhere))
    assert isinstance(far, EngineElsewhere)
    held_back, far_weights = HeldBack(0), EngineWeights(far)
    times = Times()
    sent: list[EngineUpdate] = []
    changed: list[int] = []
    for version in range(WARMING_STEPS + steps):
        if version == WARMING_STEPS:
            times, sent, changed = Times(), [], []
        before = patterns_of(policy)
        step(policy, optimizer)
        changed.append(sum(int((a != b).sum()) for a, b in zip(before, patterns_of(policy), strict=True)))
        del before
        hand_over(policy, held_back, near, version, times)
        sent.append(send(policy, far_weights, far, version, times))
    whole_times = Times()
    whole = send(
        policy, EngineWeights(far), far, version, whole_times
    )  # a new encoder does not know what the engine holds
    assert all(torch.equal(a, b) for a, b in zip(patterns_of(far.policy), patterns_of(policy), strict=True))
    kinds = {each.form.kind for each in sent}
    parameters = sum(p.numel() for p in policy.trainable().values())
    size_bytes = statistics.median(each.size_bytes or 0 for each in sent)
    median = statistics.median
    name = f"{model} {dtype}"
    return [
        Figure(f"{name}: trained weights", parameters / 1e6, "million", "higher"),
        Figure(f"{name}: share of bf16 patterns changed by a step", 100 * median(changed) / parameters, "%", "lower"),
        Figure(f"{name}: in process, copied by the learner", median(times.copying), "ms", "lower"),
        Figure(f"{name}: in process, copied and packed by the engine", median(times.taking), "ms", "lower"),
        Figure(
            f"{name}: as bytes ({'/'.join(sorted(kinds))}), rounded, hashed, encoded",
            median(times.encoding),
            "ms",
            "lower",
        ),
        Figure(f"{name}: as bytes, patched, hashed, packed", median(times.applying), "ms", "lower"),
        Figure(f"{name}: as bytes, size", size_bytes / 1e6, "MB", "lower"),
        Figure(f"{name}: whole, rounded, hashed, encoded", whole_times.encoding[0], "ms", "lower"),
        Figure(f"{name}: whole, hashed, copied, packed", whole_times.applying[0], "ms", "lower"),
        Figure(f"{name}: whole, size", (whole.size_bytes or 0) / 1e6, "MB", "lower"),
        Figure(f"{name}: smaller than whole", (whole.size_bytes or 0) / size_bytes, "×", "higher"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=["robin", "random"], default=["robin", "random"])
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "bfloat16"], default=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    add_json_flag(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    figures: list[Figure] = []
    for model in options.models:
        for dtype in options.dtypes:
            figures += measured(model, dtype, options.steps)
    report("engine_weights", figures, as_json=options.json)


if __name__ == "__main__":
    main()
