"""Whether a machine computes what its layers give: the owner asks for a sample as for any work, and does it itself too.

    a sample   a few prompts of the node's own tasks, continued by some tokens that the model draws, and a step on what
               it drew, as in a round with few and short answers. All machines take part; one of them is compared
    here       the layers of that machine, one in memory at a time, read from the owner's folder of the model: upwards
               what left the machine, downwards the gradient of what entered it and those of its factors
    compared   d = |theirs - ours| / |ours|, of hidden states as a root mean square over tokens, each against its own
               length, since the first token of a text is often a hundred times as long as others

Equal layers on equal processors give equal bits, and on others d is rounding. The bounds (``BOUNDS``) are many times
what `python -m scripts.bench.stages.checked --layers 4` measures, three layers of Qwen2.5-0.5B, the owner a processor
of 16 cores: against itself with another number of threads, against a machine that computes in a wider dtype and answers
in the policy's, and against an H200. Two that round each in its own way differ by about √2 of that, and L layers by
about √L of what one does.

    d, in %                         float32: threads, wider, H200   bound    bfloat16: threads, wider, H200   bound
    hidden states                   7.7e-5   5.6e-5   7.8e-5        1e-2     .42    .74    .77                10
    the same in generating          6.9e-5   5.2e-5   6.8e-5        1e-2     .42    .74    .77                10
    gradients of hidden states      1.1e-4   8.3e-5   1.1e-4        .1       .91    1.0    1.1                20
    gradients of a layer's factors  1.1e-4   8.6e-5   1.1e-4        .1       .77    .92    .99                20

So in bfloat16 a machine may differ by what a tenth of its hidden states' length is, and pass.

A check leaves no trace: it draws from random numbers of its own, its gradients are dropped, and factors are only read.
It begins with generating, as a round does after new factors, so that it looks like a small round until its gradients
are asked for without a step after them (docs/stages.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from node.learner.memory.errors import forget, give_back
from node.policy.device_faults import detail_of, is_out_of_memory
from node.quantities import duration, layer_span
from node.stages.gathering import Gathering, ShouldStop
from node.stages.samples import Samples, Witness
from node.stages.stages import Stages, layer_of
from node.stages.worker import StageWorker
from protocol.errors import ConfigurationError, StageLostError

log = logging.getLogger(__name__)

CHECK_SHARE: Final = 0.01  # of the time


@dataclass(frozen=True, slots=True)
class Bounds:
    """What d can be by rounding, at most, in one dtype."""

    hidden: float
    gradient: float


BOUNDS: Final[Mapping[torch.dtype, Bounds]] = {
    torch.float32: Bounds(hidden=1e-4, gradient=1e-3),
    torch.bfloat16: Bounds(hidden=0.1, gradient=0.2),
}


@dataclass(frozen=True, slots=True)
class Deviation:
    """By how much a machine's numbers differ from ours, and how much is let pass."""

    what: str
    found: float
    most: float

    @property
    def share(self) -> float:
        """Of what is let pass."""
        return self.found / self.most


def differences(
    seen: Witness, worker: StageWorker, layers: range, factors: Mapping[str, Tensor], bounds: Bounds
) -> Generator[Deviation]:
    """Yields by how much what a machine answered differs from what ``layers`` give with ``factors``, causes first.
    ``worker`` computes it, and holds no layer afterwards.

    Raises ``ConfigurationError`` or ``OSError`` where the owner's own folder of the model cannot be read any more, and
    what torch raises where memory runs out.
    """
    try:
        entered = [[hidden for _, hidden, _ in seen.forwards]]  # of each layer, in the calls of the step
        generated = _generated(seen)
        for layer in layers:
            _hold(worker, layer, factors)
            generated = _through(worker, seen, generated)
            entered.append(_forwards(worker, seen, entered[-1]))
        yield Deviation("hidden states", _by_token([left for *_, left in seen.forwards], entered[-1]), bounds.hidden)
        theirs, ours = _real(seen, _left(seen)), _real(seen, generated)
        yield Deviation("hidden states in generating", _by_token(theirs, ours), bounds.hidden)
        gradients, sums = [gradient for _, gradient, _ in seen.backwards], dict[int, dict[str, Tensor]]()
        for layer in reversed(layers):
            _hold(worker, layer, factors)
            _forwards(worker, seen, entered[layer - layers.start])
            calls = [call for call, *_ in seen.backwards]
            gradients = [worker.backward(call, each)() for call, each in zip(calls, gradients, strict=True)]
            sums[layer] = worker.gradients()
        left = [left for *_, left in seen.backwards]
        yield Deviation("gradients of hidden states", _relative(left, gradients), bounds.gradient)
        for layer in layers:
            ours = [sums[layer][name] for name in sorted(sums[layer])]
            theirs = [seen.sums.get(name, torch.zeros_like(sums[layer][name])) for name in sorted(sums[layer])]
            what = f"gradients of the factors of {layer_span(layer, layer + 1)}"
            yield Deviation(what, _relative(theirs, ours), bounds.gradient)
    finally:
        worker.free()


def _hold(worker: StageWorker, layer: int, factors: Mapping[str, Tensor]) -> None:
    worker.free()  # first: two layers are never in memory
    worker.hold(range(layer, layer + 1))
    worker.load({name: each for name, each in factors.items() if layer_of(name) == layer})


def _forwards(worker: StageWorker, seen: Witness, entered: Sequence[Tensor]) -> list[Tensor]:
    return [
        worker.forward(asked.call, hidden, asked.inputs, True)()
        for (asked, *_), hidden in zip(seen.forwards, entered, strict=True)
    ]


def _generated(seen: Witness) -> list[Tensor]:
    """Returns what came to the machine in generating: of the prompts, then of each step."""
    assert seen.prefilled is not None
    return [seen.prefilled[0], *(came for came, _ in seen.steps)]


def _left(seen: Witness) -> list[Tensor]:
    assert seen.prefilled is not None
    return [seen.prefilled[2], *(left for _, left in seen.steps)]


def _through(worker: StageWorker, seen: Witness, came: Sequence[Tensor]) -> list[Tensor]:
    assert seen.prefilled is not None
    worker.begin()
    found = [worker.prefill(came[0], seen.prefilled[1])]
    worker.join(seen.joined)
    found += [worker.step(each) for each in came[1:]]
    worker.release()
    return found


def _real(seen: Witness, generated: Sequence[Tensor]) -> list[Tensor]:
    """Returns hidden states of generating without those of padding, which mean nothing."""
    assert seen.prefilled is not None
    prompts, padding = generated[0], seen.prefilled[1]
    return [prompts[torch.arange(prompts.shape[1]) >= padding[:, None]], *generated[1:]]


def _by_token(theirs: Sequence[Tensor], ours: Sequence[Tensor]) -> float:
    shares = [
        _squares_apart(one.double(), other.double(), dim=-1).flatten() for one, other in zip(theirs, ours, strict=True)
    ]
    return float(torch.cat(shares).mean().sqrt())


def _relative(theirs: Sequence[Tensor], ours: Sequence[Tensor]) -> float:
    one, other = (torch.cat([each.double().flatten() for each in tensors]) for tensors in (theirs, ours))
    return float(_squares_apart(one, other, dim=0).sqrt())


def _squares_apart(theirs: Tensor, ours: Tensor, dim: int) -> Tensor:
    """Returns |theirs - ours|² / |ours|² along ``dim``; nothing differs from nothing by nothing."""
    apart = (theirs - ours).square().sum(dim)
    return torch.where(apart == 0, apart, apart / ours.square().sum(dim))


class StageChecks:
    """Checks the machines of one owner: each when it has got its layers, and then one after the other, as often as
    takes ``CHECK_SHARE`` of the time. Call it from the learner's thread, while nothing is under way."""

    def __init__(
        self,
        stages: Stages,
        samples: Samples,
        worker: StageWorker,
        gathering: Gathering,
        *,
        clock: Callable[[], float],
        checkpoint_before: Callable[[float], Path | None] = lambda unix_seconds: None,
    ) -> None:
        """``worker`` holds no layer. ``clock`` gives seconds from any fixed time; ``checkpoint_before`` the newest
        checkpoint that was written before a Unix time."""
        self._stages, self._samples, self._worker, self._gathering = stages, samples, worker, gathering
        self._clock, self._checkpoint_before = clock, checkpoint_before
        self._bounds = BOUNDS.get(worker.policy.dtype, BOUNDS[torch.float32])
        self._due = clock()

    def regained(self, should_stop: ShouldStop) -> bool:
        """Waits until every place is taken by a machine that was found to compute what its layers give; returns False
        where the learner is to stop first."""
        while self._gathering.regained(should_stop):
            unchecked = self._gathering.unchecked
            if all(self._passes_check(number) for number in unchecked):
                if unchecked:
                    self._gathering.tell()
                return True
        return False

    def in_turn(self) -> None:
        """Checks the machine that was checked longest ago, if that is due. Where it fails, its place is empty."""
        longest_ago = self._gathering.checked_longest_ago
        if self._clock() >= self._due and longest_ago is not None:
            self._passes_check(longest_ago)

    def _passes_check(self, number: int) -> bool:
        """Checks a machine; returns False where it failed, or a machine was lost."""
        began = self._clock()
        try:
            found = self._differences(number)
        except StageLostError as error:
            log.warning("a machine is lost (check): %s", error)
            forget(error)
            return False
        except Exception as error:
            if not (is_out_of_memory(error) or isinstance(error, ConfigurationError | OSError)):
                raise
            log.warning("a machine is not checked, since this one cannot compute its layers: %s", detail_of(error))
            forget(error)
            return True
        finally:
            give_back()
            ended = self._clock()
            self._due = ended + (ended - began) / CHECK_SHARE
        wrong = next((each for each in found if not each.share <= 1), None)
        if wrong is None:
            self._gathering.passed(number, max(each.share for each in found))
            return True
        because = self._because(number, wrong)
        log.error("%s is not used any more: %s", self._gathering.distrust(number), because)
        self._stages.lose(number, because)
        return False

    def _because(self, number: int, wrong: Deviation) -> str:
        because = (
            f"what it computes differs from what its layers give: {wrong.what} by {100 * wrong.found:.2g} %, of which "
            f"rounding is at most {100 * wrong.most:.2g} %"
        )
        good = self._gathering.checked_at(number)
        if good is None:
            return because
        ago, checkpoint = duration(self._gathering.clock() - good), self._checkpoint_before(good)
        remedy = "" if checkpoint is None else f"; `starling up --resume {checkpoint}` goes on from before"
        return f"{because}. What was learnt in the last {ago}, since its last good check, may be spoilt{remedy}"

    def _differences(self, number: int) -> list[Deviation]:
        """Returns all differences, or those up to the first that is not rounding."""
        place = self._stages.places[number]
        seen = self._samples.witnessed(place)
        found = []
        with closing(differences(seen, self._worker, place.layers, place.told, self._bounds)) as each_of:
            for each in each_of:
                found.append(each)
                if not each.share <= 1:
                    break
        return found
