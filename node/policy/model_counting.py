"""Counts the parameters of a model of any architecture, without allocating them: torch's meta device.

``python -m node.policy.model_counting FOLDER`` prints ``ModelSizes`` as JSON, for processes that do not import torch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from node.fit.model_sizes import ModelSizes, checked_against_files, known_sizes
from node.library_imports import deferring
from node.policy.model_config import read_config
from protocol.errors import ConfigurationError


def counted_sizes(folder: Path) -> ModelSizes:
    """Returns the sizes of the model in ``folder``. Raises ``ConfigurationError`` as ``known_sizes`` does, and for a
    model whose configuration lacks the usual names."""
    known = known_sizes(folder)
    if known is not None:
        return known
    read_config(folder)  # bounds, before a module is made for every layer
    try:
        config: Any = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        with deferring(), torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
        return checked_against_files(_counted(model, config), folder)
    except (OSError, ValueError, KeyError, AttributeError, ImportError, RuntimeError) as error:
        raise ConfigurationError(f"the model in {folder} cannot be counted ({error}): choose another") from error


def _counted(model: Any, config: Any) -> ModelSizes:
    text = config.get_text_config()
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    linears = [
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module.weight is not head
    ]
    layers = int(text.num_hidden_layers)
    matrices = sum(p.numel() for module in linears for p in module.parameters())
    total = sum(p.numel() for p in model.parameters())
    heads = int(text.num_attention_heads)
    outside = embedding.numel() + (0 if head is embedding else head.numel())
    return ModelSizes(
        model_type=str(config.model_type),
        layers=layers,
        hidden=int(text.hidden_size),
        intermediate=int(text.intermediate_size),
        heads=heads,
        kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_size=int(getattr(text, "head_dim", None) or text.hidden_size // heads),
        vocabulary=int(embedding.shape[0]),
        context=int(getattr(text, "max_position_embeddings", 1 << 20)),
        tied=head is embedding,
        gated=True,  # the larger of the two
        head_norms=True,
        embedding_parameters=embedding.numel(),
        layer_parameters=matrices // layers,
        norm_parameters=total - outside - layers * (matrices // layers),
        head_parameters=outside - embedding.numel(),
        layer_linears=-(-len(linears) // layers),
        layer_linear_widths=-(-sum(m.in_features + m.out_features for m in linears) // layers),
    )


def main() -> None:
    try:
        sizes = counted_sizes(Path(sys.argv[1]))
    except ConfigurationError as error:
        sys.exit(str(error))
    sys.stdout.buffer.write(msgspec.json.encode(sizes) + b"\n")


if __name__ == "__main__":
    main()
