"""What a model is called wherever people read it: by its own node and by its peers. Imports no torch."""

from __future__ import annotations

import os

from node.policy.model_files import BUILTIN_PREFIX
from protocol.limits import NAME_BYTES


def model_name(model: str, adapter_rank: int = 0, *, four_bit: bool = False) -> str:
    """Returns the name of ``model`` (``policy.model``) with the adapter that is trained over it, within ``NAME_BYTES``:
    without ``builtin:``, and of a folder or a hub id the last part alone."""
    short = model.removeprefix(BUILTIN_PREFIX).rstrip(os.sep).rsplit("/", 1)[-1] or model
    method = "qlora" if four_bit else "lora"
    name = f"{short}+{method}{adapter_rank}" if adapter_rank else short
    return name.encode()[:NAME_BYTES].decode(errors="ignore")
