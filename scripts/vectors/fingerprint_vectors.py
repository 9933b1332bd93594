"""Fingerprints of tokenizers and families of policies, each with the bytes of which it is the hash."""

from __future__ import annotations

import hashlib
import json
from typing import Any

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
FOUR_BIT_FORMAT = "nf4, blocks of 64, scales in 8 bits"


def fingerprints() -> list[Json]:
    """A tokenizer of four tokens, of which the first ends a completion, and two policies over it."""
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
        _family("family", fingerprint, {}),
        _family("family over a base in four bits", fingerprint, {"base_format": FOUR_BIT_FORMAT}),
    ]


def _family(name: str, fingerprint: bytes, more: Json) -> Json:
    identity = _canonical(
        {
            "architecture": ARCHITECTURE,
            "tokenizer": fingerprint.hex(),
            "base_weights": BASE_WEIGHTS.hex(),
            "trained": [[name, shape] for name, shape in sorted(TRAINED.items())],
            **more,
        }
    )
    family = hashlib.sha256(b"starling/family/1\0" + identity.encode()).digest()[:16]
    return {"name": name, "identity": identity, "family": family.hex()}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
