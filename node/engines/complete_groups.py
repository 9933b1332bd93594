"""Which groups of a call are complete: all completions of each have ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from node.engines.engine import Enough
from node.engines.resumption import SamplingStart


class CompleteGroups:
    """Counts the complete groups, asks ``enough`` whether they suffice, and says which have become complete."""

    def __init__(self, enough: Enough | None, starts: Sequence[SamplingStart], groups: int) -> None:
        self._enough = enough
        owners = [start.request for start in starts for _ in range(start.completions)]
        self._group = np.array(owners, dtype=np.int64)  # of each completion
        self._missing = np.bincount(self._group, minlength=groups)  # completions of each group that have not ended

    def ended(self, completions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns all completions of the groups that are complete with these."""
        np.subtract.at(self._missing, self._group[completions], 1)
        groups = self._group[completions]
        return np.flatnonzero(np.isin(self._group, groups[self._missing[groups] == 0]))

    @property
    def count(self) -> int:
        return int((self._missing == 0).sum())

    def suffice(self) -> bool:
        return self._enough is not None and self._enough(self.count)
