"""A policy of which this machine holds some layers alone: their base weights, read from the model's folder one tensor
at a time, and on the meta device all others.

The modules of the others stay where they are, so names and shapes of what is trained are those of the whole policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from node.policy.base_weights import stored_tensors
from node.policy.first_factors import draw_first_factors
from node.policy.policy import Policy
from protocol.errors import ConfigurationError

META = torch.device("meta")
_WRAPPER = ".base_layer"  # what peft inserts in the name of a weight under an adapter


def layers_of(policy: Policy) -> nn.ModuleList:
    """Returns the layers of the policy's body. Raises ``ConfigurationError`` for a body that is built otherwise."""
    layers = getattr(policy.base.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ConfigurationError(
            f"the layers of {type(policy.base).__name__} are not where they can be divided among machines: set "
            "policy.stages = 0, or choose another policy.model"
        )
    return layers


def hold_factors(policy: Policy) -> None:
    """Gives every factor of the adapter the value with which its family begins, on the policy's device."""
    for name, parameter in list(policy.trainable().items()):
        _put(policy.model, name, torch.zeros(parameter.shape, device=policy.device), trained=True)
    draw_first_factors(policy.trainable(), policy.family)


def hold_layers(policy: Policy, folder: Path, layers: range, *, ends: bool, factors: bool) -> None:
    """Reads the base weights of ``layers`` from ``folder``, and with ``ends`` what comes before the first layer and
    after the last of all; every other base weight is freed. With ``factors``, the adapter's factors of these layers are
    in memory, with values that mean nothing, and no others.

    Layers count themselves from the first of ``layers`` on, as their caches do. Raises ``ConfigurationError`` for files
    that lack a weight or have it in another shape.
    """
    stored = stored_tensors(folder)
    for index, layer in zip(layers, layers_of(policy)[layers.start : layers.stop], strict=True):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = index - layers.start  # type: ignore[assignment]
    for name, parameter, held in list(_held(policy, layers, ends=ends)):
        if parameter.requires_grad:
            if factors:
                empty = torch.zeros(parameter.shape, device=policy.device if held else META)
                _put(policy.base, name, empty, trained=True)
        elif not held:
            _put(policy.base, name, torch.empty(parameter.shape, dtype=parameter.dtype, device=META))
        elif parameter.device == META and (found := name.replace(_WRAPPER, "")) in stored:
            _put(policy.base, name, _read(stored[found][0], found, parameter.shape, policy))
    policy.base.tie_weights()
    for buffer_owner in policy.base.modules():
        for name, buffer in buffer_owner.named_buffers(recurse=False):
            buffer_owner._buffers[name] = buffer.to(policy.device)
    lacking = [n for n, p, held in _held(policy, layers, ends=ends) if held and not p.requires_grad and p.is_meta]
    if lacking:
        raise ConfigurationError(
            f"the weights in {folder} lack {lacking[0]}, or have it under another name, as models of older types do: "
            "these cannot be divided among machines; set policy.stages = 0, or choose another policy.model"
        )


def held_bytes(policy: Policy) -> int:
    """Returns the bytes of all weights that are in memory."""
    return sum(p.nbytes for p in policy.model.parameters() if not p.is_meta)


def _held(policy: Policy, layers: range, *, ends: bool) -> Iterator[tuple[str, nn.Parameter, bool]]:
    """Yields every parameter by its name in the base, and whether this machine is to hold it."""
    body, all_layers = policy.base.base_model, layers_of(policy)
    prefix = next(name for name, module in policy.base.named_modules() if module is all_layers) + "."
    assert body is not None
    for name, parameter in policy.base.named_parameters():
        number = name.removeprefix(prefix).partition(".")[0] if name.startswith(prefix) else None
        yield name, parameter, ends if number is None else int(number) in layers


def _read(file: Path, name: str, shape: torch.Size, policy: Policy) -> torch.Tensor:
    with safe_open(file, framework="pt") as opened:
        tensor: torch.Tensor = opened.get_tensor(name)
        if tensor.shape != shape:
            raise ConfigurationError(
                f"{file}: {name} has the shape {tuple(tensor.shape)}, and config.json says {tuple(shape)}: fetch the "
                "model again"
            )
        return tensor.to(policy.device, policy.dtype, copy=True)  # a copy: the file is mapped no longer than it is read


def _put(model: nn.Module, name: str, tensor: torch.Tensor, *, trained: bool = False) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, nn.Parameter(tensor, requires_grad=trained))
