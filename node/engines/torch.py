"""The embedded engine: continuous batching over a decoder that shares the policy's weights.

A prompt is computed once for all its completions. Rows whose completion has ended leave the batch; waiting completions
join as soon as an eighth of the rows is free. Token log-probabilities come from the pass that sampled them. Equal seeds
and equal calls give equal samples: a token depends on the seed, its completion and its position (``draws``), on the
batch around it, on the number of threads, on the layout of the cache and on guesses that were verified only by the
rounding of its logits. Keys and values live for one call: those of old weights are never read under new ones. In
float32 on a CPU, and on a GPU with Triton, a conversation keeps them over all its turns, and each goes at its own pace.
Elsewhere, and where a template writes earlier turns again, conversations go in step, and each turn computes their rows
anew (``turns``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor, nn

from node.engines.batch import Batch, shares_of
from node.engines.cache_size import SPARE_SLOTS
from node.engines.complete_groups import CompleteGroups
from node.engines.decoder import Decoder
from node.engines.drafting.row_drafts import Drafting
from node.engines.draws import Draws
from node.engines.encoded_weights import EncodedWeights, load_encoded
from node.engines.engine import Ended, Enough, GenerationProgress, GenerationRequest, Sample, Sampling, Turns, Weights
from node.engines.generic import GenericDecoder
from node.engines.lean.architectures import architecture_of
from node.engines.lean.decoder import LeanDecoder
from node.engines.resumption import SamplingStart, progress_of, starts_of, token_limit
from node.engines.step_threads import StepThreads
from node.engines.turns import BatchConversations, RunningConversations, in_step
from node.policy.policy import Policy
from node.stages.policy import StagedPolicy
from protocol.streams.engine_batches import HandOver, Sampled

LOOK_EVERY: Final = {"cpu": 1}  # tokens between two looks of the host, by device
LOOK_EVERY_ELSEWHERE: Final = 16  # a completion computes up to 15 tokens after its end
# Weights that a core's cache holds are not what a pass waits for: below this, guesses gain less than their search costs
# (scripts/bench/engine.py --workloads drafts).
DRAFTING_WEIGHTS: Final = 10_000_000


class TorchEngine:
    """``Engine`` on the policy's own device; holds at most ``rows`` sequences at a time.

    Memory: of the weights, copies of the queries', keys' and values' matrices (``AttentionShape.packed_bytes``) and,
    with ``merge_adapters``, of every matrix that an adapter changes; without, an adapter is applied beside it, which is
    slower. During a call and until ``release``, the cache of ``cache_size.cache_bytes`` (begun tokens count as prompt).
    That holds for the lean decoder; the generic one copies no weights, and keeps each row's prompt in the row.

    With ``owns_weights`` the engine samples from a copy of the policy that has trained weights of its own, which is one
    more copy of those; with ``takes_policy`` it takes the policy itself, which nothing else may use. Without either,
    the engine shares the policy's modules: it must not run while the learner changes them, nor between a change and
    ``load_weights``.

    ``shared_prompts``: whether a prompt's keys and values are held once for its completions or in each row, by default
    what is faster (``cache_size.plan_cache``). ``adaptive_threads``: in float32 on a CPU, use at most the threads that
    torch has, and fewer while that is faster (``step_threads``). ``look_every``: tokens between two looks of the host
    at what was sampled, by default 1 on a CPU and 16 elsewhere. ``drafts``: guess what follows from answers sampled
    before and verify it, as far as that is faster (``drafting``), by default for models of ``DRAFTING_WEIGHTS`` and
    more; only in float32 on a CPU with the lean decoder. It changes no sample, within the rounding of logits.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        rows: int,
        seed: int,
        owns_weights: bool = False,
        takes_policy: bool = False,
        merge_adapters: bool = True,
        shared_prompts: bool | None = None,
        adaptive_threads: bool = True,
        look_every: int | None = None,
        drafts: bool | None = None,
    ) -> None:
        if look_every is not None and not 1 <= look_every <= SPARE_SLOTS:
            raise ValueError(f"look_every is {look_every}: 1 to {SPARE_SLOTS}")
        self.owns_weights: Final = owns_weights or takes_policy
        self._policy = policy = policy.separate() if owns_weights and not takes_policy else policy
        self.rows = rows
        self._random = random.Random(seed)  # of calls without a seed
        self._decoder = decoder_for(policy, merge_adapters=merge_adapters, shared_prompts=shared_prompts)
        exact = policy.device.type == "cpu" and policy.dtype == torch.float32
        # A step that waits for others says nothing of threads.
        self._threads = StepThreads(adapting=adaptive_threads and exact and self._decoder.batches == 1)
        self._look_every = (
            look_every if look_every is not None else LOOK_EVERY.get(policy.device.type, LOOK_EVERY_ELSEWHERE)
        )
        drafts = policy.parameters >= DRAFTING_WEIGHTS if drafts is None else drafts
        verifies = exact and self._look_every == 1 and self._decoder.verifies_drafts
        self.drafting: Final = Drafting() if drafts and verifies else None
        self._version = 0
        self._longest_conversation = 0  # that a row had after its prompt in earlier calls, in tokens
        self._weights_hash: bytes | None = None  # of the weights loaded last, if they came encoded

    @property
    def policy(self) -> Policy:
        """What it samples from."""
        return self._policy

    @property
    def label(self) -> str:
        return "torch"

    @property
    def in_process(self) -> bool:
        return True

    @property
    def converses(self) -> bool:
        """Whether ``sample`` takes conversations."""
        return self._decoder.verifies_drafts

    @property
    def version(self) -> int:
        return self._version

    def load_weights(self, version: int, weights: Weights) -> None:
        """Loads ``weights``: tensors by the names of ``policy.trainable()``, or ``EncodedWeights`` of all of them.

        Tensors that are the live parameters of the engine's modules are used in place; others are copied into them.
        Raises ``KeyError`` for a name that the policy does not train and ``ValueError`` for another shape. For encoded
        weights, raises as ``load_encoded`` does, and ``ValueError`` if the engine shares its modules with the learner.
        """
        live = self._policy.trainable()
        if isinstance(weights, EncodedWeights):
            if not self.owns_weights:
                raise ValueError("encoded weights need an engine that owns its weights: this one has the learner's own")
            load_encoded(weights, live, self._weights_hash)
        else:
            _copy_over(weights, live)
        self._weights_hash = None  # until the decoder's copies, for which memory may run out, are those of ``weights``
        self._decoder.refresh()
        self._weights_hash = weights.target if isinstance(weights, EncodedWeights) else None
        self._version = version

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, turns: Turns | None = None
    ) -> list[list[Sample]]:
        """Raises ``ConfigurationError`` for a prompt that fills the model's context. A completion that would exceed the
        context is cut there, as if ``max_new_tokens`` had been smaller."""
        return [list(progress.samples) for progress in self.advance(requests, sampling, turns=turns)]

    def advance(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        enough: Enough | None = None,
        ended: Ended | None = None,
        turns: Turns | None = None,
    ) -> list[GenerationProgress]:
        """Raises as ``generate``. A begun completion that is at its limit is ended as it is."""
        if turns is not None and (turns.rewrites or not self.converses):
            return in_step(self.advance, requests, sampling, enough, ended, turns)
        eos_ids = self._policy.tokens.eos_ids
        limits = [self._limit(request) for request in requests]
        starts = starts_of(requests, limits)
        conversations = None
        if turns is not None and any(request.conversation_tokens is not None for request in requests):
            conversations = RunningConversations(requests, starts, limits, turns, self._version, eos_ids)
        sequences = self.sample(starts, len(requests), sampling, enough, conversations=conversations)
        if conversations is not None:
            conversations.settle()
        reached = None if conversations is None else conversations.reached
        return progress_of(requests, starts, sequences, limits, self._version, eos_ids, reached)

    def sample(
        self,
        starts: Sequence[SamplingStart],
        groups: int,
        sampling: Sampling,
        enough: Enough | None = None,
        hand_over: HandOver | None = None,
        conversations: BatchConversations | None = None,
    ) -> list[Sampled]:
        """Returns what was sampled of each completion, in the order of the starts, of which each belongs to the group
        ``request`` of ``groups``; ``enough`` as of ``advance``. ``hand_over`` gets all completions of a group as soon
        as it is complete; these are then empty in what is returned. So are actions that ``conversations`` has."""
        if not starts:
            return []
        counted = None if enough is None and hand_over is None else CompleteGroups(enough, starts, groups)
        shares = shares_of(starts, min(self._decoder.batches, self._rows))
        seed = self._random.getrandbits(64) if sampling.seed is None else sampling.seed

        def sampled(decoder: Decoder[Any], share: range) -> list[Sampled]:
            batch = Batch(
                decoder,
                starts,
                self._rows // len(shares),
                counted,
                only=share,
                look_every=self._look_every,
                threads=self._threads,
                drafting=self.drafting,
                most_positions=self._rows,
                hand_over=hand_over,
                conversations=conversations,
                longest_completion=0 if conversations is None else self._longest_conversation,
            )
            draws = Draws(seed, sampling.temperature, self._policy.device, self._policy.tokens.vocabulary)
            with torch.inference_mode():
                found = batch.run(draws, self._policy.tokens.eos_ids)
            if conversations is not None:
                self._longest_conversation = batch.longest_completion
            return found

        with _evaluating(self._policy.model):
            return list(chain(*self._decoder.side_by_side([partial(sampled, share=each) for each in shares])))

    @property
    def rows(self) -> int:
        """The most sequences of later calls."""
        return self._rows

    @rows.setter
    def rows(self, rows: int) -> None:
        if rows < 1:
            raise ValueError(f"rows is {rows}: at least 1")
        self._rows = rows

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values held now, by rows, prompts and their masks."""
        return self._decoder.cache_bytes

    def remember(self, prompt_ids: Sequence[int], answers: Sequence[Sequence[int]]) -> None:
        """An answer with a token that the model does not have is left out."""
        if self.drafting is None:
            return
        for answer in answers:
            if min(answer, default=0) >= 0 and max(answer, default=0) < self._policy.vocabulary:
                self.drafting.index.remember(prompt_ids, answer)

    def restores_from(self, whole: Callable[[], EncodedWeights]) -> None:
        """Nothing to do: what is in the learner's process is lost with it."""

    def release(self) -> None:
        self._decoder.release()

    def _limit(self, request: GenerationRequest) -> int:
        return token_limit(request, vocabulary=self._policy.vocabulary, context=self._policy.context)


@torch.no_grad()
def _copy_over(weights: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> None:
    """Checks all shapes before writing the first tensor."""
    for name, tensor in weights.items():
        if tensor.shape != live[name].shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; the policy's has {tuple(live[name].shape)}")
    for name, tensor in weights.items():
        if tensor is not live[name]:
            live[name].copy_(tensor)


def decoder_for(policy: Policy, *, merge_adapters: bool = True, shared_prompts: bool | None = None) -> Decoder[Any]:
    """Returns the lean decoder if it covers the model, otherwise the generic one; where layers are on other machines,
    the one that goes through them."""
    if isinstance(policy, StagedPolicy):
        return policy.decoder()
    architecture = architecture_of(policy.base.config)
    if architecture is None:
        return GenericDecoder(policy.base)
    return LeanDecoder(policy.base, architecture, merge_adapters=merge_adapters, shared_prompts=shared_prompts)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Switches dropout off while sampling, and restores the model's mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
