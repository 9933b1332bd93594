"""Fingerprints of tokenizers and families of policies, each with the bytes of which it is the hash; an adapter's A."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from scripts.vectors.plain_values import Json

SHAPING: Json = {
    "normalizer": None,
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": False},
    "model": {"type": "WordLevel", "vocab": {"<s>": 0, "a": 1, "é": 2, "\n": 3}, "unk_token": "<s>"},
    "added_tokens": [
        {
            "id": 0,
            "content": "<s>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
    ],
}
ARCHITECTURE: Json = {  # what differs from the defaults of a llama
    "head_dim": 32,
    "hidden_size": 64,
    "model_type": "llama",
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
}
BASE_WEIGHTS = b"\x11" * 32
TRAINED = {"model.norm.weight": (64,), "lm_head.weight": (4, 64)}
FIRST_FACTOR = "base_model.model.model.layers.0.mlp.up_proj.lora_A.default.weight"
ADAPTED = {FIRST_FACTOR: (2, 64), FIRST_FACTOR.replace("lora_A", "lora_B"): (172, 2)}
FOUR_BIT_FORMAT = "nf4, blocks of 64, scales in 8 bits"
FIRST_FACTORS = "first factors from the family, 1"


def fingerprints() -> list[Json]:
    """A tokenizer of four tokens, of which the first ends a completion, and three policies over it."""
    tokens = [b"", b"a", "é".encode(), b"\n"]
    shaping = _canonical(SHAPING)
    hashed = b"".join(
        [
            b"starling/tokenizer/1\0",
            *(len(token).to_bytes(4, "big") + token for token in tokens),
            shaping.encode(),
            (0).to_bytes(8, "big"),
        ]
    )
    fingerprint = hashlib.sha256(hashed).digest()[:16]
    return [
        {
            "name": "tokenizer",
            "tokens": [token.hex() for token in tokens],
            "shaping": shaping,
            "end_ids": [0],
            "fingerprint": fingerprint.hex(),
        },
        _family("family", fingerprint, TRAINED, {}),
        _family("family over a base in four bits", fingerprint, TRAINED, {"base_format": FOUR_BIT_FORMAT}),
        _with_first_factor(_family("family of an adapter", fingerprint, ADAPTED, {"adapter": FIRST_FACTORS})),
    ]


def _with_first_factor(family: Json) -> Json:
    """Adds A of the one matrix that is adapted, as the float32 values in row-major order."""
    rank, inputs = ADAPTED[FIRST_FACTOR]
    tag = b"starling/first-factor/1\0" + bytes.fromhex(family["family"]) + FIRST_FACTOR.encode()
    drawn = hashlib.shake_256(tag).digest(3 * rank * inputs)
    steps = [int.from_bytes(drawn[at : at + 3], "little") - 2**23 for at in range(0, len(drawn), 3)]
    scale = np.float32(2.0**-23 / math.sqrt(inputs))
    values = b"".join(struct.pack("<f", np.float32(step) * scale) for step in steps)
    return {**family, "first_factor": FIRST_FACTOR, "shape": [rank, inputs], "values": values.hex()}


def _family(name: str, fingerprint: bytes, trained: Mapping[str, tuple[int, ...]], more: Json) -> Json:
    identity = _canonical(
        {
            "architecture": ARCHITECTURE,
            "tokenizer": fingerprint.hex(),
            "base_weights": BASE_WEIGHTS.hex(),
            "trained": [[name, shape] for name, shape in sorted(trained.items())],
            **more,
        }
    )
    family = hashlib.sha256(b"starling/family/1\0" + identity.encode()).digest()[:16]
    return {"name": name, "identity": identity, "family": family.hex()}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
