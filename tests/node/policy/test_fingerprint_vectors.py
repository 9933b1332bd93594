"""The fingerprints that docs/protocol.md specifies are those that a node computes of real tokenizers and models."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import LlamaConfig, PreTrainedTokenizerFast

from node.policy.family import family_of
from node.policy.first_factors import first_factor
from node.policy.tokens import TokenTable
from scripts.make_vectors import FOLDER
from scripts.vectors.fingerprint_vectors import ADAPTED, BASE_WEIGHTS, TRAINED

TOKENIZER, *FAMILIES = json.loads((FOLDER / "fingerprints.json").read_text(encoding="utf-8"))


def test_tokenizer() -> None:
    rest = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
    definition = json.dumps({"version": "1.0", **rest, **json.loads(TOKENIZER["shaping"])})
    fast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(definition), eos_token="<s>")
    table = TokenTable(fast)
    assert [table.text_of([token_id]).hex() for token_id in range(table.vocabulary)] == TOKENIZER["tokens"]
    assert list(table.eos_ids) == TOKENIZER["end_ids"]
    assert table.fingerprint.hex() == TOKENIZER["fingerprint"]


@pytest.mark.parametrize("vector", FAMILIES, ids=lambda v: v["name"])
def test_family(vector: Any) -> None:
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=2, rope_parameters={"rope_type": "default", "rope_theta": 5000.0}
    )
    identity = json.loads(vector["identity"])
    trained = ADAPTED if "adapter" in identity else TRAINED
    fingerprint = bytes.fromhex(TOKENIZER["fingerprint"])
    found = family_of(config, fingerprint, BASE_WEIGHTS, trained, four_bit="base_format" in identity)
    assert found.hex() == vector["family"]


def test_first_factor_of_an_adapter() -> None:
    vector = FAMILIES[-1]
    drawn = first_factor(bytes.fromhex(vector["family"]), vector["first_factor"], *vector["shape"])
    assert drawn.astype("<f4").tobytes().hex() == vector["values"]
