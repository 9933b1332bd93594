"""A part of a transformer's body: the same modules with fewer layers, which take hidden states in place of tokens.

The bodies of transformers' causal models make masks and rotations themselves, from positions, and run the layers that
they have. So a part is the same body with some of the layers and without the last norm.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from node.learner.objective.forward import Network, check_network
from node.learner.objective.network.prompt_cache import PassCache
from node.learner.objective.network.recomputation import recomputed_layers
from protocol.errors import ConfigurationError

LAST_NORMS: Final = ("norm", "final_layer_norm")  # what follows the last layer, in transformers' bodies


def part_of(body: torch.nn.Module, layers: range) -> torch.nn.Module:
    """Returns ``body`` with ``layers`` alone, and without last norm. Its modules are the same, not copies; a layer that
    attends within a window still does."""
    part: Any = copy.copy(body)
    part._modules = dict(part._modules)
    part.config = copy.copy(part.config)
    part.config.num_hidden_layers = len(layers)
    if getattr(part.config, "layer_types", None) is not None:
        part.config.layer_types = part.config.layer_types[layers.start : layers.stop]
    part.layers = torch.nn.ModuleList(list(part.layers)[layers.start : layers.stop])
    setattr(part, last_norm_name(body), torch.nn.Identity())
    return part  # type: ignore[no-any-return]


def last_norm_name(body: torch.nn.Module) -> str:
    """Raises ``ConfigurationError`` for a body that cannot be cut."""
    for name in LAST_NORMS:
        if isinstance(getattr(body, name, None), torch.nn.Module):
            return name
    raise ConfigurationError(
        f"{type(body).__name__} ends in no norm that is known here, so its layers cannot be divided among machines: "
        "set policy.stages = 0, or choose another policy.model"
    )


@torch.no_grad()
def check_cut(model: PreTrainedModel, own_layers: int) -> None:
    """Compares the first ``own_layers`` in two parts with the same in one, and the learner's pass over them with the
    model's own, as if it had no others.

    Raises ``ConfigurationError`` for an architecture of which this is not true, or that ``check_network`` refuses.
    """
    whole: Any = model.base_model
    layers, middle = range(own_layers), own_layers // 2
    alone = part_of(whole, layers)
    ids = torch.tensor([[(7 * i + 3) % 11 for i in range(12)]], device=model.device)
    hidden: Tensor = part_of(whole, range(middle))(input_ids=ids, use_cache=False).last_hidden_state
    hidden = part_of(whole, range(middle, own_layers))(inputs_embeds=hidden, use_cache=False).last_hidden_state
    expected: Tensor = alone(input_ids=ids, use_cache=False).last_hidden_state
    if not torch.allclose(hidden, expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max())):
        raise ConfigurationError(
            f"{type(whole).__name__} computes something else in two parts than in one, so its layers cannot be divided "
            "among machines: set policy.stages = 0, or choose another policy.model"
        )
    setattr(alone, last_norm_name(whole), getattr(whole, last_norm_name(whole)))
    shorter: Any = copy.copy(model)
    shorter._modules = dict(shorter._modules)
    setattr(shorter, model.base_model_prefix, alone)
    check_network(shorter, Network.of(shorter), recompute=True)


class PartPass:
    """Runs a part in the learner's pass."""

    def __init__(self, part: torch.nn.Module) -> None:
        self.part = part
        self._layers = [module for module in part.modules() if isinstance(module, GradientCheckpointingLayer)]

    def __call__(self, cache: PassCache, recompute: bool, chunk_tokens: int | None, **given: Tensor | None) -> Tensor:
        """Returns the hidden states (B, T, D) that leave the last of the layers; ``recompute`` and ``chunk_tokens`` as
        in ``PassSettings``."""
        with ExitStack() as stack:
            if recompute:
                stack.enter_context(recomputed_layers(self._layers, cache, chunk_tokens))
            hidden: Tensor = self.part(**given, past_key_values=cache, use_cache=True).last_hidden_state
        return hidden
