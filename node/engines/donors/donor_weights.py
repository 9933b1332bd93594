"""The learner's weights for all its donors: two bf16 copies in all, and the last diffs between versions.

Donors are of unlike speed, so that one may hold the version before last while another has the newest. Each gets the
diffs from what it holds, one after another, where these are known and shorter than everything; otherwise all weights.
A donor that was away tells the hash of what it holds, and gets diffs from there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from node.engines.encoded_weights import EncodedWeights, rounded
from node.kernels.weight_diff_kernels import encode_diff_fast, patterns_of, weights_hash_fast
from protocol.weights.dense_weights import dense_bytes, encode_dense
from protocol.weights.tensor_layout import TensorLayout

DIFFS: Final = 64  # kept, and together at most as many bytes as all weights have


@dataclass(frozen=True, slots=True)
class Update:
    version: int
    weights: EncodedWeights


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    version: int
    target: bytes
    tensors: list[Tensor]  # bf16 in host memory, in the layout's order


@dataclass(frozen=True, slots=True, eq=False)
class _Diff:
    base: bytes
    update: Update


class DonorWeights:
    """Any thread may call it. Encoding is done by the donor's thread that first asks for a version."""

    def __init__(self) -> None:
        self.version: int | None = None  # the newest; read without the lock, which is held while weights are encoded
        self._lock = threading.Lock()
        self._layout: TensorLayout | None = None
        self._newest: tuple[int, list[Tensor]] | None = None  # copied, and neither hashed nor compared yet
        self._held: _Held | None = None
        self._spare: list[Tensor] | None = None
        self._diffs: deque[_Diff] = deque()

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Copies ``weights``, which may be changed as soon as this returns."""
        with self._lock:
            if self._layout is None:
                self._layout = TensorLayout.of({name: tuple(tensor.shape) for name, tensor in weights.items()})
            room = self._newest[1] if self._newest is not None else self._spare
            self._spare = None
            self._newest = version, rounded(self._layout, weights, room)
            self.version = version

    def updates_from(self, held: bytes | None, *, is_loaded: bool) -> list[Update]:
        """Returns what leads from the weights with the hash ``held`` to the newest; nothing where it holds these.

        ``is_loaded``: they were loaded in this session. Otherwise there is always an update, if only an empty one: an
        engine that was told no version samples nothing. Raises ``RuntimeError`` before the first ``publish``.
        """
        with self._lock:
            self._prepare()
            newest = self._held
            if newest is None or self._layout is None:
                raise RuntimeError("no weights were published yet")
            diffs = self._diffs_from(held, newest.target)
            if diffs is None:
                blob = encode_dense(self._layout, patterns_of(newest.tensors))
                return [Update(newest.version, EncodedWeights(newest.target, blob))]
            if diffs or is_loaded:
                return diffs
            return [Update(newest.version, EncodedWeights(newest.target, self._diff(newest, newest)))]

    def knows(self, held: bytes | None) -> bool:
        """Whether diffs lead from ``held`` to the newest weights."""
        with self._lock:
            self._prepare()
            return self._held is not None and self._diffs_from(held, self._held.target) is not None

    def _diffs_from(self, held: bytes | None, target: bytes) -> list[Update] | None:
        if held == target:
            return []
        found: list[Update] = []
        for each in self._diffs:
            if found or each.base == held:
                found.append(each.update)
        return found or None

    def _prepare(self) -> None:
        """Hashes the newest weights, and compares them with those before."""
        if self._newest is None or self._layout is None:
            return
        version, tensors = self._newest
        target = weights_hash_fast(self._layout, tensors)
        newest, before = _Held(version, target, tensors), self._held
        self._held, self._newest = newest, None
        if before is None:
            return
        self._spare = before.tensors
        update = Update(version, EncodedWeights(target, self._diff(before, newest)))
        self._diffs.append(_Diff(before.target, update))
        most_bytes = dense_bytes(self._layout)
        while self._diffs and (
            len(self._diffs) > DIFFS or sum(len(each.update.weights.blob) for each in self._diffs) > most_bytes
        ):
            self._diffs.popleft()

    def _diff(self, before: _Held, after: _Held) -> bytes:
        assert self._layout is not None
        return encode_diff_fast(
            self._layout, before.tensors, after.tensors, base_hash=before.target, target_hash=after.target
        )
