"""A model's ``config.json``, checked before a library builds what it describes. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from protocol.errors import ConfigurationError

# Several times what any published model has: a number above cannot be meant. Both naming styles of transformers.
BOUNDS: Final[Mapping[str, int]] = {
    "num_hidden_layers": 1 << 10,
    "n_layer": 1 << 10,
    "hidden_size": 1 << 17,
    "n_embd": 1 << 17,
    "intermediate_size": 1 << 20,
    "n_inner": 1 << 20,
    "num_attention_heads": 1 << 12,
    "n_head": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 14,
    "vocab_size": 1 << 22,
    "max_position_embeddings": 1 << 26,
    "n_positions": 1 << 26,
    "num_experts": 1 << 13,
    "num_local_experts": 1 << 13,
}
_LAYER: Final = re.compile(r"(?:^|\.)(\d+)\.")


def read_config(folder: Path) -> dict[str, Any]:
    """Returns the content of ``config.json``. Raises ``ConfigurationError`` if it is not a JSON object, names no
    ``model_type``, describes weights that are quantised, or has a size out of ``BOUNDS``."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not readable as JSON ({error}): fetch the model again") from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"{path} is not a JSON object: fetch the model again")
    if not isinstance(config.get("model_type"), str):
        raise ConfigurationError(
            f"{path} names no model_type: name the folder of a whole language model (of an adapter's, its base model)"
        )
    quantized = config.get("quantization_config")
    if quantized is not None:
        method = quantized.get("quant_method", "unknown") if isinstance(quantized, dict) else quantized
        raise ConfigurationError(
            f"{folder} holds weights that are quantised already ({method}): name the original model, and set "
            "policy.four_bit = true to hold it in 4 bits"
        )
    for key, most in BOUNDS.items():
        value = config.get(key)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            raise ConfigurationError(
                f"{path}: {key} is {value!r:.40}, expected a whole number from 1 to {most:,}: the file is damaged or "
                "not a model's; fetch the model again"
            )
    return config


def check_layers(folder: Path, config: Mapping[str, Any], tensor_names: Iterable[str]) -> None:
    """Raises ``ConfigurationError`` if ``config`` claims more layers than the tensors' names count."""
    claimed = config.get("num_hidden_layers", config.get("n_layer"))
    found = [int(match.group(1)) + 1 for name in tensor_names if (match := _LAYER.search(name)) is not None]
    if claimed is not None and found and claimed > max(found):
        raise ConfigurationError(
            f"{folder / 'config.json'} claims {claimed} layers, and the weights beside it have {max(found)}: a file is "
            "missing or of another model; fetch the model again"
        )
