"""AdamW over weights in shards as the learner sees it, and the other devices' part in that.

Every device has a ``MasterAdamW`` on its own rows. ``ShardedAdamW`` is the learner's: its steps are taken like any
other's, and what it gives and takes besides (weights for peers and engines, the state for a checkpoint) is whole, and
goes tensor by tensor through main memory, never as a whole model on one device. ``ShardRows`` does each device's part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

import torch
from torch import Tensor

from node.configuration import LearnerSection
from node.learner.sharding.messages import DeviceTask, Gather, Prepare, Put
from node.learner.sharding.process_group import DeviceGroup
from node.learner.steps.gradients import rows_of, shard_of
from node.learner.steps.optimizer import MasterAdamW
from node.policy.whole_tensors import TensorKind, WholeTensors

What = Literal["weights", "state"]
WEIGHTS: Final = "weights."
MASTER: Final = "master."


class ShardRows:
    """This device's rows of everything that is in shards, by name: "weights.X", "master.X", "exp_avg.X" and so on."""

    def __init__(self, group: DeviceGroup, trained: Mapping[str, torch.nn.Parameter], optimizer: MasterAdamW) -> None:
        self._group, self._optimizer = group, optimizer
        self._weights = {name: shard_of(p).detach() for name, p in trained.items()}
        self._shapes = {name: p.shape for name, p in trained.items()}

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Returns what there is of "weights.", "master.", or "" for the optimizer's whole state."""
        if prefix == WEIGHTS:
            return {WEIGHTS + name: rows for name, rows in self._weights.items()}
        if prefix == MASTER:
            return {MASTER + name: rows for name, rows in MasterAdamW.masters(self._optimizer).items()}
        return dict(MasterAdamW.state(self._optimizer))

    def whole_shape(self, name: str, rows: Tensor) -> torch.Size:
        """Returns the shape of the whole tensor; a count without dimensions is not divided."""
        return rows.shape if rows.ndim == 0 else self._shapes[name.partition(".")[2]]

    def give(self, name: str) -> None:
        """Sends this device's rows to the learner."""
        rows = self._named(name)
        if rows.ndim:
            self._group.send(rows.detach().cpu(), to=0)

    def gathered(self, name: str) -> Tensor:
        """Returns the whole tensor in main memory; the learner calls it while the others ``give``."""
        own = self._named(name)
        shape = self.whole_shape(name, own)
        whole = torch.empty(shape, dtype=own.dtype)
        if own.ndim == 0:
            return whole.copy_(own)
        whole[rows_of(shape, 0, self._group.count)] = own.detach().cpu()
        for rank in range(1, self._group.count):
            self._group.receive(whole[rows_of(shape, rank, self._group.count)], rank)
        return whole

    def take(self, message: Put) -> None:
        """Receives this device's rows of what the learner puts, and puts them in place."""
        received = {}
        for name, shape, dtype in message.tensors:
            own = shape
            if shape:
                part = rows_of(shape, self._group.rank, self._group.count)
                own = (part.stop - part.start, *shape[1:])
            received[name] = torch.empty(own, dtype=getattr(torch, dtype))
            self._group.receive(received[name], 0)
        self.place(message.what, received)

    def hand_out(self, whole: Tensor) -> Tensor:
        """Sends each other device its rows of a whole tensor, and returns our own; the learner calls it while the
        others ``take``."""
        whole = whole.detach().cpu().contiguous()
        for rank in range(1, self._group.count):
            self._group.send(whole[rows_of(whole.shape, rank, self._group.count)] if whole.ndim else whole, rank)
        return whole[rows_of(whole.shape, 0, self._group.count)].clone() if whole.ndim else whole

    def place(self, what: What, rows: Mapping[str, Tensor]) -> None:
        """Puts this device's rows in place: float32 weights by parameter, or the optimizer's state by its names."""
        if what == "weights":
            MasterAdamW.put(self._optimizer, rows)
        else:
            MasterAdamW.restore(self._optimizer, rows)

    def _named(self, name: str) -> Tensor:
        prefix = next((each for each in (WEIGHTS, MASTER) if name.startswith(each)), "")
        return self.tensors(prefix)[name]


class ShardedAdamW(MasterAdamW):
    """The optimizer of a learner on several devices: the first device's ``MasterAdamW``, whose steps all devices take
    together."""

    def __init__(
        self,
        group: DeviceGroup,
        trained: Mapping[str, torch.nn.Parameter],
        section: LearnerSection,
        tell: Callable[[DeviceTask], None],
        *,
        adapted_parameters: int,
    ) -> None:
        """``tell`` tells every other device what to do."""
        super().__init__(trained, section, adapted_parameters=adapted_parameters, sums=group.sums)
        self._tell = tell
        self._rows = ShardRows(group, trained, self)
        self._prepared = False

    def weights(self) -> WholeTensors:
        """Returns the policy's weights, whole, in their own dtype."""
        return self._whole(WEIGHTS, strip=True)

    def masters(self) -> Mapping[str, Tensor]:
        return self._whole(MASTER, strip=True)

    def state(self) -> Mapping[str, Tensor]:
        return self._whole("", strip=False)

    def prepare(self) -> None:
        if not self._prepared:
            self._tell(Prepare())
            self._prepared = True
        super().prepare()

    def put(self, weights: Mapping[str, Tensor]) -> None:
        self._hand_out("weights", weights)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._hand_out("state", tensors)

    def _whole(self, prefix: str, *, strip: bool) -> WholeTensors:
        here = self._rows.tensors(prefix)
        kinds = {name: TensorKind(self._rows.whole_shape(name, rows), rows.dtype) for name, rows in here.items()}
        if not strip:
            return WholeTensors(kinds, self._gathered)
        return WholeTensors(
            {name.removeprefix(prefix): kind for name, kind in kinds.items()},
            lambda name: self._gathered(prefix + name),
        )

    def _gathered(self, name: str) -> Tensor:
        self._tell(Gather(name))
        return self._rows.gathered(name)

    def _hand_out(self, what: What, tensors: Mapping[str, Tensor]) -> None:
        listed = [(name, tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()]
        self._tell(Put(what, tuple(listed)))
        self._rows.place(what, {name: self._rows.hand_out(tensor) for name, tensor in tensors.items()})
