"""``python -m tests.node.gpu.traced_paths cuda|mps``: runs every path of a round on a GPU that is not there.

Prints one line of JSON for each path, with what ``stand_in_device`` found in it. Models are tiny and their numbers
real: tokens are drawn, weights move.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import bitsandbytes  # before there is a GPU, for whose library it would look
import torch
from torch import Tensor

from node.averaging.noloco import copied
from node.averaging.rules import CompressedRule, DenseRule, moved
from node.configuration import LearnerSection, ObjectiveSection
from node.engines.encoded_weights import EncodedWeights, load_encoded, rounded
from node.engines.engine import GenerationRequest, Sampling
from node.engines.lean import decoder
from node.engines.lean.decoder import LeanDecoder
from node.engines.torch import TorchEngine
from node.kernels import linear_logp
from node.kernels.sparse_update_kernels import encode_update_fast
from node.kernels.weight_diff_kernels import encode_diff_fast, patterns_of, weights_hash_fast
from node.learner.memory.device_memory import device_memory
from node.learner.objective.forward import Network, PassSettings, check_network
from node.learner.objective.network import adapters, attention
from node.learner.objective.reference_policy import ReferencePolicy
from node.learner.steps.devices import StepTask
from node.learner.steps.optimizer import MasterAdamW
from node.learner.steps.step import OptimizerSteps
from node.learner.steps.undo import Undo
from node.policy.adapter import with_adapter
from node.policy.policy import Policy
from node.policy.weight_layout import layout_of
from node.state_sync.rebuild import bf16_copy, copy_into
from protocol.weights.dense_weights import encode_dense
from tests.lighter_interpreter import lighten_interpreter
from tests.node.gpu.conftest import FAULTS, ROUNDS, STEPS
from tests.node.gpu.stand_in_device import Found, Trace, install, traced
from tests.node.learner import letter_node
from tests.node.learner.letter_node import MemorySwarm, Node, right_group
from tests.node.learner.objective.tiny_networks import groups, qwen3

KIND: Final = sys.argv[1]
DEVICE: Final = torch.device(KIND)
DTYPE: Final = torch.bfloat16 if KIND == "cuda" else torch.float32  # what "auto" chooses there
ROWS: Final = 3
ATTENTION: Final[Any] = attention  # whose choice of kernels is replaced below
ADAPTERS: Final[Any] = adapters
CHECKED: Final = set[tuple[Any, ...]]()  # kinds of networks that compute what their model does


def on_device(rank: int = 0) -> Policy:
    """A policy of letters on the device."""
    made = letter_node.policy()
    model: Any = made.model.to(DEVICE, DTYPE)  # type: ignore[arg-type]
    if rank:
        model = with_adapter(model, rank).eval()
    return replace(made, model=model, device=DEVICE, dtype=DTYPE)


class Learning:
    """A learner's step on one micro-batch of several prompts and lengths."""

    def __init__(
        self,
        objective: ObjectiveSection | None = None,
        *,
        rank: int = 0,
        optimizer: Any = "adamw",
        prompts: int = 4,
        **passes: Any,
    ) -> None:
        torch.manual_seed(1)
        model = qwen3().to(DEVICE, DTYPE).eval()
        if rank:
            model = with_adapter(model, rank).eval()
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        objective = objective or ObjectiveSection()
        section = LearnerSection(learning_rate=1e-2, optimizer=optimizer)
        self.optimizer = MasterAdamW(self.trained, section)
        self.reference = ReferencePolicy(self.trained, objective)
        network = Network.of(model)
        self.steps = OptimizerSteps(network, self.optimizer, objective, self.reference)
        self.task = StepTask(tuple(groups(prompts=prompts)), PassSettings(4096, **passes), 1.0, 8, 1)
        kind = (rank, *sorted(passes.items()), linear_logp.DENSE_LOGITS, ATTENTION.has_products(DEVICE))
        if kind not in CHECKED:  # one network is like another, and the check is three passes
            check_network(model, network, recompute=bool(passes.get("recompute")))
            CHECKED.add(kind)

    def step(self) -> None:
        """Takes a step in which every trained weight moves but the A of an adapter, whose B is 0."""
        before = {name: p.detach().clone() for name, p in self.trained.items()}
        assert self.steps.take(self.task).moved
        still = {name for name, p in self.trained.items() if torch.equal(before[name], p.detach())}
        assert all("lora_A" in name for name in still), still


def learning(trace: Trace, before: Callable[[], None] = lambda: None, **how: Any) -> Found:
    learner = Learning(**how)
    learner.step()  # moments are made
    before()
    with trace.counting() as found:
        learner.steps.take(learner.task)
    return found


def in_blocks(trace: Trace) -> Found:
    """The head by blocks of the vocabulary, as for every real vocabulary."""
    dense, linear_logp.DENSE_LOGITS = linear_logp.DENSE_LOGITS, 0
    try:
        return learning(trace)
    finally:
        linear_logp.DENSE_LOGITS = dense


def by_lengths(trace: Trace) -> Found:
    """Attention by lengths, which the other paths leave out: in Triton's interpreter it takes ten times as long, and so
    long for each prompt."""
    ATTENTION.has_products = lambda device: True
    try:
        return learning(trace, prompts=2)
    finally:
        ATTENTION.has_products = lambda device: False


def generating(trace: Trace, *, shared: bool, rank: int = 0, merged: bool = True) -> Found:
    """``STEPS`` decode steps of ``ROWS`` rows, between two looks of the host, without prompts and looks."""
    policy = on_device(rank)
    engine = TorchEngine(policy, rows=ROWS, seed=0, shared_prompts=shared, merge_adapters=merged)
    assert isinstance(engine._decoder, LeanDecoder)
    lean: Any = engine._decoder
    step, counted, found = lean.step, 0, Found()

    def counting(*args: Any) -> Tensor:
        nonlocal counted
        counted += 1
        with trace.counting() as here:
            logits = step(*args)
        if 2 <= counted < 2 + STEPS:
            found.add(here)
        return logits

    lean.step = counting
    asked = [GenerationRequest([5, 3], 2, 2 + STEPS), GenerationRequest([7, 4, 6], 1, 2 + STEPS)]
    policy.tokens.__dict__["eos_ids"] = ()  # so that no row ends before
    engine.generate(asked, Sampling(seed=1))
    assert counted >= STEPS
    return found


def whole_round(trace: Trace) -> Found:
    """Generating, scoring, sharing, learning from a peer, how far its step moved, a checkpoint and its copies."""
    with tempfile.TemporaryDirectory() as folder:
        swarm = MemorySwarm(Path(folder), lambda: 1e6)
        section = LearnerSection(own_groups=2, completions=2, foreign_groups=2)
        node = Node("a", swarm.member("a"), own_policy=on_device(), learner=section, rows=ROWS, folder=Path(folder))
        swarm.put("b", right_group(letter_node.policy()))
        with trace.counting() as found:
            done = [node.round() for _ in range(ROUNDS)]
        node.checkpoints.close()
        assert all(round.foreign_completions for round in done) and not node.faults()
    return found


def averaging(trace: Trace, rule: Any) -> Found:
    """An offer, a partner's blob, the outer step, put in place."""
    learner, other = Learning(), Learning()
    learner.step()
    with trace.counting() as found:
        masters = learner.optimizer.masters()
        offered = copied(masters)
        offer = rule.offer(offered, None, afresh=False, random=Random(1))
        theirs = b"".join(rule.offer(copied(other.optimizer.masters()), None, afresh=False, random=Random(1)).content)
        learner.optimizer.put(moved(masters, offered, offer.averaged(memoryview(theirs), 1.0).state))
    return found


def diffs(trace: Trace) -> Found:
    """Weights to an engine elsewhere, which patches its own on the device, and back into a policy as a state."""
    learner, engine = Learning(), Learning()
    layout = layout_of(learner.trained)
    base = rounded(layout, learner.trained, None)
    load_encoded(
        EncodedWeights(weights_hash_fast(layout, base), encode_dense(layout, patterns_of(base))), engine.trained, None
    )
    learner.step()
    with trace.counting() as found:
        target = rounded(layout, learner.trained, None)
        hashes = [weights_hash_fast(layout, each) for each in (base, target)]
        blob = encode_diff_fast(layout, base, target, base_hash=hashes[0], target_hash=hashes[1])
        load_encoded(EncodedWeights(hashes[1], blob), engine.trained, hashes[0])
        copy_into(engine.trained, layout, bf16_copy(layout, learner.trained))
    return found


def diffs_on_device(trace: Trace) -> Found:
    first, second = ({"w": torch.full((5000,), value, device=DEVICE, dtype=torch.bfloat16)} for value in (1.0, 1.5))
    layout = layout_of(first)
    with trace.counting() as found:
        hashes = [weights_hash_fast(layout, [each["w"]]) for each in (first, second)]
        encode_diff_fast(layout, [first["w"]], [second["w"]], base_hash=hashes[0], target_hash=hashes[1])
    return found


def sparse_updates(trace: Trace) -> Found:
    residual, delta = torch.randn(5000, device=DEVICE), torch.randn(5000, device=DEVICE)
    with trace.counting() as found:
        encode_update_fast(layout_of({"w": residual}), [residual], [delta], decay=0.95, kept=64)
    return found


def undoing(trace: Trace) -> Found:
    """The copy before several steps, and what puts it back after memory ran out."""
    learner = Learning(ObjectiveSection(steps=2))
    with trace.counting() as found:
        undo = Undo(learner.optimizer)
        learner.steps.take(learner.task)
        undo.restore()
    memory = device_memory(DEVICE)
    assert memory is not None and memory.total_bytes > memory.free_bytes > 0 and not memory.own_bytes > 1 << 30
    return found


def four_bit(trace: Trace) -> Found:
    """A base matrix in 4 bits, by the functions that bitsandbytes' layer calls: its kind of tensor cannot be ours."""
    x = torch.randn(3, 64).to(DEVICE, DTYPE).requires_grad_()
    library: Any = bitsandbytes
    packed, state = library.functional.quantize_4bit(
        torch.randn(64, 64).to(DEVICE, DTYPE), quant_type="nf4", compress_statistics=True
    )
    with trace.counting() as found:
        library.matmul_4bit(x, packed.t(), quant_state=state).sum().backward()
    assert x.grad is not None
    return found


def faults(trace: Trace) -> Found:
    """What the other paths must not do, each once."""
    x = torch.ones(4, 4, device=DEVICE)
    heads, mask = torch.ones(1, 1, 4, 8, device=DEVICE), torch.zeros(1, 1, 4, 12, device=DEVICE)
    with trace.counting() as found:
        assert float((x + torch.ones(4)).sum()) == 32.0
        assert len(x[x > 0]) == 16
        x.double()
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask[..., 1:5])
    return found


EVERYWHERE: Final[Mapping[str, Callable[[Trace], Found]]] = {
    FAULTS: faults,
    "round": whole_round,
    "decode, own prompts": lambda trace: generating(trace, shared=False),
    "decode, shared prompts": lambda trace: generating(trace, shared=True),
    "decode, adapter beside": lambda trace: generating(trace, shared=True, rank=2, merged=False),
    "step": learning,
    "step, recomputed": lambda trace: learning(trace, recompute=True, chunk_tokens=40),
    "step, head in blocks": in_blocks,
    "step, adapter": lambda trace: learning(trace, rank=2),
    "step, KL": lambda trace: learning(trace, objective=ObjectiveSection(kl_weight=0.1)),
    "step, moments on the host": lambda trace: learning(trace, optimizer="host"),
    "averaging, dense": lambda trace: averaging(trace, DenseRule()),
    "diff": diffs,
    "undo": undoing,
}
ON_CUDA: Final[Mapping[str, Callable[[Trace], Found]]] = {
    "step, attention by lengths": by_lengths,
    "averaging, sparse": lambda trace: averaging(trace, CompressedRule()),  # on the device as the dense one
    "step, 8 bits": lambda trace: learning(trace, optimizer="adamw8bit"),
    "4 bits": four_bit,
    "diff, on the device": diffs_on_device,
    "sparse update, on the device": sparse_updates,
}


def main(only: Sequence[str]) -> None:
    install(KIND)
    lighten_interpreter()
    torch.set_num_threads(1)  # which Triton's interpreter requires
    steps: Any = decoder
    steps.recorder_for = lambda device: None  # each step is started by the host
    ATTENTION.has_products = lambda device: False
    ADAPTERS.has_products = lambda device: True
    paths = dict(EVERYWHERE) | (dict(ON_CUDA) if KIND == "cuda" else {})
    with traced() as trace:
        for name in only or paths:
            print(json.dumps({"path": name} | paths[name](trace).columns()), flush=True)


if __name__ == "__main__":
    main(sys.argv[2:])
