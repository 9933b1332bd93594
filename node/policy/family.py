"""The family of a policy: two nodes of one family may average weights.

``family`` = SHA-256[:16] of (architecture, tokenizer fingerprint, base weights, names and shapes of what is trained),
of the 4-bit format where the base is held in it, and, for an adapter, of how its A is drawn (``first_factors``). The
base weights are hashed as they are in the files, before any training and independently of the dtype they are loaded in,
so a policy keeps its family while it learns and on any hardware.

4 bits are set apart: an adapter over a 4-bit base learns to make up for the rounding of that base (QLoRA, arXiv
2305.14314). Rollouts are exchanged between them as between any two families.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from transformers import PretrainedConfig

from node.policy.first_factors import FIRST_FACTORS, is_first_factor

FAMILY_BYTES: Final = 16
FOUR_BIT_FORMAT: Final = "nf4, blocks of 64, scales in 8 bits"
# Keys of a model's configuration that describe its origin or how it is run, not what it computes.
_INCIDENTAL_KEYS: Final = frozenset(
    {"_name_or_path", "transformers_version", "architectures", "auto_map", "dtype", "torch_dtype", "use_cache"}
    | {"bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "problem_type"}
    | {"output_attentions", "output_hidden_states", "return_dict", "quantization_config"}
)


def family_of(
    config: PretrainedConfig,
    tokenizer: bytes,
    base_weights: bytes,
    trained: Mapping[str, tuple[int, ...]],
    *,
    four_bit: bool,
) -> bytes:
    """Returns the hash of what two policies must have in common to average weights."""
    identity = {
        "architecture": _architecture(config),
        "tokenizer": tokenizer.hex(),
        "base_weights": base_weights.hex(),
        "trained": sorted((name, list(shape)) for name, shape in trained.items()),
    }
    if four_bit:
        identity["base_format"] = FOUR_BIT_FORMAT
    if any(is_first_factor(name) for name in trained):
        identity["adapter"] = FIRST_FACTORS
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(b"starling/family/1\0" + canonical.encode()).digest()[:FAMILY_BYTES]


def _architecture(config: PretrainedConfig) -> dict[str, Any]:
    """Returns what differs from the model type's defaults, so that a key added by a library version has no effect."""
    defaults = type(config)().to_dict()
    own = {key: value for key, value in config.to_dict().items() if key not in _INCIDENTAL_KEYS}
    differing = {key: value for key, value in own.items() if key not in defaults or defaults[key] != value}
    return differing | {"model_type": config.model_type}
