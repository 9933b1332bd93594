"""Tries vLLM behind the engine protocol against the learner's own model, whole and with an adapter.

    starling engine install vllm && python -m scripts.try_vllm [--samples 256]

Changes ``builtin:wren``, hands the weights to vLLM, and has it sample. Prints how far the log-probabilities of its
tokens are from those that the policy gives them in float32, after the first weights and after a diff; then kills vLLM
and prints whether the one that is started again samples the same. Takes minutes where vLLM has to compile first.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from node.configuration import Config
from node.engines.backends import EngineParts, engine_of
from node.engines.engine import Engine, GenerationRequest, Sample, Sampling
from node.home import Home
from node.learner.generation.engine_weights import EngineWeights
from node.policy.policy import Policy
from node.tasks.registry import load_tasks
from scripts.bench.common.vllm_node import process_of

MODEL: Final = "builtin:wren"
RANK: Final = 8
COMPLETIONS: Final = 4  # of a prompt
TEMPERATURE: Final = 0.8
SAMPLING: Final = Sampling(TEMPERATURE, seed=7)
CHANGE: Final = 0.01  # standard deviation of what is added to every trained weight
SMALL_CHANGE: Final = 1e-4  # few weights in bfloat16: the second update is a diff


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=256)
    options = parser.parse_args()
    for rank in (0, RANK):
        print(f"adapter of rank {rank}" if rank else "whole model")
        with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="starling-vllm-") as folder:
            tried(Path(folder), rank, options.samples, stack)


def tried(folder: Path, rank: int, samples: int, stack: ExitStack) -> None:
    policy_settings = {"model": MODEL, "adapter_rank": rank, "device": "cpu", "dtype": "float32"}
    config = Config.model_validate({"policy": policy_settings, "engine": {"backend": "vllm"}})
    policy = Policy.load(config.policy)
    events: list[Any] = []
    parts = EngineParts(Home(folder), config, policy, 32, True, False, events.append, time.time)
    began = time.monotonic()
    engine = engine_of(parts, stack)
    weights, requests = EngineWeights(engine), requests_of(policy, samples)
    for version, change in enumerate((CHANGE, SMALL_CHANGE), 1):
        changed(policy, change)
        update = weights.load(version, policy.trainable())
        sampled = sampled_by(engine, requests)
        print(f"  {update.form.kind} of {update.size_bytes:,} bytes; {differences(policy, requests, sampled)}")
        if change == CHANGE:
            print(f"  {time.monotonic() - began:.0f} s from the start to the first samples")
    os.kill(process_of(engine), signal.SIGKILL)
    again = sampled_by(engine, requests)
    same = sum(a.token_ids.tolist() == b.token_ids.tolist() for a, b in zip(sampled, again, strict=True))
    print(f"  killed and started again: {same} of {len(again)} samples are the same tokens")
    print(f"  {events[-1].backend} generates: {events[-1].because}")


@torch.no_grad()
def changed(policy: Policy, change: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in policy.trainable().values():
        parameter.add_(change * torch.randn(parameter.shape, generator=generator))
        parameter.copy_(parameter.bfloat16())  # what vLLM is given: the comparison is then of its arithmetic alone


def requests_of(policy: Policy, samples: int) -> list[GenerationRequest]:
    """Returns prompts of every built-in task in turn, four completions each."""
    tasks, requests = list(load_tasks(Config().tasks).values()), []
    for number in range(samples // COMPLETIONS):
        task = tasks[number % len(tasks)]
        prompt = task.prompt(task.ref(number))
        requests.append(GenerationRequest(policy.tokens.prompt_ids(prompt.text), COMPLETIONS, task.max_new_tokens))
    return requests


def sampled_by(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    sampling: Sampling = SAMPLING,
) -> list[Sample]:
    groups = engine.generate(requests, sampling)
    return [sample for group in groups for sample in group]


@torch.inference_mode()
def differences(policy: Policy, requests: Sequence[GenerationRequest], sampled: Sequence[Sample]) -> str:
    """Returns the mean and the greatest distance of a token's log-probability from the policy's own."""
    far: list[float] = []
    for number, sample in enumerate(sampled):
        prompt_ids = list(requests[number // COMPLETIONS].prompt_ids)
        ids = torch.tensor([[*prompt_ids, *sample.token_ids.tolist()]])
        logits = policy.model(input_ids=ids).logits[0, len(prompt_ids) - 1 : -1, : policy.tokens.vocabulary]
        logps = torch.log_softmax(logits.double() / TEMPERATURE, -1)
        own = logps.gather(1, torch.from_numpy(sample.token_ids)[:, None]).squeeze(1).numpy()
        far += np.abs(own - sample.logps).tolist()
    return f"{len(far)} tokens, log-probabilities off by {np.mean(far):.1e} in the mean, {max(far):.1e} at most"


if __name__ == "__main__":
    main()
