"""The settings that a plan tries, from the most wanted to the smallest; ``plan`` says why in this order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from node.configuration import (
    DEFAULT_BATCH_TOKENS,
    DEFAULT_ROWS,
    DEFAULT_STORE_BYTES,
    Config,
    DtypeName,
    chosen,
)
from node.fit.machine import Machine
from node.fit.settings import MemorySettings

ADAPTER_RANK: Final = 16
ROWS: Final = (DEFAULT_ROWS, 64, 32, 16, 8, 4, 2, 1)
MIN_BATCH_TOKENS: Final = 256
CHUNK_TOKENS: Final = 1024
# Tokens of a pass, whether it is recomputed, and in chunks of how many tokens; from the fastest to the smallest.
PASSES: Final[tuple[tuple[int, bool, int | None], ...]] = (
    (DEFAULT_BATCH_TOKENS, False, None),
    (4096, False, None),
    (DEFAULT_BATCH_TOKENS, True, None),
    (DEFAULT_BATCH_TOKENS, True, CHUNK_TOKENS),
    (4096, True, CHUNK_TOKENS),
    (2048, True, CHUNK_TOKENS),
    (1024, True, CHUNK_TOKENS),
    (512, True, 512),
    (MIN_BATCH_TOKENS, True, MIN_BATCH_TOKENS),
)


class Trained(Struct, frozen=True):
    """What decides the policy's family."""

    adapter_rank: int
    four_bit: bool


def candidates(config: Config, machine: Machine, kept: Trained | None) -> Iterator[MemorySettings]:
    """Yields settings from the most wanted to the smallest, each with everything that a person set."""
    asked = config.policy
    for rank, four_bit, dtype in _trainings(config, machine, kept):
        for averages in (True, False):
            full = _settings(config, rank, four_bit, asked.dtype if asked.dtype != "auto" else dtype, averages)
            last = full
            for way in _ways(config, machine, full):
                yield (last := way)
            # Rows count while generating, passes while learning: for as many rows as fit, as large a pass as fits.
            for rows in _rows(config):
                for tokens, recompute, chunk in _passes(config):
                    yield msgspec.structs.replace(
                        last, rows=rows, batch_tokens=tokens, recompute=recompute, chunk_tokens=chunk
                    )


def _trainings(config: Config, machine: Machine, kept: Trained | None) -> Iterator[tuple[int, bool, DtypeName]]:
    """Yields rank, 4 bits and dtype, in order of preference."""
    rank, four_bit = config.policy.adapter_rank, config.policy.four_bit
    if config.learner.devices > 1:  # ``node.configuration.devices`` refuses true
        four_bit = False
    if kept is not None:
        rank, four_bit = chosen(rank, kept.adapter_rank), chosen(four_bit, kept.four_bit)
    ranks: Sequence[int] = [0, ADAPTER_RANK] if rank == "auto" else [rank]
    if four_bit is not True:
        for each in ranks:
            yield each, False, machine.dtype
        if machine.device == "cpu" and ranks[-1] > 0:
            yield ranks[-1], False, "bfloat16"
    if ranks[-1] > 0 and (four_bit is True or (four_bit == "auto" and machine.device == "cuda")):
        yield ranks[-1], True, machine.dtype


def _settings(config: Config, rank: int, four_bit: bool, dtype: DtypeName, averages: bool) -> MemorySettings:
    """Returns the fastest settings for one way of training."""
    batch_tokens, recompute, chunk = _passes(config)[0]
    return MemorySettings(
        dtype=dtype,
        adapter_rank=rank,
        four_bit=four_bit,
        rows=_rows(config)[0],
        batch_tokens=batch_tokens,
        recompute=recompute,
        chunk_tokens=chunk,
        optimizer=chosen(config.learner.optimizer, "adamw"),
        merge_adapters=not four_bit,
        store_bytes=chosen(config.swarm.store_bytes, DEFAULT_STORE_BYTES),
        averages=averages,
    )


def _ways(config: Config, machine: Machine, full: MemorySettings) -> Iterator[MemorySettings]:
    """Yields what saves memory at little cost, each step with those before it."""
    yield full
    yield (full := msgspec.structs.replace(full, save_beside=False))
    if full.adapter_rank:
        if full.merge_adapters:
            yield msgspec.structs.replace(full, merge_adapters=False)
    elif config.learner.optimizer == "auto":
        if config.learner.devices == 1:
            yield msgspec.structs.replace(full, optimizer="adamw8bit")
        if machine.device == "cuda":
            yield msgspec.structs.replace(full, optimizer="host")


def _passes(config: Config) -> list[tuple[int, bool, int | None]]:
    """Returns ``PASSES`` with what a person set."""
    tokens, recompute = config.learner.batch_tokens, config.learner.recompute
    if config.learner.devices > 1:
        recompute = True
    found = []
    for each_tokens, each_recompute, chunk in PASSES:
        wanted = chosen(recompute, each_recompute)
        each = (chosen(tokens, each_tokens), wanted, chunk if wanted else None)
        if each not in found:
            found.append(each)
    return found


def _rows(config: Config) -> list[int]:
    return list(ROWS) if config.engine.rows == "auto" else [config.engine.rows]


def with_keys(config: Config, **sections: Mapping[str, object]) -> Config:
    changed = {name: getattr(config, name).model_copy(update=dict(keys)) for name, keys in sections.items()}
    return config.model_copy(update=changed)
