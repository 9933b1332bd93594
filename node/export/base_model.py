"""The base model of a checkpoint: where it is, and whether it is still the one that the checkpoint was trained from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor
from transformers import AutoConfig

from node.configuration import ChatMode
from node.configuration.published import is_hub_id
from node.export.source import Source
from node.policy.base_weights import base_weights_digest
from node.policy.family import family_of
from node.policy.model_files import model_folder, weight_files
from node.policy.tokens import load_tokens
from protocol.errors import ConfigurationError


def base_folder(source: Source) -> tuple[Path | None, str]:
    """Returns the folder of the base model, or None and why there is none."""
    try:
        folder = model_folder(source.policy.model)
        weight_files(folder)
    except ConfigurationError as error:
        return None, str(error)
    return folder, ""


def base_name(source: Source, folder: Path | None) -> str:
    """Returns what ``from_pretrained`` takes: a hub id, or an absolute path."""
    model = source.policy.model
    if is_hub_id(model) and not Path(model).is_dir():
        return model
    return str(folder.absolute()) if folder is not None else str(Path(model).expanduser().absolute())


def check_family(source: Source, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Raises ``ConfigurationError`` unless ``weights`` were trained on the model in ``folder``, whole or in 4 bits."""
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    found = families_in(folder, source.policy.chat, shapes)
    if source.family not in found:
        raise ConfigurationError(
            f"the checkpoint is of another family of policies ({source.family.hex()}) than {source.policy.model} is "
            f"now ({found[0].hex()}): the base model has changed; name the one that was trained with --model"
        )


def families_in(folder: Path, chat: ChatMode, trained: Mapping[str, tuple[int, ...]]) -> tuple[bytes, bytes]:
    """Returns the families of policies that train ``trained`` on the model in ``folder``, held whole and in 4 bits. The
    model is not loaded.

    Raises ``ConfigurationError`` if the folder cannot be read.
    """
    tokenizer, digest = load_tokens(folder, chat).fingerprint, base_weights_digest(folder)
    try:
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"the configuration in {folder} does not load: {error}") from error
    whole, four_bit = (family_of(config, tokenizer, digest, trained, four_bit=each) for each in (False, True))
    return whole, four_bit
