"""A child process over all its restarts."""

from __future__ import annotations

from dataclasses import dataclass, field

from node.api.types import ChildStatus
from node.supervision import restarts
from node.supervision.children import Child, ChildSpec
from node.supervision.restarts import ChildEnd


@dataclass(slots=True)
class KeptChild:
    """The supervisor changes it as the child starts, becomes ready and ends."""

    spec: ChildSpec
    child: Child | None = None
    ends: list[ChildEnd] = field(default_factory=list)  # those that were not requested
    ready: bool = False  # in its present run

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self.child.pid if self.child is not None else None

    def status(self) -> ChildStatus:
        last_end = restarts.describe(self.spec.process, self.ends[-1]) if self.ends else None
        return ChildStatus(self.pid, len(self.ends), last_end)
