"""Parts of the learner that an experiment takes out or replaces, one at a time, to see what they do.

They are no settings of a node: nobody would set them. Each of ``ABLATIONS`` replaces a name in one module of the node
while a run lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import ModuleType
from typing import Final

from torch import Tensor, nn

from node.learner.answers.right_answers import Rehearsal
from node.learner.round import learning
from node.learner.steps import step
from node.learner.steps.adamw.slices import Scratch
from node.learner.steps.optimizer import MasterAdamW
from node.policy.policy import Policy


@contextmanager
def _replaced(module: ModuleType | type, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _head_slower(scale: float) -> AbstractContextManager[None]:
    """Of what is trained beside an adapter's factors the learning rate is ``scale`` times theirs."""
    whole = MasterAdamW._step

    def step_one(self: MasterAdamW, name: str, gradient: Tensor, clip: float, rate: float, scratch: Scratch) -> None:
        whole(self, name, gradient, clip, rate if ".lora_" in name else scale * rate, scratch)

    return _replaced(MasterAdamW, "_step", step_one)


ABLATIONS: Final[Mapping[str, Callable[[], AbstractContextManager[None]]]] = {
    "whole steps": partial(_replaced, step, "signal_share", lambda *batch: 1.0),
    "nothing seen again": partial(_replaced, Rehearsal, "drawn", lambda *arguments: []),
    "imitation at the learning rate": partial(_replaced, learning, "IMITATION_RATE", 1.0),
    "head at a tenth of the rate": partial(_head_slower, 0.1),
}


def change_trained(policy: Policy, which: str) -> None:
    """Changes which parameters are trained, before an optimizer has them. "matrices": of whole weights, those alone
    that an adapter adapts; "head": beside an adapter, the output matrix, which is the embedding where the two are tied.
    """
    head = policy.base.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers
    if which == "matrices":
        linear = [each for each in policy.base.modules() if isinstance(each, nn.Linear) and each is not head]
        adapted = {parameter for each in linear for parameter in each.parameters()}
        for parameter in policy.model.parameters():
            parameter.requires_grad_(parameter in adapted)
    elif which == "head":
        head.weight.requires_grad_(True)
    else:
        raise ValueError(f"nothing that is trained is called {which!r}")
