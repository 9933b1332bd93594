"""Log-probabilities of completions under the policy, each prompt computed once.

Prompts are often longer than answers, and every group repeats its prompt G times. Here the forward pass of a
micro-batch runs its K distinct prompts once, right-padded, (K, P); gives each prompt's keys and values to its
completions, through which gradients flow back; and runs the completions, in batches of similar length, right-padded,
(B, T−1), on top. Causal attention makes right padding exact: a real token never attends to padding after it, and
completions mask the padding of their prompts, or on a GPU attend by lengths. On a CPU the tokens of short rows are
packed into one row without padding, and each attends to what it follows: a model for which a CPU is enough is so small
that a call costs more than what it computes. Log-probabilities and gradients equal those of plain full sequences up to
rounding. The head is applied to real tokens alone and never holds (N, V).
``PassSettings`` says what is kept for the backward pass and what is computed again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from node.kernels.linear_logp import linear_logps
from node.kernels.training.row_lengths import RowLengths
from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, TrainingCompletion, TrainingGroup
from node.learner.objective.network.adapters import use_one_call_adapters
from node.learner.objective.network.attention import attends_by_lengths, attends_packed, use_grouped_attention
from node.learner.objective.network.gates import use_one_call_gates
from node.learner.objective.network.norms import use_one_call_norms
from node.learner.objective.network.prompt_cache import PackedCache, PassCache, PromptRows
from node.learner.objective.network.recomputation import recomputed_layers
from node.learner.objective.network.rotation import use_one_call_rotation
from node.learner.objective.network.tied_head import gradient_by_rows, tied_embedding, with_early_gradient
from node.policy.device import sent
from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

Item = TypeVar("Item")
Result = TypeVar("Result")

PACKED_SEEN: Final = 64
"""Tokens that one sees on average, at most, where they are packed: beyond, a library's attention over padded rows is
faster by more than padding costs."""

HEAD_TOLERANCE: Final = 2e-2  # nats; loose enough for bfloat16, far below what a scaled or capped head would differ by


@dataclass(frozen=True, slots=True)
class PassSettings:
    """Memory against time; log-probabilities and gradients are the same for every choice, up to rounding."""

    batch_tokens: int  # padded tokens of one micro-batch, at most, unless a single completion is longer
    recompute: bool = False
    """Keep only what enters each layer, and compute the layer again in the backward pass: about a third more time."""
    chunk_tokens: int | None = None
    """With ``recompute``: run a layer on so many tokens at a time, of one row or of several. None: on all of them."""

    def __post_init__(self) -> None:
        if self.batch_tokens < 1 or (self.chunk_tokens is not None and self.chunk_tokens < 1):
            raise ValueError(f"batch_tokens {self.batch_tokens} and chunk_tokens {self.chunk_tokens} must be positive")


WHOLE: Final = PassSettings(batch_tokens=8192)  # what every model can do: nothing is recomputed


def use_one_call_layers(model: PreTrainedModel, device: torch.device) -> None:
    """Makes what the layers of ``model`` do in many small operations one call each, where that is faster on ``device``:
    of layers that are in memory."""
    if device.type == "cuda":
        use_one_call_norms(model)
    use_one_call_rotation(model, device)
    use_one_call_gates(model, device)
    use_one_call_adapters(model, device)


@dataclass(frozen=True, slots=True)
class Network:
    """A causal model cut between its last hidden state and its head."""

    body: torch.nn.Module  # ids (B, T) → last hidden state (B, T, D), with key-value cache
    head: torch.nn.Linear  # (D) → (V)
    pads_prompts: bool  # False where a sliding window would count padding as distance
    context: int  # positions that the model has
    layers: tuple[torch.nn.Module, ...]  # of the body, in their order; what recomputation works on
    vocabulary: int  # the head's first rows, which are tokens; those after them are padding
    by_lengths: bool = False  # completions attend to their prompts by a GPU's kernels, not to copies under a mask
    packs: bool = False  # the tokens of a micro-batch of short rows can be one row, without padding

    @classmethod
    def of(cls, model: PreTrainedModel | PeftModel, vocabulary: int | None = None) -> Network:
        """Cuts ``model``, which from now on attends by ``grouped_attention``.

        ``vocabulary``: how many ids the tokenizer has (``TokenTable.vocabulary``), by default all rows of the head. An
        engine draws from these alone (``Draws``), so probabilities here are among them as well.

        Raises ``ConfigurationError`` for a model without a plain linear head.
        """
        causal: Any = model
        if hasattr(causal, "get_base_model"):  # a PEFT adapter: its layers sit inside the base model
            causal = causal.get_base_model()
        head: object = causal.get_output_embeddings()
        if not isinstance(head, torch.nn.Linear):
            raise ConfigurationError(f"{type(causal).__name__} has no linear head: choose another policy.model")
        layer_types = getattr(causal.config, "layer_types", None) or ()
        slides = "sliding_attention" in layer_types or bool(getattr(causal.config, "sliding_window", None))
        context = int(getattr(causal.config, "max_position_embeddings", 1 << 20))
        body: torch.nn.Module = causal.base_model
        layers = tuple(module for module in body.modules() if isinstance(module, GradientCheckpointingLayer))
        use_grouped_attention(causal)
        use_one_call_layers(causal, head.weight.device)
        rows = len(head.weight)
        tokens = rows if vocabulary is None else min(vocabulary, rows)
        by_lengths = not slides and attends_by_lengths(causal, head.weight.device)
        packs = not slides and attends_packed(causal, head.weight.device)
        return cls(body, head, not slides, context, layers, tokens, by_lengths, packs)

    def last_hidden(self, passes: PassSettings, cache: PassCache | PackedCache, **inputs: Tensor | None) -> Tensor:
        """Returns the body's last hidden state (B, T, D)."""
        with ExitStack() as stack:
            if passes.recompute and isinstance(cache, PassCache):
                stack.enter_context(recomputed_layers(self.layers, cache, passes.chunk_tokens))
            hidden: Tensor = self.body(**inputs, past_key_values=cache, use_cache=True).last_hidden_state
        return hidden

    def begun(self, passes: PassSettings, cache: PassCache, **inputs: Tensor | None) -> Callable[[], Tensor]:
        """Returns what gives ``last_hidden``. The calls of a micro-batch, that for its prompts first, are all begun
        before the first is asked for, and are asked for in their order."""
        return partial(self.last_hidden, passes, cache, **inputs)

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Returns what ``work`` returns for each of ``items``. It makes a forward pass of one micro-batch by
        ``completion_logps`` and goes back by ``backward``; afterwards the gradients of all are in the parameters."""
        return [work(item) for item in items]

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of ``loss``, which rests on the thread's last forward pass."""
        loss.backward()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """The completions of one forward and backward pass, and the prompts that they follow."""

    prompts: tuple[tuple[int, ...], ...]  # K
    prompt_of: tuple[int, ...]  # (B,) index into ``prompts``
    completions: tuple[TrainingCompletion, ...]  # B
    in_step: bool = False  # with other devices, which hold the model's shards: two calls of the body, whatever is in it

    def padded_tokens(self) -> int:
        """Returns its size as ``plan_micro_batches`` counts it."""
        rows = len(self.completions) * max(each.row_length for each in self.completions)
        return rows + len(self.prompts) * max(len(each) for each in self.prompts)


def plan_micro_batches(
    groups: Sequence[TrainingGroup], *, batch_tokens: int, pads_prompts: bool = True
) -> list[MicroBatch]:
    """Packs every completion into micro-batches of at most ``batch_tokens`` padded tokens; a longer one gets its own.

    Groups of similar length go together, so that there is little padding. A group that does not fit is split, and its
    prompt is computed once more. Deterministic.
    """
    micro_batches: list[MicroBatch] = []
    prompts: list[tuple[int, ...]] = []
    rows: list[tuple[int, TrainingCompletion]] = []
    longest_prompt = longest_row = 0

    def close() -> None:
        nonlocal longest_prompt, longest_row
        if rows:
            micro_batches.append(MicroBatch(tuple(prompts), tuple(i for i, _ in rows), tuple(c for _, c in rows)))
        prompts.clear()
        rows.clear()
        longest_prompt = longest_row = 0

    def length_order(group: TrainingGroup) -> tuple[int, int]:
        return len(group.prompt_ids), max(c.row_length for c in group.completions)

    for group in sorted((g for g in groups if g.completions), key=length_order):
        prompt_length = len(group.prompt_ids)
        if prompts and not pads_prompts and longest_prompt != prompt_length:
            close()
        placed = False  # whether this group's prompt is in the open micro-batch
        for completion in sorted(group.completions, key=lambda c: c.row_length):
            prompt_tokens = (len(prompts) + (not placed)) * max(longest_prompt, prompt_length)
            row_tokens = (len(rows) + 1) * max(longest_row, completion.row_length)
            if rows and prompt_tokens + row_tokens > batch_tokens:
                close()
                placed = False
            if not placed:
                prompts.append(group.prompt_ids)
                longest_prompt = max(longest_prompt, prompt_length)
                placed = True
            rows.append((len(prompts) - 1, completion))
            longest_row = max(longest_row, completion.row_length)
    close()
    return micro_batches


def completion_logps(
    network: Network, micro_batch: MicroBatch, passes: PassSettings = WHOLE, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Returns log-probability and entropy of every completion token, (N,) each, completion after completion.

    Both are of softmax(logits / temperature) over the network's vocabulary, in float32, and carry gradients to the
    network's parameters. Only ``backward`` finds all of these: ``torch.autograd.grad`` misses recomputed layers, and
    the head where it is tied.
    """
    embedding = tied_embedding(network.body, network.head)
    with ExitStack() as stack:
        if embedding is not None:
            stack.enter_context(gradient_by_rows(embedding))
        hidden, targets = completion_hidden(network, micro_batch, passes)
    # Only now: where the model is in shards, the body's pass has put the head together.
    weight: Tensor = network.head.weight if embedding is None else with_early_gradient(embedding.weight)
    return linear_logps(
        hidden, weight, targets, network.head.bias, temperature=temperature, vocabulary=network.vocabulary
    )


def completion_hidden(network: Network, micro_batch: MicroBatch, passes: PassSettings = WHOLE) -> tuple[Tensor, Tensor]:
    """Returns the hidden states from which the head predicts each completion token, (N, D), and these tokens, (N,)."""
    if network.packs and not passes.recompute and not micro_batch.in_step:
        packed = PackedTokens.of(micro_batch)
        if packed.seen <= PACKED_SEEN * len(packed.ids):
            return _packed_hidden(network, packed, passes)
    device = network.head.weight.device
    prompt_cache = PassCache()
    prompt_ids = _right_padded(micro_batch.prompts)  # (K, P)
    prompt_hidden = network.begun(passes, prompt_cache, input_ids=sent(prompt_ids, device))
    batches = deque[tuple[list[int], int, Tensor, Callable[[], Tensor] | None]]()
    for rows in _row_batches(micro_batch):
        answers = [micro_batch.completions[row].row_ids for row in rows]
        prompt_of = sent(torch.tensor([micro_batch.prompt_of[row] for row in rows]), device)  # (B,)
        width, later = max(map(len, answers)), None
        if width > 1:
            before = [len(micro_batch.prompts[micro_batch.prompt_of[row]]) for row in rows]
            row_lengths = None
            if network.by_lengths:
                own = torch.tensor([len(answer) - 1 for answer in answers])  # (B,)
                of_prompts = torch.tensor([len(prompt) for prompt in micro_batch.prompts])  # (K,)
                row_lengths = RowLengths.of(prompt_of, sent(own, device), sent(of_prompts, device))
            cache = PassCache(prompt_cache, PromptRows(prompt_of, max(before), row_lengths))
            # The last token needs no forward pass: nothing follows it.
            ids = sent(_right_padded([answer.tolist() for answer in answers])[:, :-1], device)  # (B, T-1)
            later = _begun_on_prompts(network, passes, cache, ids, before)
        batches.append((rows, width, prompt_of, later))
    # Which tokens are real is known here: a mask on the device would have to be read back to know how many they are.
    ends = [row * prompt_ids.shape[1] + len(prompt) - 1 for row, prompt in enumerate(micro_batch.prompts)]
    last_hidden = prompt_hidden().flatten(0, 1).index_select(0, sent(torch.tensor(ends), device))  # (K, D)
    starts = np.cumsum([0, *(len(c.token_ids) for c in micro_batch.completions)])
    places, hidden = list[NDArray[np.int64]](), list[Tensor]()
    while batches:  # what was computed of one is free before the next is
        rows, width, prompt_of, later = batches.popleft()
        states = last_hidden[prompt_of][:, None]  # (B, 1, D)
        if later is not None:
            states = torch.cat([states, later()], dim=1)  # (B, T, D)
        learnt = [micro_batch.completions[row].row_places for row in rows]
        real = np.concatenate([row * width + of_row for row, of_row in enumerate(learnt)])
        places.extend(starts[row] + np.arange(len(of_row)) for row, of_row in zip(rows, learnt, strict=True))
        hidden.append(states.flatten(0, 1).index_select(0, sent(torch.from_numpy(real), device)))
    if micro_batch.in_step and max(c.row_length for c in micro_batch.completions) == 1:
        first = sent(prompt_ids[:1, :1], device)
        hidden[-1] = hidden[-1] + 0 * network.last_hidden(passes, PassCache(), input_ids=first).sum()
    targets = sent(torch.from_numpy(np.concatenate([c.token_ids for c in micro_batch.completions])), device)
    if len(hidden) == 1:
        return hidden[0], targets
    order = np.argsort(np.concatenate(places))  # from batches by length back to the completions' order
    return torch.cat(hidden).index_select(0, sent(torch.from_numpy(order), device)), targets


@dataclass(frozen=True, slots=True, eq=False)
class PackedTokens:
    """The N tokens of a micro-batch that need a forward pass, one after the other: of each prompt, then of each row but
    the last, which nothing follows."""

    ids: NDArray[np.int64]  # (N,)
    positions: NDArray[np.int64]  # (N,) of each in its own sequence
    spans: NDArray[np.int64]  # (N, 3) what each sees, as ``AttendPacked`` takes it
    learnt: NDArray[np.int64]  # (L,) the token before each that is learnt from
    targets: NDArray[np.int64]  # (L,) these

    @classmethod
    def of(cls, micro_batch: MicroBatch) -> PackedTokens:
        prompts, of_row = micro_batch.prompts, np.array(micro_batch.prompt_of)
        rows = [completion.row_ids[:-1] for completion in micro_batch.completions]
        prompt_lengths, lengths = np.array([len(ids) for ids in prompts]), np.array([len(ids) for ids in rows])
        prompt_ends = prompt_lengths.cumsum()
        starts = prompt_ends[-1] + lengths.cumsum() - lengths
        none = np.zeros_like(prompt_ends)
        of_prompts = np.stack([none, none, prompt_ends - prompt_lengths], axis=1)
        of_rows = np.stack([(prompt_ends - prompt_lengths)[of_row], prompt_ends[of_row], starts], axis=1)
        spans = np.concatenate([of_prompts.repeat(prompt_lengths, axis=0), of_rows.repeat(lengths, axis=0)])
        places = [completion.row_places for completion in micro_batch.completions]
        first = prompt_ends[of_row] - 1  # what a row's first token follows; the others follow their neighbour
        before = [np.where(of == 0, end, start + of - 1) for of, end, start in zip(places, first, starts, strict=True)]
        return cls(
            np.concatenate([*(np.array(ids) for ids in prompts), *rows]),
            np.arange(len(spans)) - spans[:, 2] + spans[:, 1] - spans[:, 0],
            spans,
            np.concatenate(before),
            np.concatenate([completion.token_ids for completion in micro_batch.completions]),
        )

    @property
    def seen(self) -> int:
        """How many tokens all of them see together."""
        return int(self.positions.sum()) + len(self.ids)


def _packed_hidden(network: Network, packed: PackedTokens, passes: PassSettings) -> tuple[Tensor, Tensor]:
    ids, positions, learnt, targets = map(
        torch.from_numpy, (packed.ids, packed.positions, packed.learnt, packed.targets)
    )
    cache = PackedCache(packed.spans)
    hidden = network.last_hidden(passes, cache, input_ids=ids[None], position_ids=positions[None])
    return hidden[0].index_select(0, learnt), targets


def _row_batches(micro_batch: MicroBatch) -> list[list[int]]:
    """Returns which completions run at once, those of a prompt side by side. In step with other devices all do: each
    call gathers every weight."""
    lengths = [c.row_length for c in micro_batch.completions]
    batches = [list(range(len(lengths)))] if micro_batch.in_step else rows_by_length(lengths)
    return [sorted(rows, key=micro_batch.prompt_of.__getitem__) for rows in batches]


def rows_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Returns rows 0 to B - 1 in batches whose tokens after the first are within a factor of two: little is padded."""
    batches: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        batches.setdefault((length - 1).bit_length(), []).append(row)
    return [batches[size] for size in sorted(batches)]


def _begun_on_prompts(
    network: Network, passes: PassSettings, cache: PassCache, ids: Tensor, prompt_lengths: Sequence[int]
) -> Callable[[], Tensor]:
    """Returns what gives the last hidden state (B, T, D) of ids (B, T), each row after its prompt in ``cache``.

    Padding behind ids needs no mask, since no real token attends to what follows it; padding behind prompts does,
    unless attention goes by lengths.
    """
    before = sent(torch.tensor(prompt_lengths), ids.device)[:, None]  # (B, 1)
    mask = None
    if min(prompt_lengths) < max(prompt_lengths) and not network.by_lengths:
        prompt_columns = torch.arange(max(prompt_lengths), device=ids.device)  # (P,)
        mask = torch.cat([prompt_columns < before, torch.ones_like(ids, dtype=torch.bool)], dim=1)  # (B, P + T)
    positions = before + torch.arange(ids.shape[1], device=ids.device)  # (B, T)
    return network.begun(passes, cache, input_ids=ids, attention_mask=mask, position_ids=positions)


def _right_padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """Returns (B, T) int64, padded with 0, which no real token attends to."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *(0,) * (width - len(row))] for row in rows], dtype=torch.int64)


@torch.no_grad()
def check_network(model: PreTrainedModel | PeftModel, network: Network, *, recompute: bool = False) -> None:
    """Compares this module's log-probabilities with the model's own logits on a few fixed tokens.

    Raises ``ConfigurationError`` for an architecture that this module does not compute correctly: logits that are
    scaled or capped after the head, a cache that is not keys and values, or layers that cannot be recomputed. The
    model's own logits are rounded to its dtype, ours are not, and the hidden states under both are, in every layer. Two
    layers of bfloat16 may move them by an ε of that dtype times the largest logit, .12 nats at a logit of 16; as these
    roundings are independent, L layers by √(L/2) of it.
    """
    layers = network.body.config.get_text_config().num_hidden_layers  # type: ignore[union-attr, operator]
    if recompute and len(network.layers) != layers:
        raise ConfigurationError(
            f"{len(network.layers)} of the {layers} layers of {type(model).__name__} can be recomputed: "
            "set learner.recompute = false, or choose another policy.model"
        )
    ids = [(7 * i + 3) % network.vocabulary for i in range(12)]
    device = network.head.weight.device
    logits: Tensor = model(input_ids=torch.tensor([ids], device=device)).logits[0, :-1, : network.vocabulary]
    full, depth = logits.float(), max(1.0, math.sqrt(layers / 2))
    rounding = torch.finfo(logits.dtype).eps * float(logits.abs().max()) * depth
    expected = full.log_softmax(-1).gather(-1, torch.tensor(ids[1:], device=device)[:, None])[:, 0]  # (11,)
    cuts = (5, 8) if network.pads_prompts else (5,)  # two lengths, so that padding is checked too
    completions = tuple(
        TrainingCompletion(
            np.array(ids[cut:]), Alignment(np.arange(12 - cut), np.zeros(12 - cut, np.float32), 0), 0.0, SELF
        )
        for cut in cuts
    )
    micro_batch = MicroBatch(tuple(tuple(ids[:cut]) for cut in cuts), tuple(range(len(cuts))), completions)
    ours, _ = completion_logps(network, micro_batch, PassSettings(24, recompute, 5 if recompute else None))
    worst = float((ours - torch.cat([expected[cut - 1 :] for cut in cuts])).abs().max())
    if not worst <= HEAD_TOLERANCE + rounding:
        raise ConfigurationError(
            f"{type(model).__name__}: log-probabilities from its last hidden state differ from the model's own by "
            f"{worst:.3g} nats (limit {HEAD_TOLERANCE + rounding:.3g}): this architecture cannot be trained yet, "
            "choose another policy.model"
        )
