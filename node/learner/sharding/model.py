"""A policy's network in shards, by torch's own FSDP2 (``torch.distributed.fsdp.fully_shard``).

Of every parameter each device holds the rows that ``rows_of`` names. A layer's weights are gathered when it runs, in
the forward and in the backward pass, and its gradients are summed in float32 onto the devices that hold the rows. Two
groups stay whole from the first use in a pass to the end of its backward pass: embedding and head, which the objective
uses outside of the model's own forward pass, and the last norm.

Layers must be recomputed in the backward pass (``PassSettings.recompute``): then a layer's gradient is there, and can
be reduced, as soon as it has run backward. Without it autograd would hold whole gradients of all layers to the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from node.learner.objective.forward import Network

_REDUCED = MixedPrecisionPolicy(reduce_dtype=torch.float32)


def shard_network(network: Network, devices: DeviceMesh) -> None:
    """Puts the network's parameters in shards, onto ``devices``; from now on all of them must run it in step.

    A gradient is the sum over all devices.
    """
    for layer in network.layers:
        fully_shard(layer, mesh=devices, mp_policy=_REDUCED)
    embedding: torch.nn.Module = network.body.get_input_embeddings()  # type: ignore[operator]
    fully_shard([embedding, network.head], mesh=devices, mp_policy=_REDUCED, reshard_after_forward=False)
    fully_shard(network.body, mesh=devices, mp_policy=_REDUCED)
    for module in _groups(network):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def reshard(network: Network) -> None:
    """Frees what is whole after passes without a gradient. Without it the next pass would use the weights of now."""
    for module in _groups(network):
        module.reshard()


def _groups(network: Network) -> Iterator[FSDPModule]:
    return (module for module in network.body.modules() if isinstance(module, FSDPModule))
