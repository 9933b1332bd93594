"""A whole model in Hugging Face's format: the base model with the trained weights, or with the adapter merged.

Configuration, generation settings and tokenizer are the base model's own files, byte for byte, so that what loads the
base model loads this. Weights have the dtype of the base model's files; they are summed and merged in float32 and
rounded once. In 4 bits, the configuration also says so, and the embedding, the head and the norms keep that dtype.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from peft import PeftModel
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from node.export.new_folder import RECORD
from node.export.trained_weights import adapter_rank, check_finite
from node.policy.adapter import with_adapter
from node.policy.base_weights import stored_tensors
from node.policy.loading import load_base

SHARD_BYTES: Final = 5_000_000_000
COPIED_FILES: Final = ("*.json", "*.jinja", "*.txt", "tokenizer.model", "LICENSE*", "NOTICE*")
TOKENIZER_FILES: Final = (
    "tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
    "chat_template*",
)  # fmt: skip
_OF_WEIGHTS: Final = ("adapter_config.json", RECORD)
_DTYPES: Final = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def stored_dtype(folder: Path) -> torch.dtype:
    """Returns the floating dtype of most values in a model's files; bfloat16 where that is not one of torch's."""
    elements: Counter[str] = Counter()
    for _, tensor in stored_tensors(folder).values():
        elements[tensor.dtype] += tensor.elements
    return _DTYPES.get(elements.most_common(1)[0][0], torch.bfloat16)


def _loaded_dtype(folder: Path) -> torch.dtype:
    return torch.bfloat16 if stored_dtype(folder) is torch.bfloat16 else torch.float32


@torch.no_grad()
def trained_model(folder: Path, weights: Mapping[str, Tensor]) -> PreTrainedModel | PeftModel:
    """Returns the model in ``folder`` with ``weights``: on the CPU, in float32 or bfloat16 as the folder has it. A base
    that was trained over in 4 bits is loaded whole."""
    rank = adapter_rank(weights)
    base = load_base(folder, torch.device("cpu"), _loaded_dtype(folder), four_bit=False)
    model = with_adapter(base, rank) if rank else base
    parameters = dict(model.named_parameters())
    for name, tensor in weights.items():
        parameters[name].copy_(tensor)
    return model


def write_whole_model(target: Path, trained: PreTrainedModel | PeftModel, folder: Path) -> None:
    """Writes the model, adapter merged, with the files of the base model in ``folder``; ``trained`` is used up.

    Raises ``StorageError`` where a value is beyond the dtype of the base model's files.
    """
    dtype = stored_dtype(folder)
    model: Any = trained.merge_and_unload() if isinstance(trained, PeftModel) else trained
    model.to(dtype)
    check_finite(dict(model.named_parameters()), f"as {dtype}")
    model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]  # checked when saved; not the one kept
    model.save_pretrained(target, max_shard_size=SHARD_BYTES)
    (target / "generation_config.json").unlink(missing_ok=True)
    copy_files(folder, target, COPIED_FILES)


def write_four_bit_model(target: Path, trained: PreTrainedModel | PeftModel, folder: Path) -> None:
    """Writes the model as ``write_whole_model`` does, its linear layers but the head in bitsandbytes' NF4.

    The whole model is on the disk meanwhile, within ``target``: it is quantized as it is read, a tensor at a time.
    """
    with tempfile.TemporaryDirectory(dir=target) as whole:
        write_whole_model(Path(whole), trained, folder)
        quantized = load_base(Path(whole), torch.device("cpu"), _loaded_dtype(folder), four_bit=True)
        quantized.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
        quantized.save_pretrained(target, max_shard_size=SHARD_BYTES)
    configuration = (target / "config.json").read_bytes()
    copy_files(folder, target, COPIED_FILES)
    (target / "config.json").write_bytes(configuration)


def copy_files(folder: Path, target: Path, patterns: tuple[str, ...]) -> None:
    """Copies what matches and does not describe the base model's weights."""
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.is_file() and not path.name.endswith(".index.json") and path.name not in _OF_WEIGHTS:
                shutil.copyfile(path, target / path.name)
