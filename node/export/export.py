"""Exports a checkpoint: check, read, average, write, record. It only reads the node's data, so the node may run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError
from torch import Tensor
from transformers.utils import logging as transformers_logging

from node.configuration import DEFAULT_STORE_BYTES, chosen
from node.configuration.published import shaping_configuration
from node.evaluation.restored import check_room_for_whole
from node.export.base_model import base_folder, base_name, check_family
from node.export.chat_format import write_chat_format
from node.export.export_result import Export, Progress, Request
from node.export.family_mean import MeanOfFamily, mean_of_family
from node.export.model_card import CardFacts, model_card
from node.export.new_folder import check_target, new_folder, write_record
from node.export.source import Source, source_of
from node.export.trained_weights import adapter_rank, trained_weights, write_adapter
from node.export.whole_model import (
    TOKENIZER_FILES,
    copy_files,
    stored_dtype,
    trained_model,
    write_four_bit_model,
    write_whole_model,
)
from node.home import Home
from node.printable import printable
from node.report.facts import RunFacts, run_facts
from node.state_sync.start_from_peers import FETCH_SHARE
from node.version import VERSION
from protocol.errors import ConfigurationError, StorageError
from swarm.client import SwarmClient

PROGRESS_SECONDS = 1.0
ADAPTER_ITEM_BYTES = 4  # float32
FOUR_BIT_SHARE = 1.6  # of the whole model's bytes: itself, and beside it the one in 4 bits with embedding and head


def export(home: Home, request: Request, progress: Progress) -> Export:
    """Exports what ``request`` names; its folder then exists whole. If this raises, nothing has changed.

    Raises ``ConfigurationError`` for a checkpoint, base model or folder that cannot be used, ``StorageError`` for a
    damaged checkpoint, for weights that are not finite, and for a full disk.
    """
    check_target(request.folder, force=request.force)
    progress.step("checking the checkpoint")
    source = source_of(home, request.checkpoint, request.model)
    progress.step(f"reading round {source.round}")
    own = trained_weights(source.path)
    found = _replicas(home, source, own, request, progress)
    weights = found.weights
    form: Literal["model", "adapter"] = "model" if request.merge or not adapter_rank(own) else "adapter"
    if request.four_bit and form == "adapter":
        raise ConfigurationError("an adapter alone is not exported in 4 bits: add --merge for a whole model")
    if form == "model":
        check_room_for_whole(source.policy)
    base, unchecked = _base(source, form, weights, progress)
    write, needed_bytes = _writing(source, form, weights, base, progress, four_bit=request.four_bit)
    with new_folder(request.folder, force=request.force, needed_bytes=needed_bytes) as folder:
        progress.step("writing")
        with _watched(folder, needed_bytes, progress), _library_errors(request.folder):
            write(folder)
        if base is not None:
            write_chat_format(folder, base, source.policy.chat)
        card = CardFacts(
            source,
            form,
            request.four_bit,
            trained_parameters=sum(tensor.numel() for tensor in weights.values()),
            adapter_rank=adapter_rank(weights),
            replicas=found.replicas,
            run=_run(source),
        )
        (folder / "README.md").write_text(model_card(card), encoding="utf-8")
        record = {
            "starling": VERSION,
            "form": form,
            "family": source.family.hex(),
            "round": source.round,
            "policy_version": source.state.get("policy_version"),
            "replicas": found.replicas,
            "configuration": shaping_configuration(source.config),
            "four_bit": request.four_bit,
        }
        write_record(folder, record)
        size_bytes = sum(path.stat().st_size for path in folder.iterdir())
    return Export(
        folder=str(request.folder.absolute()),
        form=form,
        four_bit=request.four_bit,
        model=source.policy.model,
        family=source.family.hex(),
        round=source.round,
        checkpoint=str(source.path),
        replicas=found.replicas,
        replicas_because=found.because,
        warnings=(*found.warnings, *unchecked),
        size_bytes=size_bytes,
    )


def _base(
    source: Source, form: str, weights: Mapping[str, Tensor], progress: Progress
) -> tuple[Path | None, tuple[str, ...]]:
    """Returns the base model's folder, whose family is that of the weights. An adapter alone does without one: then
    returns None and what is missing."""
    base, missing = base_folder(source)
    if base is not None:
        progress.step(f"checking {printable(source.policy.model)}")
        check_family(source, weights, base)
        return base, ()
    if form == "model":
        raise ConfigurationError(f"{missing}; say where the base model is with --model")
    return None, (f"without the base model's tokenizer, and its weights are not checked: {missing}",)


def _writing(
    source: Source,
    form: str,
    weights: Mapping[str, Tensor],
    base: Path | None,
    progress: Progress,
    *,
    four_bit: bool,
) -> tuple[Callable[[Path], None], int]:
    """Returns what writes weights and tokenizer into a folder, and how many bytes that takes, about."""
    if form == "model" and base is not None:
        progress.step(f"loading {printable(source.policy.model)}")
        model = trained_model(base, weights)
        values = sum(parameter.numel() for parameter in model.parameters())
        whole_bytes = values * stored_dtype(base).itemsize
        if four_bit:
            return lambda folder: write_four_bit_model(folder, model, base), int(FOUR_BIT_SHARE * whole_bytes)
        return lambda folder: write_whole_model(folder, model, base), whole_bytes

    def write(folder: Path) -> None:
        write_adapter(folder, weights, base_name(source, base))
        if base is not None:
            copy_files(base, folder, TOKENIZER_FILES)

    return write, ADAPTER_ITEM_BYTES * sum(tensor.numel() for tensor in weights.values())


def _replicas(
    home: Home, source: Source, own: Mapping[str, Tensor], request: Request, progress: Progress
) -> MeanOfFamily:
    if not request.mean_of_family:
        return MeanOfFamily(own, 1, "this node's own replica", ())
    configured = dict(source.config.get("swarm") or {}).get("store_bytes", "auto")
    room_bytes = int(FETCH_SHARE * chosen(configured, DEFAULT_STORE_BYTES))
    with SwarmClient(home.swarm_socket) as swarm:
        return mean_of_family(swarm, source.family, own, room_bytes=room_bytes, progress=progress)


def _run(source: Source) -> RunFacts | None:
    try:
        return run_facts(source.metrics, until_round=source.round)
    except (ConfigurationError, StorageError):
        return None


@contextmanager
def _library_errors(target: Path) -> Iterator[None]:
    """Turns the library's error for a full disk into ours."""
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    except SafetensorError as error:
        raise StorageError(
            f"the export to {target} failed ({error}), and what was begun is removed: free some space, or name another "
            "folder"
        ) from error


@contextmanager
def _watched(folder: Path, expected_bytes: int, progress: Progress) -> Iterator[None]:
    """Reports how much is written, once a second."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(PROGRESS_SECONDS):
            with suppress(FileNotFoundError):  # a file that is only needed meanwhile
                progress.size(sum(path.stat().st_size for path in folder.iterdir()), expected_bytes)

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
