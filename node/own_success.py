"""What chance does to the success of own groups, for those who ask whether it fell: the watch and averaging's trial."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

COINS_SHARE: Final = (
    0.5  # of a coin's variance, p(1 − p): what groups have before any are seen; it counts as much as ...
)
COINS_GROUPS: Final = 8.0  # ... this many groups
LEAST_VARIANCE: Final = 0.07  # times p: a task that nearly always succeeds fails now and then, and then by much


def group_variance(
    groups: NDArray[np.float64], sums: NDArray[np.float64], squares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the variance of a task's group means, whose number is ``groups``, whose sum is ``sums`` and the sum of
    whose squares is ``squares``, each of any one shape and possibly weighted. Few groups that happen to be alike, and
    tasks that have not failed yet, are given what they must be expected to have: p is (sum + 1)/(groups + 2)."""
    p = (sums + 1.0) / (groups + 2.0)
    apart = np.maximum(squares - sums**2 / np.maximum(groups, 1.0), 0.0)
    variance = (apart + COINS_GROUPS * COINS_SHARE * p * (1.0 - p)) / (groups + COINS_GROUPS)
    return np.maximum(variance, LEAST_VARIANCE * p)
