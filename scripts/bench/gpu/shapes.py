"""Models of the shape of published ones, with random weights: no hub can be reached where this runs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch

from scripts.bench.common.published_shapes import LARGER
from scripts.bench.common.published_shapes import SHAPES as PUBLISHED

if TYPE_CHECKING:
    from node.policy.policy import Policy

SHAPES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "Qwen2.5-0.5B": PUBLISHED["Qwen2.5-0.5B"],
        **LARGER,
        "tiny": {
            **PUBLISHED["Qwen2.5-0.5B"],
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 200,
            "max_position_embeddings": 256,
        },
    }
)
EOS: Final = 1
LETTERS: Final = 94
PADDING: Final = 8  # rows of the head beyond the tokenizer's ids, as published models have them


def random_policy(
    shape: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    layers: int | None = None,
    adapter_rank: int = 0,
    four_bit: bool = False,
) -> Policy:
    """Returns a policy of this shape with weights drawn on the device; its tokenizer has an id for all but the
    last ``PADDING`` rows of the head, one of them for each letter.

    With ``four_bit`` the linear layers but the head are in NF4 afterwards; while it is made, all are in ``dtype``.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    from node.policy.adapter import with_adapter
    from node.policy.policy import Policy
    from node.policy.tokens import TokenTable

    settings = dict(SHAPES[shape]) | ({"num_hidden_layers": layers} if layers else {})
    model_type, _ = settings.pop("model_type"), settings.pop("dtype")
    config = AutoConfig.for_model(model_type, **settings, pad_token_id=0, bos_token_id=None, eos_token_id=EOS)
    with torch.device(device):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
    if four_bit:
        _hold_in_four_bits(model, dtype)
    adapted = model if adapter_rank == 0 else with_adapter(model, adapter_rank)
    adapted.to(device).eval()
    tokens = TokenTable(shape_tokenizer(int(config.vocab_size) - PADDING))
    return Policy(adapted, tokens, bytes(16), shape, device, dtype, int(config.vocab_size), four_bit)


def _hold_in_four_bits(model: Any, dtype: torch.dtype) -> None:
    """Replaces the layers' matrices one by one, as loading a model with ``policy.four_bit`` does."""
    from bitsandbytes.nn.modules import Linear4bit, Params4bit

    from node.policy.four_bit import keep_differentiable

    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and module is not head:
            weight, bias = module.weight.detach(), module.bias
            made = Linear4bit(  # type: ignore[no-untyped-call]
                module.in_features, module.out_features, bias is not None, compute_dtype=dtype, quant_type="nf4",
                device="meta",
            )  # fmt: skip
            made.weight = Params4bit(weight, requires_grad=False, compress_statistics=True, quant_type="nf4")
            made.bias = bias
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, made.to(weight.device))
            del module, weight
    keep_differentiable(model)


def shape_tokenizer(size: int) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", *(chr(0x21 + index) for index in range(LETTERS))]
    words += [f"<{number}>" for number in range(len(words), size)]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")  # type: ignore[no-untyped-call]


def body_parameters(policy: Policy) -> int:
    """Returns the weights that a token is multiplied by in the layers: all but embedding and head."""
    from node.policy.four_bit import weights_of

    embedding: Any = policy.base.get_input_embeddings()
    embedding = embedding.weight
    head = policy.base.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    outside = {id(embedding): embedding.numel(), id(head): head.numel()}
    return sum(weights_of(p) for p in policy.base.parameters() if id(p) not in outside and p.ndim == 2)
