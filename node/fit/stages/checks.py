"""What an owner takes to check a machine (``node.stages.checking``), and what it has for that. Pure.

A check comes between two rounds, when what learning takes beside weights and optimizer is free:

    takes   a layer and its factors; what the layer keeps of the sample; hidden states of the sample at each of the
            machine's layers, and those that it was asked and answered; its factors' gradients, theirs and ours
    has     activations of the owner's layers, the head's, and gradients of all factors, as the plan counts them for
            learning, and what the plan leaves free
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from node.fit.activations import ELEMENT_BYTES, FLOAT_BYTES, PassShape, activation_bytes, head_bytes, pass_shape
from node.fit.footprint import trained_parameters, weight_bytes
from node.fit.model_sizes import ModelSizes
from node.fit.settings import DeviceKind, MemorySettings
from node.fit.stages.plan import StagePlan
from node.fit.stages.work import stage_sizes
from node.fit.workload import Workload

SAMPLE: Final = PassShape(prompts=2, rows=4, prompt_tokens=48, answer_tokens=16, passes=1)  # at most
WITNESSED: Final = 6  # times the sample: what was asked and answered in generating, and forward and back in learning


def check_bytes(sizes: ModelSizes, settings: MemorySettings, layers: int, device: DeviceKind = "cpu") -> int:
    """Returns what checking a machine of so many layers takes at its peak."""
    one, theirs = (stage_sizes(sizes, count, is_owner=False) for count in (1, layers))
    layer = weight_bytes(one, settings) + FLOAT_BYTES * trained_parameters(one, settings)
    kept = activation_bytes(one, replace(settings, recompute=False, chunk_tokens=None), SAMPLE, device)
    hidden = (layers + 1 + WITNESSED) * SAMPLE.tokens * sizes.hidden * ELEMENT_BYTES[settings.dtype]
    return layer + kept + hidden + 2 * FLOAT_BYTES * trained_parameters(theirs, settings)


def missing_for_checks(plan: StagePlan, sizes: ModelSizes, workload: Workload, device: DeviceKind = "cpu") -> int:
    """Returns how many bytes the owner lacks to check any of its machines; 0 or less where it has enough."""
    own, settings = plan.held[0], plan.settings
    part, shape = stage_sizes(sizes, own.last, is_owner=True), pass_shape(workload, settings.batch_tokens)
    learning = activation_bytes(part, settings, shape, device) + head_bytes(sizes, shape, device)
    learning += FLOAT_BYTES * trained_parameters(sizes, settings)
    layers = max(each.last - each.first for each in plan.held[1:])
    return check_bytes(sizes, settings, layers, device) - learning - (own.usable_bytes - own.expected_bytes)
