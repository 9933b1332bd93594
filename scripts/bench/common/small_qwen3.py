"""Small Qwen3 shapes for benchmarks that make their own models."""

from __future__ import annotations

from transformers import Qwen3Config


def small_qwen3(
    *, vocabulary: int, layers: int, hidden: int, heads: int, kv_heads: int, positions: int, eos_id: int | None
) -> Qwen3Config:
    """Returns a shape with a tied head, heads of hidden / heads, and 3 hidden in the middle. Token 0 pads."""
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=eos_id,
    )
