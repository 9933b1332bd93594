"""The random number with which each token is drawn: a function of seed, completion and position alone.

On a GPU the kernels of ``node.kernels.drawing`` make it themselves, from the same three. Elsewhere it is uniform:

    u(seed, c, t) = mix(mix(mix(seed) + γ c) + γ t) / 2⁶⁴, γ = 0x9e3779b97f4a7c15

``mix`` is the output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014),
whose states advance by γ. So a completion gets the same tokens, within rounding of its logits, whatever batch it is
sampled in: how many rows there are, who joined when, and how often the host looks at what was sampled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engines.sampling import draw
from node.kernels.dispatch import is_for_triton
from node.kernels.drawing.draw_keys import DrawKeys
from node.kernels.drawing.keyed_draw import keyed_draw

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND: Final = np.uint64(0x94D049BB133111EB)


def uniforms(
    seed: int, completions: NDArray[np.int64], positions: NDArray[np.int64], steps: int
) -> NDArray[np.float64]:
    """Returns u in [0, 1) for ``steps`` tokens from each completion's position on, (steps, n), with 53 random bits."""
    with np.errstate(over="ignore"):
        of_seed = _mix(np.array([seed % 2**64], dtype=np.uint64) + _GAMMA)
        of_completion = _mix(of_seed + _GAMMA * (completions.astype(np.uint64) + np.uint64(1)))
        at = positions.astype(np.uint64) + np.arange(1, steps + 1, dtype=np.uint64)[:, None]
        bits: NDArray[np.uint64] = _mix(of_completion + _GAMMA * at)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))


class Draws:
    """Draws the tokens of one call at one temperature, from the first ``vocabulary`` logits of each row, or from all.

    Many models have more rows than their tokenizer has tokens. The logits after them count for nothing here: no token
    has such an id, and the probabilities of the others sum to 1, as the learner computes them (``Network``).
    """

    def __init__(self, seed: int, temperature: float, device: torch.device, vocabulary: int | None = None) -> None:
        self._vocabulary = vocabulary
        self._seed, self._temperature, self.device = seed, temperature, device
        self._keyed = is_for_triton(device)
        self._keys = _keys(seed, np.empty(0, np.int64), np.empty(0, np.int64), device)
        self._uniforms = torch.empty(0)
        self._next = 0

    def prepare(self, completions: NDArray[np.int64], positions: NDArray[np.int64], steps: int) -> None:
        """Prepares the next ``steps`` draws, for rows that hold these completions, at these positions now."""
        self._next = 0
        if self._keyed:
            self._keys = _keys(self._seed, completions, positions, self.device)
            return
        numbers = torch.from_numpy(uniforms(self._seed, completions, positions, steps))
        # A device without double precision must not round a number up to 1.
        exact = numbers if self.device.type != "mps" else (numbers * 2**24).floor().mul_(2.0**-24).float()
        self._uniforms = exact.to(self.device)

    def uniforms(
        self, completions: NDArray[np.int64], positions: NDArray[np.int64], steps: int
    ) -> NDArray[np.float64] | None:
        """Returns the numbers of ``steps`` draws from these positions on, (steps, n), on a CPU; None at temperature 0,
        which draws by none."""
        return None if self._temperature == 0 else uniforms(self._seed, completions, positions, steps)

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Returns tokens (n,) int64 and their log-probabilities (n,) float32, as ``sampling.draw``."""
        logits = logits[:, : self._vocabulary]  # a view
        step, self._next = self._next, self._next + 1
        if self._keyed:
            return keyed_draw(logits, self._temperature, replace(self._keys, steps=self._keys.steps + step))
        return draw(logits, self._temperature, self._uniforms[step])


def _keys(seed: int, completions: NDArray[np.int64], positions: NDArray[np.int64], device: torch.device) -> DrawKeys:
    signed = np.array([seed % 2**64], dtype=np.uint64).view(np.int64)
    return DrawKeys(*(torch.from_numpy(numbers.copy()).to(device) for numbers in (signed, completions, positions)))
