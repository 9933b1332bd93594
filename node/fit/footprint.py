"""What training a model takes in memory: bytes by part and by phase of a round. One pure function, ``footprint_of``.

With P parameters, T of them trained, and w bytes an element of the weights:

    weights        w P; in 4 bits the layers' matrices take 0.52 bytes a weight (NF4, two levels of scales); an adapter
                   is float32
    gradients      4 T, float32. Within a pass autograd adds up the uses of a weight, by prompts and by completions,
                   before it gives the sum away: from the second pass of a round on, a pass's sums and those of earlier
                   passes are there at once. A tied head's share, and those of recomputed layers, do not wait
    optimizer      8 T for moments in float32, 2 T in 8 bits with two scales for every 256, and 4 T for a float32 master
                   of weights in bfloat16; on the host all of these
    engine         queries, keys and values packed, w; with merged adapters also a copy of each matrix that they adapt
    elsewhere      an engine in a process of its own: that process, with all weights once more, and two copies of what
                   is trained in bfloat16, those that it holds and those that it gets; ``node.fit.vllm`` has vLLM's
    donors         where some are invited: ``DONOR_COPIES`` of what is trained, in bfloat16
    keys, values   2 k w a token and layer; a prompt's once for the rows that continue it
    activations    ``node.fit.activations``
    checkpoint     a copy of what is trained, of moments, masters and the state of averaging, in main memory; where
                   rounds wait for it, only of what is on the GPU
    averaging      dense: φ and m, 8 T, and while an exchange runs 24 T more; compressed: φ and e, 8 T, and 12 T more;
                   the weights from before the step that is on trial, 4 T.
                   It runs beside learning, and so does publishing: two copies in bfloat16, 4 T
    against harm   where groups of others are learnt from: ``HARM_COPIES`` times weights in float32 and moments, in main
                   memory; nothing above ``HARM_COPIED_WEIGHTS``

A round generates, then learns, then steps; the peak is that of one phase, not the sum. What runs in the background is
added to each phase. Without CUDA everything is in main memory. ``node.fit.shards`` has what a learner on several
devices divides, and what each of them holds besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from node.configuration import DtypeName
from node.fit.activations import (
    ELEMENT_BYTES,
    FLOAT_BYTES,
    PassShape,
    activation_bytes,
    head_bytes,
    pass_shape,
)
from node.fit.generating import engine_bytes, generation_bytes
from node.fit.model_sizes import ModelSizes
from node.fit.optimizer_size import STEP_BYTES, OptimizerBytes, optimizer_bytes
from node.fit.settings import DeviceKind, MemorySettings
from node.fit.shards import Shards, gathered_bytes
from node.fit.vllm import on_card, processor_bytes, vllm_of
from node.fit.workload import Workload

Place = Literal["device", "host"]

LEARNER_BYTES: Final = 520_000_000  # its process with torch and all libraries, before a model; on Linux x86-64
GENERATING_BYTES: Final = 40_000_000  # what the process grows by when it generates: compiled kernels, stacks
LEARNING_BYTES: Final = 160_000_000  # and when it learns: those of the backward pass, and gaps in the heap
ENGINE_PROCESS_BYTES: Final = 480_000_000  # with torch and all libraries, before a model; on Linux x86-64
CUDA_LEARNER_BYTES: Final = 2_500_000_000  # the same with CUDA's libraries; not measured yet
CUDA_CONTEXT_BYTES: Final = 600_000_000  # on the device; not measured yet
OTHER_PROCESSES_BYTES: Final = 200_000_000  # supervisor, swarm process and one scoring worker
FOUR_BIT_BYTES: Final = 0.52  # a weight: 4 bits, an 8-bit scale for every 64, a float32 for every 256 of these
MAX_DENSE_WEIGHTS: Final = 50_000_000  # ``node.averaging.rules``: above, averaging is compressed
DONOR_COPIES: Final = 3  # in bfloat16: the weights that donors hold, those that they get, and diffs of as many bytes
HARM_COPIES: Final = 2  # of weights and moments, that ``node.learner.influence.guard`` keeps to put back
HARM_COPIED_WEIGHTS: Final = 90_000_000  # trained, at most: a gigabyte for each copy
FRAGMENTS: Final = 0.04  # of what is allocated and freed in a phase: gaps that the allocator cannot use again


class Part(Struct, frozen=True):
    name: str
    bytes: int
    place: Place


class Phase(Struct, frozen=True):
    """One phase of a round with everything that is in memory then."""

    name: str
    parts: tuple[Part, ...]

    def bytes(self, place: Place) -> int:
        return sum(part.bytes for part in self.parts if part.place == place)


class Footprint(Struct, frozen=True):
    """The phases of a round; without CUDA every part is on the host."""

    phases: tuple[Phase, ...]
    checkpoint_bytes: int  # on disk, each
    published_bytes: int  # of one anchor in the store

    def peak(self, place: Place) -> Phase:
        """Returns the phase that takes most there."""
        return max(self.phases, key=lambda phase: phase.bytes(place))

    def peak_bytes(self, place: Place) -> int:
        return self.peak(place).bytes(place)

    def phase(self, name: str) -> Phase:
        return next(phase for phase in self.phases if phase.name == name)


def footprint_of(
    sizes: ModelSizes, settings: MemorySettings, workload: Workload, device: DeviceKind = "cpu"
) -> Footprint:
    """Returns what a learner of ``sizes`` takes under ``settings``. Pure."""
    trained = trained_parameters(sizes, settings)
    shape = pass_shape(workload, settings.batch_tokens)
    shards = Shards(workload.devices, on_cards=device == "cuda")
    resident = _resident(sizes, settings, workload, device, trained)
    background = _background(settings, workload, device, trained)
    vllm = vllm_of(settings, workload)
    generating = generation_bytes(sizes, settings, workload) if vllm is None else on_card(vllm, device == "cuda")
    ahead = generating if workload.generates_ahead and not shards.has_engine_card else {}
    learning = _learning(sizes, settings, shape, trained, device)
    gathered = {"gathered layers": gathered_bytes(sizes, settings)} if shards.devices > 1 else {}
    stepping = {"compiled kernels": LEARNING_BYTES, "gradients": FLOAT_BYTES * trained, "step": STEP_BYTES}
    phases = {
        "generating": {"compiled kernels": GENERATING_BYTES} | generating,
        "learning": shards.of_a_place({"compiled kernels": LEARNING_BYTES} | learning | gathered) | ahead,
        "stepping": shards.of_a_place(stepping) | ahead,
    }
    found = [Phase(name, (*resident, *background, *_parts(parts, "device", device))) for name, parts in phases.items()]
    if shards.devices > 1:
        found += _phases_in_shards(sizes, settings, workload, device, generating, trained)
    checkpoint = checkpoint_tensor_bytes(settings, workload, trained)
    if not settings.save_beside and device == "cuda":
        on_host = _optimizer_bytes(settings, trained).host + _averaging_state_bytes(settings, workload, trained)
        found.append(Phase("saving", (*resident, Part("checkpoint copy", checkpoint - on_host, "host"))))
    return Footprint(tuple(found), checkpoint, 2 * trained)


def _phases_in_shards(
    sizes: ModelSizes,
    settings: MemorySettings,
    workload: Workload,
    device: DeviceKind,
    generating: dict[str, int],
    trained: int,
) -> list[Phase]:
    """Returns the phases that only a learner on several devices has: each process loads the whole model into main
    memory and divides it there, and of GPUs one more has the engine, and nothing else."""
    whole, state = weight_bytes(sizes, settings), _optimizer_bytes(settings, trained)
    processes = (CUDA_LEARNER_BYTES if device == "cuda" else LEARNER_BYTES) * workload.devices + OTHER_PROCESSES_BYTES
    loading = Phase(
        "loading",
        (
            Part("weights", whole * workload.devices, "host"),
            Part("optimizer", state.device + state.host, "host"),
            Part("processes", processes, "host"),
        ),
    )
    if device != "cuda":
        return [loading]
    of_its_own = {"weights in the engine's process": whole} if vllm_of(settings, workload) is None else {}
    engine = of_its_own | {"CUDA": CUDA_CONTEXT_BYTES} | generating
    return [loading, Phase("generating, on the engine's GPU", tuple(_parts(engine, "device", device)))]


def trained_parameters(sizes: ModelSizes, settings: MemorySettings) -> int:
    return sizes.adapter_parameters(settings.adapter_rank) if settings.adapter_rank else sizes.parameters


def weight_bytes(sizes: ModelSizes, settings: MemorySettings) -> int:
    """Returns the bytes of the base weights, and of the adapter."""
    width = ELEMENT_BYTES[settings.dtype]
    matrices = sizes.layers * sizes.layer_parameters
    base = width * sizes.parameters
    if settings.four_bit:
        base = round(FOUR_BIT_BYTES * matrices) + width * (sizes.parameters - matrices)
    return base + FLOAT_BYTES * sizes.adapter_parameters(settings.adapter_rank)


def checkpoint_tensor_bytes(settings: MemorySettings, workload: Workload, trained: int) -> int:
    """Returns the bytes of a checkpoint, in memory while it is written and on disk."""
    weights = (FLOAT_BYTES if settings.adapter_rank else ELEMENT_BYTES[settings.dtype]) * trained
    state = _optimizer_bytes(settings, trained)
    return weights + state.device + state.host + _averaging_state_bytes(settings, workload, trained)


def _averaging_state_bytes(settings: MemorySettings, workload: Workload, trained: int) -> int:
    return 12 * trained if workload.averages and settings.averages else 0


def _bytes_against_harm(settings: MemorySettings, workload: Workload, trained: int) -> int:
    state = _optimizer_bytes(settings, trained)
    weights = 0 if settings.optimizer == "host" or _trained_dtype(settings) != "float32" else 1  # or masters are copied
    copy = state.device + state.host + weights * FLOAT_BYTES * trained
    return HARM_COPIES * copy if workload.foreign_groups and trained <= HARM_COPIED_WEIGHTS else 0


def _resident(
    sizes: ModelSizes, settings: MemorySettings, workload: Workload, device: DeviceKind, trained: int
) -> list[Part]:
    """Returns what is there in every phase."""
    trained_width = FLOAT_BYTES if settings.adapter_rank else ELEMENT_BYTES[settings.dtype]
    shards, vllm = Shards(workload.devices, on_cards=device == "cuda"), vllm_of(settings, workload)
    packed = engine_bytes(sizes, settings) if vllm is None else 0
    on_device = {
        "weights": shards.share(weight_bytes(sizes, settings)),
        "engine's copies": packed + workload.engine_copies * trained_width * trained,
        "reference": workload.has_reference * FLOAT_BYTES * trained,
        "optimizer": shards.share(_optimizer_bytes(settings, trained).device),
    }
    if workload.engine_elsewhere and vllm is None and not shards.has_engine_card:
        on_device["weights in the engine's process"] = weight_bytes(sizes, settings)
    on_host = _engine_process_parts(sizes, settings, workload, device, trained) | {
        "copies for donors": DONOR_COPIES * 2 * trained if workload.has_donors else 0,
        "optimizer": _optimizer_bytes(settings, trained).host,
        "averaging's state": _averaging_state_bytes(settings, workload, trained),
        "copies against harm": _bytes_against_harm(settings, workload, trained),
        "published weights": 2 * trained if workload.publishes and settings.averages else 0,
        "learner process": (CUDA_LEARNER_BYTES if device == "cuda" else LEARNER_BYTES) * workload.devices,
        "other processes": OTHER_PROCESSES_BYTES,
    }
    parts = [*_parts(on_device, "device", device), *_parts(on_host, "host", device)]
    contexts = 1 + (workload.engine_elsewhere and not shards.has_engine_card)
    return [*parts, Part("CUDA", contexts * CUDA_CONTEXT_BYTES, "device")] if device == "cuda" else parts


def _engine_process_parts(
    sizes: ModelSizes, settings: MemorySettings, workload: Workload, device: DeviceKind, trained: int
) -> dict[str, int]:
    """Returns what an engine in a process of its own takes of main memory, in the learner's process too."""
    if not workload.engine_elsewhere:
        return {}
    vllm, copies = vllm_of(settings, workload), 2 * 2 * trained
    if vllm is None:
        return {"engine process": (CUDA_LEARNER_BYTES if device == "cuda" else ENGINE_PROCESS_BYTES) + copies}
    whole = weight_bytes(sizes, settings)
    if device == "cuda":
        return {"copies for the engine": copies, "vLLM's process": CUDA_LEARNER_BYTES + whole + 2 * trained}
    return {"copies for the engine": copies} | processor_bytes(sizes, settings, vllm, whole, trained)


def _background(settings: MemorySettings, workload: Workload, device: DeviceKind, trained: int) -> list[Part]:
    """Returns what may be there beside any phase, in main memory."""
    parts = {}
    if settings.save_beside:
        parts["checkpoint copy"] = checkpoint_tensor_bytes(settings, workload, trained)
    if workload.averages and settings.averages:
        parts["averaging"] = (24 if trained <= MAX_DENSE_WEIGHTS else 12) * trained
    if workload.publishes and settings.averages:
        parts["publishing"] = 2 * trained
    return _parts(parts, "host", device)


def _learning(
    sizes: ModelSizes, settings: MemorySettings, shape: PassShape, trained: int, device: DeviceKind
) -> dict[str, int]:
    """Returns what is there at the greater of two moments of the last pass: its backward pass begins, or has reached
    the prompts."""
    whole, several = settings.adapter_rank == 0, shape.passes > 1
    width, gradients = ELEMENT_BYTES[settings.dtype], FLOAT_BYTES * trained
    head = width * sizes.vocabulary * sizes.hidden if whole else 0
    layers = width * sizes.layers * sizes.layer_parameters if whole else gradients
    begun = {
        "gradients": gradients if several else 0,
        "activations": activation_bytes(sizes, settings, shape, device),
        "head": head_bytes(sizes, shape, device),
        "sums of a pass": head,
    }
    # In the only pass of a round the sums become the gradients. An untied embedding's sum is there with both its terms.
    waiting = (0 if sizes.tied else 3 * head) + (layers if several and not settings.recompute else 0)
    ended = {
        "gradients": gradients,
        "activations": activation_bytes(sizes, settings, replace(shape, rows=0), device),
        "sums of a pass": waiting,
    }
    most = max(begun, ended, key=lambda moment: sum(moment.values()))
    moving = sum(amount for name, amount in most.items() if name != "gradients")
    return most | {"fragments": round(FRAGMENTS * moving)}


def _optimizer_bytes(settings: MemorySettings, trained: int) -> OptimizerBytes:
    return optimizer_bytes(settings.optimizer, trained, _trained_dtype(settings))


def _trained_dtype(settings: MemorySettings) -> DtypeName:
    return "float32" if settings.adapter_rank else settings.dtype


def _parts(amounts: Mapping[str, int], place: Place, device: DeviceKind) -> list[Part]:
    where: Place = place if device == "cuda" else "host"
    return [Part(name, amount, where) for name, amount in amounts.items() if amount]
