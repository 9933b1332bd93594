"""The embedded engine on this device: against the model's own forward pass, then tokens a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from scripts.bench.gpu.bench import Bench
from scripts.bench.gpu.shapes import body_parameters, random_policy

if TYPE_CHECKING:
    from node.engines.engine import GenerationRequest, Sample
    from node.policy.policy import Policy

BUILTIN: Final = ("wren", "robin", "finch")
LOGP_BOUNDS: Final = {torch.float32: 2e-3, torch.bfloat16: 0.25}  # nats; bf16 rounds logits of 8 to 2^-5


def engine(bench: Bench) -> None:
    both = (torch.float32, torch.bfloat16)
    for dtype in bench.at_scale(tiny=both[1:], quick=both, full=both):
        layers = bench.at_scale(tiny=2, quick=4, full=4)
        shape = bench.at_scale(tiny="tiny", quick="Qwen2.5-0.5B", full="Qwen2.5-0.5B")
        _against_the_model(bench, random_policy(shape, bench.device, dtype, layers=layers))
    _trained(bench)
    _speed(bench)
    _lengths(bench)


def _lengths(bench: Bench) -> None:
    """Attention of many distinct lengths, once each, as a learner has them: with torch's plans of cuDNN and without."""
    attend = torch.nn.functional.scaled_dot_product_attention
    lengths = bench.at_scale(tiny=range(4, 6), quick=range(40, 60), full=range(40, 100))
    rows = [torch.randn(4, 14, length, 64, device=bench.device, dtype=torch.bfloat16) for length in lengths]

    def each() -> None:
        for row in rows:
            attend(row, row, row, is_causal=True)

    was = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    try:
        for on in (True, False):
            torch.backends.cuda.enable_cudnn_sdp(on)
            name = f"attention of a length not seen before, cuDNN {'on' if on else 'off'}"
            bench.figure(name, 1e3 * bench.wall_seconds(each) / len(rows), "ms")
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was)


def _trained(bench: Bench) -> None:
    """The built-in models, whose logits are as large as training makes them, pass the check of their forward pass."""
    from node.configuration import PolicySection
    from node.learner.objective.forward import Network, check_network
    from node.policy.policy import Policy
    from protocol.errors import ConfigurationError

    for name in bench.at_scale(tiny=("wren",), quick=BUILTIN, full=BUILTIN):
        refused = ""
        section = {"model": f"builtin:{name}", "device": bench.device.type, "dtype": "bfloat16"}
        try:
            policy = Policy.load(PolicySection.model_validate(section))
            check_network(policy.model, Network.of(policy.model, policy.tokens.vocabulary))
        except ConfigurationError as error:
            refused = str(error)
        bench.same(f"{name} in bfloat16 is trained{refused and ': ' + refused}", refused, "")


def _against_the_model(bench: Bench, policy: Policy) -> None:
    from node.engines.engine import Sampling
    from node.engines.torch import TorchEngine

    length = bench.at_scale(tiny=3, quick=24, full=48)
    requests = requests_of(bench.at_scale(tiny=2, quick=8, full=16), 2, policy.tokens.vocabulary, 20, length)
    name = str(policy.dtype).removeprefix("torch.")
    decoder = TorchEngine(policy, rows=bench.at_scale(tiny=3, quick=12, full=24), seed=0)
    for temperature in bench.at_scale(tiny=(0.0,), quick=(0.0, 1.0), full=(0.0, 1.0)):
        groups = decoder.generate(requests, Sampling(temperature, 0))
        again = decoder.generate(requests, Sampling(temperature, 0))
        same = [s.token_ids.tolist() for g in groups for s in g] == [s.token_ids.tolist() for g in again for s in g]
        bench.same(f"{name}, temperature {temperature:g}: the same call again", same, True)
        worst, best = _differences(policy, requests, groups)
        bench.check(f"{name}, temperature {temperature:g}: log-probability", worst, LOGP_BOUNDS[policy.dtype])
        if temperature == 0:
            bench.check(f"{name}: a greedy token's distance from the likeliest", best, LOGP_BOUNDS[policy.dtype])


@torch.inference_mode()
def _differences(policy: Policy, requests: list[GenerationRequest], groups: list[list[Sample]]) -> tuple[float, float]:
    """Returns how far the samples are from the model's own log-probabilities, and these from the likeliest token's."""
    worst = behind = 0.0
    for request, samples in zip(requests, groups, strict=True):
        for sample in samples:
            ids = torch.tensor([[*request.prompt_ids, *sample.token_ids.tolist()]], device=policy.device)
            logits = policy.model(input_ids=ids).logits[0, len(request.prompt_ids) - 1 : -1, : policy.tokens.vocabulary]
            log_p = logits.float().log_softmax(-1)
            own = log_p.gather(1, ids[0, len(request.prompt_ids) :, None])[:, 0]
            worst = max(worst, float((own.cpu() - torch.from_numpy(sample.logps)).abs().max()))
            behind = max(behind, float((log_p.amax(1) - own).max()))
    return worst, behind


def requests_of(prompts: int, completions: int, vocabulary: int, length: int, new: int) -> list[GenerationRequest]:
    from node.engines.engine import GenerationRequest

    random = np.random.default_rng(0)
    lengths = random.integers(max(1, length // 2), length + 1, prompts)
    return [GenerationRequest(random.integers(2, vocabulary, n).tolist(), completions, new) for n in lengths]


def _speed(bench: Bench) -> None:
    from node.engines.engine import Sampling
    from node.engines.torch import TorchEngine

    shape = bench.at_scale(tiny="tiny", quick="Qwen2.5-0.5B", full="Qwen2.5-0.5B")
    policy = random_policy(shape, bench.device, torch.bfloat16)
    prompts, completions, new = bench.at_scale(tiny=(1, 2, 2), quick=(16, 8, 32), full=(32, 8, 128))
    requests = requests_of(
        prompts, completions, policy.tokens.vocabulary, bench.at_scale(tiny=4, quick=128, full=512), new
    )
    held = TorchEngine(policy, rows=prompts * completions, seed=0)
    held.generate(requests_of(2, 2, policy.tokens.vocabulary, 4, 2), Sampling(1.0, 0))  # compiles the kernels
    samples = list[list["Sample"]]()
    extra = bench.peak_bytes_of(lambda: samples.extend(held.generate(requests, Sampling(1.0, 0))))
    seconds = bench.at_scale(tiny=1, quick=1, full=2)
    spent = min(bench.wall_seconds(lambda: held.generate(requests, Sampling(1.0, 0))) for _ in range(seconds))
    tokens = sum(len(s.token_ids) for group in samples for s in group)
    bench.figure(f"{shape}: generated, {prompts} × {completions} rows", tokens / spent, "tokens/s")
    bench.figure(f"{shape}: memory of generating", extra, "B")
    busy = bench.busy_seconds("generating", lambda: held.generate(requests, Sampling(1.0, 0)))
    bench.figure(f"{shape}: share of the time in which the card computes", busy / spent, "")
    short = requests_of(prompts, completions, policy.tokens.vocabulary, bench.at_scale(tiny=3, quick=40, full=40), new)
    seconds_short = bench.wall_seconds(lambda: held.generate(short, Sampling(1.0, 0)))
    bench.figure(
        f"{shape}: generated after short prompts, at most",
        prompts * completions * new / seconds_short,
        "tokens/s",
    )
    weights = body_parameters(policy) + policy.base.get_output_embeddings().weight.numel()  # type: ignore[no-untyped-call]
    # Each step reads every weight once; keys and values come on top.
    bench.timed(f"{shape}: generating, against reading the weights", spent, bytes_moved=2.0 * weights * new)
