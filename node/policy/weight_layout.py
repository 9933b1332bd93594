"""The wire layout of a policy's trained weights."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from node.policy.whole_tensors import shapes_of
from protocol.weights.tensor_layout import TensorLayout


def layout_of(weights: Mapping[str, Tensor]) -> TensorLayout:
    """Names and shapes of ``weights``, trained parameters by name, in the layout's own order."""
    return TensorLayout.of(shapes_of(weights))
