"""A model's network, from a folder that may be damaged or too large for this machine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from node.library_imports import deferring
from node.policy.base_weights import stored_tensors
from node.policy.device_faults import accelerator_error, is_out_of_memory
from node.policy.four_bit import keep_differentiable
from node.policy.model_config import check_layers, read_config
from node.quantities import size
from protocol.errors import ConfigurationError


def load_base(folder: Path, device: torch.device, dtype: torch.dtype, *, four_bit: bool) -> PreTrainedModel:
    """Returns the model of ``folder`` on ``device`` in ``dtype``; with ``four_bit``, its linear layers but the head in
    NF4. Every tensor goes from its mapped file to its place by itself: there is no second copy of the model.

    Raises ``ConfigurationError`` for a configuration that is not a model's or claims more than the files hold, a tensor
    that is missing or of another shape, and a machine that lacks the memory; ``AcceleratorError`` where a GPU fails.
    """
    config = read_config(folder)
    stored = stored_tensors(folder)
    check_layers(folder, config, stored)
    held = sum(tensor.elements for _, tensor in stored.values())
    try:
        with deferring():
            _check_claim(folder, AutoConfig.from_pretrained(str(folder), local_files_only=True), held)
            model, loading = _from_pretrained(folder, device, dtype, four_bit=four_bit)
    except ConfigurationError:
        raise
    except Exception as error:  # a configuration may lead to anything: what builds the model believes what it says
        if is_out_of_memory(error):
            raise ConfigurationError(_too_large(folder, held, device, dtype, four_bit=four_bit)) from error
        failure = accelerator_error(error)
        raise failure or ConfigurationError(f"the model in {folder} does not load: {error}") from error
    if loading["missing_keys"]:
        raise ConfigurationError(
            f"the weights in {folder} lack {_some(loading['missing_keys'])}: fetch the model again"
        )
    if loading["mismatched_keys"]:
        names = [key[0] if isinstance(key, tuple) else key for key in loading["mismatched_keys"]]
        raise ConfigurationError(
            f"the weights in {folder} have other shapes than its config.json says, in {_some(names)}: fetch the model "
            "again"
        )
    if four_bit:
        keep_differentiable(model)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if not isinstance(model, PreTrainedModel) or not isinstance(head, torch.nn.Linear):
        raise ConfigurationError(f"the model in {folder} ({model.config.model_type}) has no linear language-model head")
    return model


def base_without_weights(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Returns the model of ``folder`` with every weight on the meta device; its buffers are whole.

    Raises ``ConfigurationError`` as ``load_base``, for what the files' headers show.
    """
    stored = stored_tensors(folder)
    check_layers(folder, read_config(folder), stored)

    def weightless(_: object, __: str, parameter: torch.nn.Parameter | None) -> Any:
        return None if parameter is None else torch.nn.Parameter(parameter.to("meta"), requires_grad=False)

    try:
        with deferring():
            config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
            _check_claim(folder, config, sum(tensor.elements for _, tensor in stored.values()))
            # Modules allocate their weights, and nobody writes to them before they are registered: no page is taken.
            hook = register_module_parameter_registration_hook(weightless)
            try:
                model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]
            finally:
                hook.remove()
    except ConfigurationError:
        raise
    except Exception as error:  # as in ``load_base``
        raise ConfigurationError(f"the model in {folder} does not load: {error}") from error
    if not isinstance(model, PreTrainedModel) or not isinstance(model.get_output_embeddings(), torch.nn.Linear):  # type: ignore[no-untyped-call]
        raise ConfigurationError(f"the model in {folder} ({config.model_type}) has no linear language-model head")
    return model


def _check_claim(folder: Path, config: PretrainedConfig, held: int) -> None:
    """Builds the model without memory, and refuses one of twice the files' weights: the library would draw at random
    what it does not find, at any size. Where less is missing, it says what."""
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    claimed = sum(p.numel() for p in model.parameters())
    if claimed > 2 * held:
        raise ConfigurationError(
            f"{folder / 'config.json'} claims {claimed:,} weights, and the files beside it hold {held:,}: a file is "
            "missing or of another model; fetch the model again"
        )


def _from_pretrained(
    folder: Path, device: torch.device, dtype: torch.dtype, *, four_bit: bool
) -> tuple[PreTrainedModel, dict[str, Any]]:
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    loader: Any = AutoModelForCausalLM  # with output_loading_info it returns a pair, unlike its annotations
    quantized = {
        "quantization_config": BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    }
    model, loading = loader.from_pretrained(
        str(folder),
        dtype=dtype,
        device_map=None if device.type == "cpu" and not four_bit else {"": device},
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # so that they can be named
        **(quantized if four_bit else {}),
    )
    return model, loading


def _too_large(folder: Path, weights: int, device: torch.device, dtype: torch.dtype, *, four_bit: bool) -> str:
    needed = math.ceil(weights * (0.6 if four_bit else dtype.itemsize))  # 4 bits: the embedding and the head stay whole
    return (
        f"the model in {folder} has {weights:,} weights, about {size(needed)} on the {device.type} "
        f"({'4 bits' if four_bit else str(dtype).removeprefix('torch.')}), and the memory there does not suffice: "
        f"`starling fit {folder}` shows what would fit; choose a smaller policy.model, or close other programs"
    )


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return f"{len(ordered)} tensors, such as {', '.join(ordered[:3])}"
