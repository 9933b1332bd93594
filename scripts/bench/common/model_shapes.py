"""Model folders of the shape of published models, with random weights: no hub can be reached where benchmarks run.

The tokenizer has a token for every row of the head: rows beyond it would count for nothing and cost nothing.
"""

from __future__ import annotations

import json
import math
from itertools import islice, product
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from scripts.bench.common.published_shapes import config_of

END = "<|endoftext|>"


def whole_vocabulary(size: int) -> PreTrainedTokenizerFast:
    """Returns a byte-level tokenizer of ``size`` ids. It writes text byte by byte; the other ids are strings of letters
    that only sampling gives."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = [character for character in alphabet if character.isascii() and character.isalpha()]
    longer = ("".join(each) for length in (2, 3, 4) for each in product(letters, repeat=length))
    words = [END, *alphabet, *islice(longer, size - len(alphabet) - 1)]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=END
    )
    return fast


def write_model(folder: Path, shape: str, *, layers: int | None = None, seed: int = 0, **changes: int) -> Path:
    """Writes a model of the shape, but for ``changes`` of its ``config.json``, into ``folder``, bf16 on disk as
    published ones are; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(shape, layers=layers) | changes))
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    whole_vocabulary(int(config.vocab_size)).save_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    generator = torch.Generator().manual_seed(seed)
    tied = bool(config.tie_word_embeddings)
    tensors = {}
    for name, parameter in model.named_parameters():
        if tied and name == "lm_head.weight":
            continue
        values = torch.empty(parameter.shape, dtype=torch.bfloat16)
        if parameter.ndim == 1:
            values.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            values.normal_(0.0, 1 / math.sqrt(parameter.shape[-1]), generator=generator)
        tensors[name] = values
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
