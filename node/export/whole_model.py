"""A whole model in Hugging Face's format: the base model with the trained weights, or with the adapter merged.

Configuration, generation settings and tokenizer are the base model's own files, byte for byte, so that what loads the
base model loads this. Weights have the dtype of the base model's files; they are summed and merged in float32 and
rounded once.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from peft import PeftModel
from torch import Tensor
from transformers import GenerationConfig

from node.configuration import DtypeName, PolicySection
from node.export.new_folder import RECORD
from node.export.trained_weights import adapter_rank, check_finite
from node.policy.model_files import weight_files
from node.policy.policy import Policy

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
    values: Counter[str] = Counter()
    for path in weight_files(folder):
        with path.open("rb") as file:
            header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                values[entry["dtype"]] += end - begin
    return _DTYPES.get(values.most_common(1)[0][0], torch.bfloat16)


def whole_policy(model: str, folder: Path, weights: Mapping[str, Tensor]) -> Policy:
    """Returns the policy with ``weights`` of ``model``, whose folder is ``folder``: on the CPU, not quantized, in
    float32 or bfloat16 as the folder has it."""
    dtype: DtypeName = "bfloat16" if stored_dtype(folder) is torch.bfloat16 else "float32"
    rank = adapter_rank(weights)
    section = PolicySection(model=model, device="cpu", dtype=dtype, adapter_rank=rank, four_bit=False)
    policy = Policy.load(section, seed=0)
    with torch.no_grad():
        for key, parameter in policy.trainable().items():
            parameter.copy_(weights[key])
    return policy


def write_whole_model(target: Path, policy: Policy, folder: Path) -> None:
    """Writes the policy's model, adapter merged, with the files of the base model in ``folder``; ``policy`` is used up.

    Raises ``StorageError`` where a value is beyond the dtype of the base model's files.
    """
    dtype = stored_dtype(folder)
    model: Any = policy.model
    if isinstance(policy.model, PeftModel):
        model = policy.model.merge_and_unload()
    model.to(dtype)
    check_finite(dict(model.named_parameters()), f"as {dtype}")
    model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]  # checked when saved; not the one kept
    model.save_pretrained(target, max_shard_size=SHARD_BYTES)
    (target / "generation_config.json").unlink(missing_ok=True)
    copy_files(folder, target, COPIED_FILES)


def copy_files(folder: Path, target: Path, patterns: tuple[str, ...]) -> None:
    """Copies what matches and does not describe the base model's weights."""
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.is_file() and not path.name.endswith(".index.json") and path.name not in _OF_WEIGHTS:
                shutil.copyfile(path, target / path.name)
