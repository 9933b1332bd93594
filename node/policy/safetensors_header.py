"""The header of a safetensors file: u64 length, JSON of names, dtypes, shapes and offsets, then the bytes. No torch.

https://huggingface.co/docs/safetensors: the header is at most 100 MB, and the tensors fill the rest of the file.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from protocol.errors import ConfigurationError

MAX_HEADER_BYTES: Final = 100_000_000
DTYPE_BITS: Final = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8,
    "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8,
}  # fmt: skip


class StoredTensor(Struct, frozen=True):
    dtype: str  # as in the file, such as "BF16"
    shape: tuple[int, ...]
    begin: int  # bytes from the beginning of the file
    end: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Returns the tensors in the file, by name.

    Raises ``ConfigurationError`` for a file that is unreadable, not in this format, or shorter than its header says.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(MAX_HEADER_BYTES, size - 8):
                raise ValueError(f"{size:,} bytes, with a header of {length:,}")
            entries: dict[str, Any] = json.loads(file.read(length))
        tensors = {name: _tensor(entry, 8 + length) for name, entry in entries.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{path} is not a readable safetensors file ({error}): fetch the model again"
        ) from error
    end = max((tensor.end for tensor in tensors.values()), default=8 + length)
    if end > size:
        raise ConfigurationError(
            f"{path} is cut short: it has {size:,} bytes, and its header describes {end:,}: fetch the model again"
        )
    return tensors


def _tensor(entry: Any, start: int) -> StoredTensor:
    begin, end = (int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(extent) for extent in entry["shape"])
    dtype = str(entry["dtype"])
    bits = DTYPE_BITS.get(dtype)
    if min(begin, *shape, 0) < 0 or begin > end or (bits is not None and math.prod(shape) * bits != 8 * (end - begin)):
        raise ValueError(f"a tensor of {dtype}{list(shape)} in {end - begin:,} bytes")
    return StoredTensor(dtype, shape, start + begin, start + end)
