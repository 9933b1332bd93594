"""New weights from the learner to its engine: bytes and milliseconds, within the process and to one in its own process.

    python -m scripts.bench.engine_weights [--models robin] [--json]

Steps are real: AdamW with float32 masters at learning rate 1e-6 (``MasterAdamW``), on gradients of the policy-gradient
loss of random completions with random advantages; the first few do not count. "in process" is what a node does when it
generates ahead: the learner's thread copies its weights, and the engine's thread loads the copy. "as bytes": the
learner rounds, hashes and encodes (``EngineWeights``) and sends the blob in parts to an engine process, which decodes,
patches, hashes and packs, and says so. Medians over the steps. The random model is a Llama of about 100 M parameters.

"over 1 Gbit/s" is computed, not sent over such a link: what was measured here, socket included, and the blob's bytes at
125 MB/s.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from node.configuration import LearnerSection, PolicySection
from node.engines.engine import Weights
from node.engines.process.engine_child import EngineChild
from node.engines.process.engine_setup import EngineSetup
from node.engines.process.process_engine import ProcessEngine
from node.engines.torch import TorchEngine
from node.learner.generation.engine_weights import EngineUpdate, EngineWeights
from node.learner.generation.schedule import HeldBack
from node.learner.steps.optimizer import MasterAdamW
from node.policy.model_files import model_folder
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
GIGABIT: Final = 125e6  # bytes a second
BATCH = (4, 24)  # completions, tokens


class EngineElsewhere(ProcessEngine):
    """Measures what the last update took from its first byte to the engine's word that it holds the weights."""

    seconds = 0.0

    def load_weights(self, version: int, weights: Weights) -> None:
        began = time.perf_counter()
        super().load_weights(version, weights)
        self.seconds = time.perf_counter() - began


@dataclass
class Times:
    """Milliseconds of each counted step."""

    copying: list[float] = field(default_factory=list)
    taking: list[float] = field(default_factory=list)
    encoding: list[float] = field(default_factory=list)
    applying: list[float] = field(default_factory=list)


def section_of(model: str, dtype: str, folder: Path) -> PolicySection:
    """Returns the policy section of a model, which is saved to ``folder`` where it is the random one."""
    name = "builtin:robin"
    if model == "random":
        torch.manual_seed(0)
        LlamaForCausalLM(RANDOM).save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(model_folder(name) / file, folder)
        name = str(folder)
    return PolicySection(model=name, device="cpu", dtype=dtype, adapter_rank=0, four_bit=False)  # type: ignore[arg-type]


def engine_elsewhere(policy: Policy, section: PolicySection, folder: Path) -> EngineElsewhere:
    setup = EngineSetup(
        socket=str(folder / "engine.sock"),
        files=str(folder),
        policy=section.model_dump(mode="json"),
        seed=0,
        merge_adapters=True,
        log_level="ERROR",
    )
    return EngineElsewhere(
        policy,
        lambda: EngineChild(setup),
        lambda: TorchEngine(policy, rows=1, seed=0, owns_weights=True),
        rows=1,
        seed=0,
        files=None,  # as over a network
        report=lambda change: None if change.running and not change.embedded else sys.exit(f"lost: {change.because}"),
    )


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
    with TemporaryDirectory(prefix="engine-weights-") as folder:
        section = section_of(model, dtype, Path(folder))
        policy = Policy.load(section)
        far = engine_elsewhere(policy, section, Path(folder))
        try:
            return measured_with(policy, far, f"{model} {dtype}", steps)
        finally:
            far.close()


def measured_with(policy: Policy, far: EngineElsewhere, name: str, steps: int) -> list[Figure]:
    optimizer = MasterAdamW(policy.trainable(), LearnerSection(learning_rate=1e-6))
    near = TorchEngine(policy, rows=1, seed=0, owns_weights=True)
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
    whole_times, whole_weights = Times(), EngineWeights(far)  # which does not know what the engine holds
    whole = send(policy, whole_weights, far, version, whole_times)
    assert far.measured_weights() == (version, whole_weights.whole().target)
    kinds = {each.form.kind for each in sent}
    parameters = sum(p.numel() for p in policy.trainable().values())
    size_bytes = statistics.median(each.size_bytes or 0 for each in sent)
    median = statistics.median
    whole_bytes = whole.size_bytes or 0
    diff_ms = median(times.encoding) + median(times.applying) + 1e3 * size_bytes / GIGABIT
    whole_ms = whole_times.encoding[0] + whole_times.applying[0] + 1e3 * whole_bytes / GIGABIT
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
        Figure(f"{name}: as bytes, sent, patched, hashed, packed", median(times.applying), "ms", "lower"),
        Figure(f"{name}: as bytes, size", size_bytes / 1e6, "MB", "lower"),
        Figure(f"{name}: whole, rounded, hashed, encoded", whole_times.encoding[0], "ms", "lower"),
        Figure(f"{name}: whole, sent, hashed, copied, packed", whole_times.applying[0], "ms", "lower"),
        Figure(f"{name}: whole, size", whole_bytes / 1e6, "MB", "lower"),
        Figure(f"{name}: size as a share of whole", 100 * size_bytes / whole_bytes, "%", "lower", "≤ 3, in bfloat16"),
        Figure(f"{name}: over 1 Gbit/s, end to end, by computation", diff_ms, "ms", "lower"),
        Figure(f"{name}: over 1 Gbit/s, whole", whole_ms, "ms", "lower"),
        Figure(f"{name}: sooner than whole over 1 Gbit/s", whole_ms / diff_ms, "×", "higher", "≥ 1.5, in bfloat16"),
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
