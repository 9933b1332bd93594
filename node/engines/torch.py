"""The embedded engine: continuous batching over a decoder that shares the policy's weights.

A prompt is computed once for all its completions. Rows whose completion has ended leave the batch at once; waiting
completions join as soon as an eighth of the rows is free. Token log-probabilities come from the pass that sampled them.
Equal seeds and equal calls give equal samples. Keys and values live for one call: a completion that a later call
resumes is computed again, so that keys and values of old weights are never read under new ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engines.architectures import architecture_of
from node.engines.decoder import Decoder, Prefilled
from node.engines.encoded_weights import EncodedWeights, load_encoded
from node.engines.engine import Enough, GenerationProgress, GenerationRequest, Sample, Sampling, Weights
from node.engines.generic import GenericDecoder
from node.engines.lean import LeanDecoder
from node.engines.resumption import SamplingStart, progress_of, starts_of
from node.engines.sampling import draw
from node.policy.policy import Policy
from protocol.errors import ConfigurationError

PREFILL_TOKENS: Final = 8192  # padded prompt tokens in one forward pass; bounds its activations


class TorchEngine:
    """``Engine`` on the policy's own device; holds at most ``rows`` sequences at a time.

    Memory: keys and values for min(rows, completions) sequences of the longest prompt plus the longest completion of
    the call (begun tokens count as prompt), and for the lean decoder one more copy of the weights.

    With ``owns_weights`` the engine samples from a copy of the policy that has trained weights of its own, which is one
    more copy of those. Without it, the engine shares the policy's modules and must not run while the learner changes
    them.
    """

    def __init__(self, policy: Policy, *, rows: int, seed: int, owns_weights: bool = False) -> None:
        self.rows = rows
        self.owns_weights: Final = owns_weights
        self._policy = policy = policy.separate() if owns_weights else policy
        self._generator = torch.Generator(policy.device).manual_seed(seed)
        self._decoder = decoder_for(policy)
        self._version = 0
        self._weights_hash: bytes | None = None  # of the weights loaded last, if they came encoded

    @property
    def in_process(self) -> bool:
        return True

    @property
    def version(self) -> int:
        return self._version

    @property
    def rows(self) -> int:
        return self._rows

    @rows.setter
    def rows(self, rows: int) -> None:
        if rows < 1:
            raise ValueError(f"rows is {rows}: at least 1")
        self._rows = rows

    def release(self) -> None:
        self._decoder.release()

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
            self._weights_hash = weights.target
        else:
            _copy_over(weights, live)
            self._weights_hash = None
        self._decoder.refresh()
        self._version = version

    def generate(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> list[list[Sample]]:
        """Raises ``ConfigurationError`` for a prompt that fills the model's context. A completion that would exceed the
        context is cut there, as if ``max_new_tokens`` had been smaller."""
        return [list(progress.samples) for progress in self.advance(requests, sampling)]

    def advance(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, enough: Enough | None = None
    ) -> list[GenerationProgress]:
        """Raises as ``generate``. A begun completion that is at its limit is ended as it is."""
        limits = [self._limit(request) for request in requests]
        starts = starts_of(requests, limits)
        if sampling.seed is not None:
            self._generator.manual_seed(sampling.seed)
        if starts:
            count = sum(start.completions for start in starts)
            stop = None if enough is None else _Stop(enough, starts, len(requests))
            batch = _Batch(self._decoder, starts, min(self._rows, count), stop)
            with torch.inference_mode(), _evaluating(self._policy.model):
                history = batch.run(sampling.temperature, self._generator, self._policy.tokens.eos_ids)
        else:
            history = _History()
        sequences = _sequences(history, sum(start.completions for start in starts))
        return progress_of(requests, starts, sequences, limits, self._version, self._policy.tokens.eos_ids)

    def _limit(self, request: GenerationRequest) -> int:
        """Returns the number of new tokens that a completion may have, within the model's context."""
        length = len(request.prompt_ids)
        if length < 1 or request.max_new_tokens < 1 or request.completions < 0:
            raise ValueError(
                f"a request of {request.completions} completions of up to {request.max_new_tokens} tokens after a "
                f"prompt of {length} tokens: at least 0, 1 and 1"
            )
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < self._policy.vocabulary:
            raise ValueError(f"a prompt has token ids outside the model's {self._policy.vocabulary}")
        context: int | None = getattr(self._policy.base.config, "max_position_embeddings", None)
        if context is not None and length >= context:
            raise ConfigurationError(
                f"a prompt of {length} tokens leaves no room in the model's context of {context}: use shorter prompts, "
                "or a model with a longer context"
            )
        return request.max_new_tokens if context is None else min(request.max_new_tokens, context - length)


@torch.no_grad()
def _copy_over(weights: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> None:
    """Checks all shapes before writing the first tensor."""
    for name, tensor in weights.items():
        if tensor.shape != live[name].shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; the policy's has {tuple(live[name].shape)}")
    for name, tensor in weights.items():
        if tensor is not live[name]:
            live[name].copy_(tensor)


def decoder_for(policy: Policy) -> Decoder[Any]:
    """Returns the lean decoder if it covers the model, otherwise the generic one, which also reads a base in 4 bits."""
    architecture = None if policy.four_bit else architecture_of(policy.base.config)
    return GenericDecoder(policy.base) if architecture is None else LeanDecoder(policy.base, architecture)


def joining_count(present: int, waiting: int, rows: int) -> int:
    """Returns how many waiting completions join: all that fit, once an eighth of the rows (or room for all) is free.

    Waiting for an eighth lets several prompts share one forward pass.
    """
    free = rows - present
    return min(free, waiting) if free >= min(waiting, max(1, rows // 8)) else 0


class _Stop:
    """Counts the complete groups and asks ``enough`` whether they suffice."""

    def __init__(self, enough: Enough, starts: Sequence[SamplingStart], groups: int) -> None:
        self._enough = enough
        owners = [start.request for start in starts for _ in range(start.completions)]
        self._group = np.array(owners, dtype=np.int64)  # of each completion
        self._missing = np.bincount(self._group, minlength=groups)  # completions of each group that have not ended

    def ended(self, completions: NDArray[np.int64]) -> None:
        np.subtract.at(self._missing, self._group[completions], 1)

    def now(self) -> bool:
        return self._enough(int((self._missing == 0).sum()))


@dataclass(slots=True)
class _History:
    """Every token sampled, step by step: its completion, its id and its log-probability."""

    completions: list[NDArray[np.int64]] = field(default_factory=list)
    tokens: list[NDArray[np.int64]] = field(default_factory=list)
    logps: list[NDArray[np.float32]] = field(default_factory=list)


class _Batch:
    """The completions of one call, as they join, grow in and leave the decoder's batch."""

    def __init__(
        self,
        decoder: Decoder[Any],
        starts: Sequence[SamplingStart],
        rows: int,
        stop: _Stop | None,
    ) -> None:
        self._decoder, self._starts, self._rows, self._stop = decoder, starts, rows, stop
        self._owners = [index for index, start in enumerate(starts) for _ in range(start.completions)]
        self._waiting = deque(range(len(self._owners)))  # completions, in order; those of one start are neighbours
        self._completion = np.zeros(rows, dtype=np.int64)  # of each row
        self._remaining = np.zeros(rows, dtype=np.int64)  # tokens that each row may still have
        self._present = 0
        # a start of which more rows may join: its index, its prefill, its index there
        self._half_joined: tuple[int, Prefilled[Any], int] | None = None

    def run(self, temperature: float, generator: torch.Generator, eos_ids: Sequence[int]) -> _History:
        history = _History()
        if self._stop is not None and self._stop.now():
            return history
        longest_prompt = max(len(start.prefix_ids) for start in self._starts)
        longest_completion = max(start.limit for start in self._starts)
        crowded = len(self._owners) > self._rows
        self._decoder.begin(self._rows, longest_prompt, longest_completion, crowded=crowded)
        logits: Tensor | None = None
        while True:
            logits = self._admit(logits)
            tokens, logps = draw(logits, temperature, generator)
            sampled = tokens.cpu().numpy()
            history.completions.append(self._completion[: self._present].copy())
            history.tokens.append(sampled)
            history.logps.append(logps.cpu().numpy())
            remaining = self._remaining[: self._present]
            remaining -= 1
            ended = np.isin(sampled, eos_ids) | (remaining == 0)
            if ended.any():
                if self._stop is not None:
                    self._stop.ended(history.completions[-1][ended])
                tokens = tokens[torch.from_numpy(self._release(ended)).to(tokens.device)]
            if self._stop is not None and self._stop.now():
                return history
            if self._present:
                logits = self._decoder.step(tokens)
            elif self._waiting:
                logits = None
            else:
                return history

    def _release(self, ended: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Removes the ended rows. Returns the old index of each remaining row, in their new order."""
        left = self._present - int(ended.sum())
        holes = np.flatnonzero(ended[:left])
        tails = left + np.flatnonzero(~ended[left:])
        order = np.arange(left)
        order[holes] = tails
        self._completion[:left] = self._completion[order]
        self._remaining[:left] = self._remaining[order]
        self._decoder.leave(holes.tolist(), tails.tolist(), left)
        self._present = left
        return order

    def _admit(self, logits: Tensor | None) -> Tensor:
        """Adds waiting completions to the batch. Returns the logits of all rows in it."""
        count = joining_count(self._present, len(self._waiting), self._rows)
        parts = [] if logits is None else [logits]
        chosen = [self._waiting.popleft() for _ in range(count)]
        while chosen:
            prefilled, which, taken = self._prefill(chosen)
            self._decoder.join(prefilled, which)
            parts.append(prefilled.logits[torch.tensor(which, device=prefilled.logits.device)])
            for completion in chosen[:taken]:
                self._completion[self._present] = completion
                self._remaining[self._present] = self._starts[self._owners[completion]].limit
                self._present += 1
            chosen = chosen[taken:]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _prefill(self, chosen: Sequence[int]) -> tuple[Prefilled[Any], list[int], int]:
        """Computes the prompts of the first of ``chosen``, as many as one pass may hold.

        Returns them, the index of each completion's prompt among them, and the number of completions covered.
        """
        first = self._owners[chosen[0]]
        if self._half_joined is not None and self._half_joined[0] == first:
            _, prefilled, index = self._half_joined
            taken = sum(1 for completion in chosen if self._owners[completion] == first)
            return prefilled, [index] * taken, taken
        prompts: list[Sequence[int]] = []
        which: list[int] = []
        longest, last = 0, -1
        for completion in chosen:
            owner = self._owners[completion]
            if owner != last:
                prompt = self._starts[owner].prefix_ids
                longest = max(longest, len(prompt))
                if prompts and longest * (len(prompts) + 1) > PREFILL_TOKENS:
                    break
                prompts.append(prompt)
                last = owner
            which.append(len(prompts) - 1)
        prefilled = self._decoder.prefill(prompts)
        self._half_joined = (last, prefilled, len(prompts) - 1)
        return prefilled, which, len(which)


def _sequences(history: _History, completions: int) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Returns tokens and log-probabilities by completion, from those by step; some may be empty."""
    if not history.completions:
        return [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in range(completions)]
    owners = np.concatenate(history.completions)
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=completions))[:-1]
    tokens = np.split(np.concatenate(history.tokens)[order], ends)
    logps = np.split(np.concatenate(history.logps)[order], ends)
    return list(zip(tokens, logps, strict=True))


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Switches dropout off while sampling, and restores the model's mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
