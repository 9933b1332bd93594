"""The policy: a Hugging Face causal model, trained whole or by a LoRA adapter, and its family.

``family`` = SHA-256[:16] of (architecture, tokenizer fingerprint, base weights, names and shapes of what is trained).
Two nodes of one family may average weights. The base weights are hashed as they are in the files, before any training
and independently of the dtype they are loaded in, so a policy keeps its family while it learns and on any hardware.
"""

from __future__ import annotations

import copy
import hashlib
import json
import mmap
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from node.configuration import PolicySection, chosen
from node.policy.device import choose_device, choose_dtype
from node.policy.model_files import BUILTIN_PREFIX, model_folder, weight_files
from node.policy.tokens import TokenTable
from protocol.errors import ConfigurationError
from protocol.limits import NAME_BYTES

FAMILY_BYTES: Final = 16
# Keys of a model's configuration that describe its origin or how it is run, not what it computes.
_INCIDENTAL_KEYS: Final = frozenset(
    {"_name_or_path", "transformers_version", "architectures", "auto_map", "dtype", "torch_dtype", "use_cache"}
    | {"bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "problem_type"}
    | {"output_attentions", "output_hidden_states", "return_dict"}
)


@dataclass(frozen=True, eq=False)
class Policy:
    """A causal model ready to sample from and to train.

    ``model`` is in evaluation mode: dropout would make the learner's log-probabilities differ from the engine's.
    ``vocabulary`` is the width of the model's logits, usually at least ``tokens.vocabulary``.
    """

    model: PreTrainedModel | PeftModel
    tokens: TokenTable
    family: bytes
    label: str  # for people: at most ``limits.NAME_BYTES`` bytes
    device: torch.device
    dtype: torch.dtype
    vocabulary: int

    @property
    def base(self) -> PreTrainedModel:
        """The Hugging Face model without an adapter's wrapper; its modules are the adapted ones."""
        base = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        assert isinstance(base, PreTrainedModel)
        return base

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """Returns the live parameters that learning changes, by name, in a fixed order; tied weights appear once."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def separate(self) -> Policy:
        """Returns a copy with trained parameters of its own; parameters that are never trained are shared."""
        shared = {id(p): p for p in self.model.parameters() if not p.requires_grad}
        return replace(self, model=copy.deepcopy(self.model, shared))

    @classmethod
    def load(cls, section: PolicySection, *, seed: int) -> Policy:
        """Loads the base model of ``section``; ``seed`` determines only the first weights of an adapter.

        Raises ``ConfigurationError`` if the model cannot be found, read or used on the configured device.
        """
        folder = model_folder(section.model)
        device = choose_device(section.device)
        dtype = choose_dtype(section.dtype, device)
        tokens = _load_tokens(folder)
        base = _load_base(folder, device, dtype)
        rank = chosen(section.adapter_rank, 0)
        model = base if rank == 0 else _with_adapter(base, rank, seed)
        model.eval()
        trained = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
        family = _family(base.config, tokens.fingerprint, base_weights_digest(folder), trained)
        label = _label(section.model, rank)
        vocabulary = int(base.get_output_embeddings().weight.shape[0])  # type: ignore[no-untyped-call]
        return cls(model, tokens, family, label, device, dtype, vocabulary)


def base_weights_digest(folder: Path) -> bytes:
    """Returns SHA-256 over each tensor's name, dtype, shape and bytes, sorted by name, over all files of the model.

    Raises ``ConfigurationError`` if ``folder`` holds no readable safetensors.
    """
    tensors: dict[str, tuple[str, bytes]] = {}
    for path in weight_files(folder):
        try:
            tensors.update(_tensor_digests(path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{path} is not a readable safetensors file ({error}): fetch the model again"
            ) from error
    digest = hashlib.sha256(b"starling/base-weights/1\0")
    for name in sorted(tensors):
        kind, content = tensors[name]
        digest.update(f"{name}\0{kind}\0".encode() + content)
    return digest.digest()


def _tensor_digests(path: Path) -> Iterator[tuple[str, tuple[str, bytes]]]:
    """Yields (name, (dtype and shape, SHA-256 of the bytes)). The format: u64 length, JSON header, bytes."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        start = 8 + int.from_bytes(view[:8], "little")
        header: dict[str, Any] = json.loads(bytes(view[8:start]))
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                content = hashlib.sha256(view[start + begin : start + end]).digest()
                yield name, (f"{entry['dtype']}{list(entry['shape'])}", content)


def _family(
    config: PretrainedConfig, tokenizer: bytes, base_weights: bytes, trained: Mapping[str, tuple[int, ...]]
) -> bytes:
    """Returns the hash of what two policies must have in common to average weights."""
    identity = {
        "architecture": _architecture(config),
        "tokenizer": tokenizer.hex(),
        "base_weights": base_weights.hex(),
        "trained": sorted((name, list(shape)) for name, shape in trained.items()),
    }
    canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(b"starling/family/1\0" + canonical.encode()).digest()[:FAMILY_BYTES]


def _architecture(config: PretrainedConfig) -> dict[str, Any]:
    """Returns what differs from the model type's defaults, so that a key added by a library version has no effect."""
    defaults = type(config)().to_dict()
    own = {key: value for key, value in config.to_dict().items() if key not in _INCIDENTAL_KEYS}
    differing = {key: value for key, value in own.items() if key not in defaults or defaults[key] != value}
    return differing | {"model_type": config.model_type}


def _load_tokens(folder: Path) -> TokenTable:
    if not (folder / "tokenizer.json").is_file():
        raise ConfigurationError(
            f"{folder} has no tokenizer.json: save the model's tokenizer in the fast format beside it"
        )
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # tokenizers raises bare Exception for a file that it cannot read
        raise ConfigurationError(f"the tokenizer in {folder} does not load: {error}") from error
    return TokenTable(tokenizer)


def _load_base(folder: Path, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    weight_files(folder)  # raises a clearer message than the library's for a folder without safetensors
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    loader: Any = AutoModelForCausalLM  # with output_loading_info it returns a pair, unlike its annotations
    try:
        model, loading = loader.from_pretrained(
            str(folder),
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
        model.to(device)
    except (OSError, ValueError, RuntimeError, KeyError, ImportError, SafetensorError) as error:
        raise ConfigurationError(f"the model in {folder} does not load: {error}") from error
    if loading["missing_keys"]:
        some = ", ".join(sorted(loading["missing_keys"])[:3])
        raise ConfigurationError(f"the weights in {folder} lack {len(loading['missing_keys'])} tensors, such as {some}")
    head = model.get_output_embeddings()
    if not isinstance(model, PreTrainedModel) or not isinstance(head, torch.nn.Linear):
        raise ConfigurationError(f"the model in {folder} ({model.config.model_type}) has no linear language-model head")
    return model


def _with_adapter(base: PreTrainedModel, rank: int, seed: int) -> PeftModel:
    adapter = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft uses a name that transformers has since changed
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        torch.manual_seed(seed)
        return get_peft_model(base, adapter)


def _label(name: str, adapter_rank: int) -> str:
    short = name.removeprefix(BUILTIN_PREFIX).rstrip(os.sep).rsplit("/", 1)[-1] or name
    label = f"{short}+lora{adapter_rank}" if adapter_rank else short
    return label.encode()[:NAME_BYTES].decode(errors="ignore")
