"""The settings that cost memory, after "auto" has become a value."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from node.configuration import Config, DtypeName, OptimizerName

DeviceKind = Literal["cpu", "cuda", "mps"]


class MemorySettings(Struct, frozen=True, kw_only=True):
    """What a node runs with. A learner begins with ``rows`` and ``batch_tokens``; out of memory, it halves them."""

    dtype: DtypeName  # of the weights in the forward pass
    adapter_rank: int  # 0: every weight is trained
    four_bit: bool  # the base weights under an adapter
    rows: int  # sequences decoded side by side
    batch_tokens: int  # padded tokens of one micro-batch
    recompute: bool  # activations are computed again in the backward pass
    chunk_tokens: int | None  # of the sequence, in one piece of a recomputed layer; None: all of it
    optimizer: OptimizerName
    merge_adapters: bool  # for generation, into a copy of the matrices that they adapt
    store_bytes: int
    save_beside: bool = True  # a checkpoint is written from a copy while rounds continue; otherwise rounds wait for it
    averages: bool = True  # there is room to average weights with peers of the family, and to publish them


def with_settings(config: Config, settings: MemorySettings) -> Config:
    """Returns ``config`` with every "auto" that costs memory replaced by what ``settings`` say.

    Where there is no room to average and to publish weights, both are turned off.
    """
    without_peers = {} if settings.averages else {"every_rounds": 0}
    unpublished = {} if settings.averages else {"publish_every_rounds": 0}
    return config.model_copy(
        update={
            "averaging": config.averaging.model_copy(update=without_peers),
            "checkpoint": config.checkpoint.model_copy(update=unpublished),
            "swarm": config.swarm.model_copy(update={"store_bytes": settings.store_bytes}),
            "policy": config.policy.model_copy(
                update={
                    "adapter_rank": settings.adapter_rank,
                    "four_bit": settings.four_bit,
                    "dtype": settings.dtype,
                }
            ),
            "engine": config.engine.model_copy(update={"rows": settings.rows}),
            "learner": config.learner.model_copy(
                update={
                    "batch_tokens": settings.batch_tokens,
                    "recompute": settings.recompute,
                    "optimizer": settings.optimizer,
                }
            ),
        }
    )


def described(settings: MemorySettings) -> str:
    """Returns the choice in a few words."""
    what = "every weight" if settings.adapter_rank == 0 else f"an adapter of rank {settings.adapter_rank}"
    on = " on 4-bit weights" if settings.four_bit else f" in {settings.dtype}"
    optimizer = {"adamw": "AdamW", "adamw8bit": "AdamW in 8 bits", "host": "AdamW on the host"}[settings.optimizer]
    recomputed = ", recomputed" if settings.recompute else ""
    return f"{what}{on}, {optimizer}, passes of {settings.batch_tokens} tokens{recomputed}, {settings.rows} rows"


def assignments_of(settings: MemorySettings) -> str:
    """Returns the settings as options of the command line."""
    keys = {
        "policy.adapter_rank": settings.adapter_rank,
        "policy.four_bit": str(settings.four_bit).lower(),
        "policy.dtype": settings.dtype,
        "engine.rows": settings.rows,
        "learner.batch_tokens": settings.batch_tokens,
        "learner.recompute": str(settings.recompute).lower(),
        "learner.optimizer": settings.optimizer,
    }
    return " ".join(f"--set {key}={value}" for key, value in keys.items())
