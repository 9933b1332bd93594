"""The devices of one machine as a group of ``torch.distributed``, one process for each.

Numbers and tensors in main memory go over gloo, weights and gradients on NVIDIA cards over NCCL. The processes meet in
a file of the data directory, which is open to its owner alone, and speak over the loopback interface.

A network is in shards by torch's own FSDP2 (``torch.distributed.fsdp.fully_shard``). Of every parameter each device
holds the rows that ``rows_of`` names. A layer's weights are gathered when it runs, in the forward and in the backward
pass, and its gradients are summed in float32 onto the devices that hold the rows. Two groups stay whole from the first
use in a pass to the end of its backward pass: embedding and head, which the objective uses outside of the model's own
forward pass, and the last norm. Layers must be recomputed in the backward pass (``PassSettings.recompute``): then a
layer's gradient is there, and can be reduced, as soon as it has run backward.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from node.learner.objective.forward import Network
from node.learner.objective.report import ObjectiveReport
from node.learner.steps.devices import Devices

SILENT_SECONDS: Final = 600.0  # that one device waits for another, in a pass; then its process ends
_LOOPBACK: Final = "lo0" if sys.platform == "darwin" else "lo"


def share_processors(device: torch.device, count: int) -> None:
    """Gives this process its share of the threads, where ``count`` processes compute on the processor itself."""
    if device.type == "cpu":
        torch.set_num_threads(max(1, torch.get_num_threads() // count))


class DeviceGroup(Devices):
    """This process's place among them. All but the properties must be called by all processes in the same order."""

    def __init__(self, meeting: Path, rank: int, count: int, device: torch.device) -> None:
        """Returns once all have come. ``meeting`` is a file that is not there before the first of them comes."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=SILENT_SECONDS),
        )
        self.rank, self.count = rank, count
        self.mesh: DeviceMesh = init_device_mesh(device.type, (count,))

    def sums(self, values: Sequence[float]) -> list[float]:
        """Returns the sum of each value over all devices, the same to the bit on all. All call it in step."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        found: list[float] = total.tolist()
        return found

    def added(self, report: ObjectiveReport) -> ObjectiveReport:
        total = ObjectiveReport()
        for each in self._gathered(msgspec.msgpack.encode(report)):
            total.add(msgspec.msgpack.decode(each, type=ObjectiveReport))
        return total

    def _gathered(self, content: bytes) -> list[bytes]:
        """Returns what each process gave, in the order of ranks."""
        sizes = [int(size) for size in self.of_each(len(content))]
        own = torch.zeros(max(sizes), dtype=torch.uint8)
        own[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        parts = [torch.empty_like(own) for _ in sizes]
        dist.all_gather(parts, own)
        return [bytes(part[:size].numpy()) for part, size in zip(parts, sizes, strict=True)]

    def of_each(self, value: int) -> list[int]:
        """Returns the value of each process, in the order of ranks."""
        parts = [torch.empty(1, dtype=torch.int64) for _ in range(self.count)]
        dist.all_gather(parts, torch.tensor([value]))
        return [int(part) for part in parts]

    def send(self, tensor: Tensor, to: int) -> None:
        """Sends a tensor in main memory to process ``to``, which receives one of the same shape and dtype."""
        if tensor.numel():
            dist.send(_as_bytes(tensor), to)

    def receive(self, into: Tensor, sender: int) -> None:
        """Fills the contiguous tensor ``into``, in main memory, with what process ``sender`` sends."""
        if into.numel():
            dist.recv(_as_bytes(into), sender)

    def close(self) -> None:
        """Leaves the group; the others must too."""
        dist.destroy_process_group()


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def shard_network(network: Network, devices: DeviceMesh) -> None:
    """Puts the network's parameters in shards, onto ``devices``; from now on all of them must run it in step.

    A gradient is the sum over all devices.
    """
    reduced = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in network.layers:
        fully_shard(layer, mesh=devices, mp_policy=reduced)
    embedding: torch.nn.Module = network.body.get_input_embeddings()  # type: ignore[operator]
    fully_shard([embedding, network.head], mesh=devices, mp_policy=reduced, reshard_after_forward=False)
    fully_shard(network.body, mesh=devices, mp_policy=reduced)
    for module in _groups(network):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def reshard(network: Network) -> None:
    """Frees what is whole after passes without a gradient. Without it the next pass would use the weights of now."""
    for module in _groups(network):
        module.reshard()


def _groups(network: Network) -> Iterator[FSDPModule]:
    return (module for module in network.body.modules() if isinstance(module, FSDPModule))
