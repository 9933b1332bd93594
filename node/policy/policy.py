"""The policy: a Hugging Face causal model, trained whole or by a LoRA adapter, over a base that may be in 4 bits."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from node.configuration import PolicySection, chosen
from node.policy.adapter import is_adapted, with_adapter
from node.policy.base_weights import base_weights_digest
from node.policy.device import choose_device, choose_dtype
from node.policy.family import family_of
from node.policy.first_factors import draw_first_factors
from node.policy.four_bit import check_four_bit, quantization_states, weights_of
from node.policy.loading import base_without_weights, load_base
from node.policy.model_files import model_folder
from node.policy.model_name import model_name
from node.policy.tokens import TokenTable, load_tokens
from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from peft import PeftModel


@dataclass(frozen=True, eq=False)
class Policy:
    """A causal model ready to sample from and to train.

    ``model`` is in evaluation mode: dropout would make the learner's log-probabilities differ from the engine's.
    ``vocabulary`` is the width of the model's logits, at least ``tokens.vocabulary``. Logits beyond the tokenizer's are
    padding, and are left out wherever tokens are drawn or their probabilities computed.
    """

    model: PreTrainedModel | PeftModel
    tokens: TokenTable
    family: bytes
    label: str  # for people: at most ``limits.NAME_BYTES`` bytes
    device: torch.device
    dtype: torch.dtype
    vocabulary: int
    four_bit: bool = False  # the base weights under the adapter

    @property
    def base(self) -> PreTrainedModel:
        """The Hugging Face model without an adapter's wrapper; its modules are the adapted ones."""
        base = self.model.get_base_model() if is_adapted(self.model) else self.model
        assert isinstance(base, PreTrainedModel)
        return base

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """Returns the live parameters that learning changes, by name, in a fixed order; tied weights appear once."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def weights(self) -> Mapping[str, Tensor]:
        """Returns the same, live, for code that only reads them. Of a policy in shards each is put together when it is
        asked for (``WholeTensors``)."""
        return self.trainable()

    @property
    def context(self) -> int | None:
        """Returns how many positions the model has; None where its configuration does not say."""
        positions: int | None = getattr(self.base.config, "max_position_embeddings", None)
        return positions

    @property
    def parameters(self) -> int:
        """How many parameters the model has, an adapter's included; tied weights count once."""
        return sum(weights_of(p) for p in self.model.parameters())

    @property
    def adapted_parameters(self) -> int:
        """How many parameters the model under the adapter has; 0 where all weights are trained."""
        if not is_adapted(self.model):
            return 0
        return self.parameters - sum(p.numel() for p in self.trainable().values())

    def separate(self) -> Policy:
        """Returns a copy with trained parameters of its own; parameters that are never trained are shared."""
        shared: dict[int, Any] = {id(p): p for p in self.model.parameters() if not p.requires_grad}
        shared |= {id(state): state for state in quantization_states(self.model)}
        return replace(self, model=copy.deepcopy(self.model, shared))

    @classmethod
    def load(cls, section: PolicySection) -> Policy:
        """Loads the base model of ``section``, and an adapter as its family begins.

        Raises ``ConfigurationError`` if the model cannot be found, read or used on the configured device.
        """
        return cls._loaded(section, has_weights=True)

    @classmethod
    def without_weights(cls, section: PolicySection) -> Policy:
        """Returns the policy of ``section`` as ``load`` does, but for its numbers: base weights and factors are on the
        meta device, for ``held_layers`` to read some of them. Its family is that of the whole.

        Raises ``ConfigurationError`` as ``load``, and where whole weights are trained or the base is in 4 bits.
        """
        if chosen(section.adapter_rank, 0) == 0 or chosen(section.four_bit, False):
            raise ConfigurationError(
                "a model over several machines is trained by an adapter over weights that are not in 4 bits: set "
                "policy.adapter_rank, for example to 16, and policy.four_bit = false"
            )
        return cls._loaded(section, has_weights=False)

    @classmethod
    def _loaded(cls, section: PolicySection, *, has_weights: bool) -> Policy:
        device = choose_device(section.device)
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans each new length for 23 to 37 ms, and keeps every plan
        dtype = choose_dtype(section.dtype, device)
        rank, four_bit = chosen(section.adapter_rank, 0), chosen(section.four_bit, False)
        if four_bit:
            check_four_bit(rank, device)
        folder = model_folder(section.model)
        tokens = load_tokens(folder, section.chat)
        digest = base_weights_digest(folder)  # before the weights are loaded: it also says that they are sound
        if has_weights:
            base = load_base(folder, device, dtype, four_bit=four_bit)
        else:
            base = base_without_weights(folder, dtype)
        with nullcontext() if has_weights else torch.device("meta"):
            model = base if rank == 0 else with_adapter(base, rank)
        model.eval()
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        shapes = {name: tuple(p.shape) for name, p in trained.items()}
        family = family_of(base.config, tokens.fingerprint, digest, shapes, four_bit=four_bit)
        if has_weights:
            draw_first_factors(trained, family)
        label = model_name(section.model, rank, four_bit=four_bit)
        vocabulary = int(base.get_output_embeddings().weight.shape[0])  # type: ignore[no-untyped-call]
        return cls(model, tokens.within(vocabulary), family, label, device, dtype, vocabulary, four_bit)
