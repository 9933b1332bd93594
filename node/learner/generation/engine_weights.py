"""How the learner's weights reach its engine: in which form, and what follows when the engine refuses one.

An engine in this process gets the tensors: a copy costs less than finding what changed, and cannot go wrong. Where
bytes must cross a pipe or a network the opposite holds: after a step at learning rate 1e-6 about 1 % of bf16 weights
differ, a diff is a hundred times smaller than the weights, and its target's hash shows whether it arrived
(``scripts/bench/engine_weights.py``).

The base of the next diff advances only once the engine has taken an update. An engine that refuses one keeps its
weights and version, and gets the whole weights at once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from node.engines.encoded_weights import EncodedWeights, rounded
from node.engines.engine import Engine
from node.kernels.weight_diff_kernels import encode_diff_fast, patterns_of, weights_hash_fast
from node.policy.device import free_cached_blocks
from node.policy.weight_layout import layout_of
from protocol.errors import ProtocolError
from protocol.weights.dense_weights import dense_bytes, encode_dense
from protocol.weights.tensor_layout import TensorLayout

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Form:
    """How an engine gets new weights, and why."""

    kind: Literal["tensors", "diff", "dense"]
    reason: str


@dataclass(frozen=True, slots=True)
class EngineUpdate:
    """An update that an engine has taken."""

    form: Form
    size_bytes: int | None  # of the blob; None for tensors


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """Weights in bf16, in the layout's order, and their hash."""

    layout: TensorLayout
    target: bytes
    tensors: list[Tensor]


def form_of(*, in_process: bool, dense_bytes: int = 0, diff_bytes: int | None = None) -> Form:
    """Returns the form to send. ``diff_bytes`` is the size of the diff from what the engine holds, None if unknown."""
    if in_process:
        return Form("tensors", "in this process a copy costs less than comparing and hashing")
    if diff_bytes is None:
        return Form("dense", "it is not known which weights the engine holds")
    if diff_bytes >= dense_bytes:
        return Form("dense", f"so much changed that a diff has {diff_bytes} bytes, all weights {dense_bytes}")
    return Form("diff", f"a diff has {diff_bytes} bytes, all weights {dense_bytes}")


class EngineWeights:
    """Brings one engine to the learner's weights. Call it from one thread at a time, never while the engine generates.

    Memory: for an engine elsewhere two bf16 copies of the trained weights, those it holds and those it gets next.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: _Held | None = None  # what the engine has taken last
        self._spare: list[Tensor] | None = None
        self._logged: str | None = None  # the kind of form
        engine.restores_from(self.whole)

    def load(self, version: int, weights: Mapping[str, Tensor]) -> EngineUpdate:
        """Loads ``weights``, which may be changed as soon as this returns.

        Raises like ``Engine.load_weights`` where the engine refuses even the whole weights.
        """
        if not self._engine.in_process or any(weight.device.type == "mps" for weight in weights.values()):
            # An engine elsewhere may be on the same card; on Apple's GPUs the blocks are the whole machine's memory,
            # and it would swap rather than take them back.
            free_cached_blocks()
        if self._engine.in_process:
            self._engine.load_weights(version, weights)
            sent = EngineUpdate(form_of(in_process=True), None)
        else:
            sent = self._send(version, weights)
        if sent.form.kind != self._logged:
            self._logged = sent.form.kind
            log.info("version %d goes to the engine as %s: %s", version, sent.form.kind, sent.form.reason)
        return sent

    def whole(self) -> EncodedWeights:
        """Returns all of the weights that the engine took last. Raises ``RuntimeError`` where it has taken none."""
        held = self._held
        if held is None:
            raise RuntimeError("the engine has taken no weights yet")
        return EncodedWeights(held.target, encode_dense(held.layout, patterns_of(held.tensors)))

    def _send(self, version: int, weights: Mapping[str, Tensor]) -> EngineUpdate:
        layout = layout_of(weights)
        room, self._spare = self._spare, None
        present = rounded(layout, weights, room)
        target = weights_hash_fast(layout, present)
        held, self._held = self._held, None  # until the engine has taken this, nothing is known
        blob = b""
        if held is not None:
            blob = encode_diff_fast(layout, held.tensors, present, base_hash=held.target, target_hash=target)
        form = form_of(in_process=False, dense_bytes=dense_bytes(layout), diff_bytes=len(blob) if held else None)
        if form.kind == "diff":
            try:
                self._engine.load_weights(version, EncodedWeights(target, blob))
            except ProtocolError as error:
                form = Form("dense", f"the engine refused a diff ({error.reason}): {error}")
                log.warning("version %d goes to the engine whole: %s", version, form.reason)
        if form.kind == "dense":
            blob = encode_dense(layout, patterns_of(present))
            self._engine.load_weights(version, EncodedWeights(target, blob))
        self._held, self._spare = _Held(layout, target, present), held.tensors if held is not None else None
        return EngineUpdate(form, len(blob))
