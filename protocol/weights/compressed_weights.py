"""The blob with which a node averages a whole model: a sparse update, and a slice of its weights.

``b"SLC1"``, a header, the sparse update as a whole (``protocol.weights.sparse_update``), and the slice's codes
(``protocol.weights.weight_slice``). ``docs/protocol.md`` gives every byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
from msgspec import Meta, Struct

from protocol import limits
from protocol.messages import Hash16
from protocol.weights.sparse_update import decode_update
from protocol.weights.sparsify import SparseTensor
from protocol.weights.tensor_frame import check_layout, column, cut_sections, join_frame, open_header
from protocol.weights.tensor_layout import TensorLayout
from protocol.weights.weight_slice import (
    MAX_BITS,
    MAX_STRIDE,
    WeightSlice,
    pack_codes,
    packed_bytes,
    unpack_slice,
)

ENCODING: Final = "sparse-2bit"  # its name in offers
COMPRESSED_MAGIC: Final = b"SLC1"


class _Header(Struct, frozen=True, array_like=True):
    """T is the number of tensors."""

    layout: Hash16
    update_bytes: Annotated[int, Meta(ge=1, le=limits.BLOB_BYTES)]
    stride: Annotated[int, Meta(ge=1, le=MAX_STRIDE)]
    phase: Annotated[int, Meta(ge=0, lt=MAX_STRIDE)]
    bits: Annotated[int, Meta(ge=1, le=MAX_BITS)]
    steps: bytes  # T float32


@dataclass(frozen=True, slots=True, eq=False)
class Compressed:
    """The content of a partner's blob: its update, with tensors in the layout's order, and its slice."""

    update: list[SparseTensor]
    part: WeightSlice


def encode_compressed(layout: TensorLayout, update: bytes, part: WeightSlice) -> bytes:
    """Returns the blob of a slice and of an update, which are this node's own: neither is checked.

    ``update`` is what ``encode_update`` returned for ``layout``. ``part.steps`` has one step for each tensor, (T,).
    """
    header = _Header(layout.digest, len(update), part.stride, part.phase, part.bits, part.steps.astype("<f4").tobytes())
    return join_frame(COMPRESSED_MAGIC, header, [update, pack_codes(part)])


def decode_compressed(blob: bytes | memoryview, layout: TensorLayout) -> Compressed:
    """The update and the slice, with every guarantee of ``SparseTensor`` and ``WeightSlice``.

    Allocates at most a few times the blob's size. Raises ``MalformedError`` or ``OversizedError``;
    ``IntegrityError`` if the blob is for another layout.
    """
    header, body = open_header(memoryview(blob), COMPRESSED_MAGIC, _Header)
    check_layout(header.layout, layout)
    steps = column(header.steps, layout, "<f4", "steps").astype(np.float32)
    coded = packed_bytes(layout, header.stride, header.phase, header.bits)
    update, codes = cut_sections(body, [header.update_bytes, coded])
    part = unpack_slice(layout, codes, steps, stride=header.stride, phase=header.phase, bits=header.bits)
    return Compressed(decode_update(update, layout), part)
