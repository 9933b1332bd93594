"""A sample of work for all machines, small but otherwise as in a round: tokens are drawn after a few prompts, and a
step is computed on them and dropped. What one machine was asked and answered in it is kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor

from node.fit.stages.checks import SAMPLE
from node.learner.objective.alignment import Alignment
from node.learner.objective.batch import SELF, TrainingCompletion
from node.learner.objective.forward import MicroBatch, PassSettings, completion_logps
from node.stages.link import Answer, Asked, Call, Inputs, StageLink
from node.stages.policy import StagedPolicy, network_of
from node.stages.stages import Place

PROMPTS, PROMPT_TOKENS, DRAWN_TOKENS = SAMPLE.prompts, SAMPLE.prompt_tokens, SAMPLE.answer_tokens
EACH: Final = SAMPLE.rows // PROMPTS  # rows after each prompt


@dataclass(slots=True, eq=False)
class Witness:
    """A machine's link that remembers what is asked of the machine in a sample, and what it answers. Whoever asks
    notices nothing."""

    link: StageLink
    prefilled: tuple[Tensor, Tensor, Tensor] | None = None  # hidden states that came, padding, those that left
    joined: Sequence[int] = ()
    steps: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # hidden states that came, and those that left
    forwards: list[tuple[Asked, Tensor, Tensor]] = field(default_factory=list)  # likewise
    backwards: list[tuple[Call, Tensor, Tensor]] = field(default_factory=list)  # gradients that came, and that left
    sums: dict[str, Tensor] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.link, name)  # what is not remembered

    def forward(self, call: Call, hidden: Tensor, inputs: Inputs, train: bool) -> Answer:
        answer = self.link.forward(call, hidden, inputs, train)

        def answered() -> Tensor:
            left = answer()
            self.forwards.append((Asked(call, inputs), hidden, left.detach()))
            return left

        return answered

    def backward(self, call: Call, gradient: Tensor) -> Answer:
        answer = self.link.backward(call, gradient)

        def answered() -> Tensor:
            left = answer()
            self.backwards.append((call, gradient, left))
            return left

        return answered

    def gradients(self) -> dict[str, Tensor]:
        self.sums = self.link.gradients()
        return self.sums

    def prefill(self, hidden: Tensor, padding: Tensor, batch: int = 0) -> Tensor:
        left = self.link.prefill(hidden, padding, batch)
        self.prefilled = hidden, padding, left
        return left

    def join(self, which: Sequence[int], batch: int = 0) -> None:
        self.joined = which
        self.link.join(which, batch)

    def step(self, hidden: Tensor, batch: int = 0) -> Tensor:
        left = self.link.step(hidden, batch)
        self.steps.append((hidden, left))
        return left


class Samples:
    """Takes samples of one owner's machines and leaves no trace: its random numbers are its own, gradients are dropped.
    Call it while nothing is under way."""

    def __init__(
        self,
        policy: StagedPolicy,
        prompt: Callable[[random.Random], Sequence[int]],
        passes: PassSettings,
        draws: random.Random,
    ) -> None:
        """``prompt`` draws a prompt's tokens, as of the node's tasks."""
        self._policy, self._prompt, self._passes, self._draws = policy, prompt, passes, draws
        self._network = network_of(policy)

    def witnessed(self, place: Place) -> Witness:
        """Lets all machines compute a sample, and returns what the one in ``place`` was asked and answered."""
        seen = Witness(place.held())
        place.link = cast("StageLink", seen)
        try:
            prompts = self._prompts()
            rows = self._drawn(prompts)
            self._step(prompts, rows)
        finally:
            if place.link is seen:
                place.link = seen.link
        return seen

    def _prompts(self) -> list[tuple[int, ...]]:
        """Returns beginnings of prompts: as long as each other where the model wants no padding."""
        drawn = [tuple(self._prompt(self._draws))[:PROMPT_TOKENS] for _ in range(PROMPTS)]
        shortest = min(map(len, drawn))
        return drawn if self._network.pads_prompts else [each[:shortest] for each in drawn]

    @torch.inference_mode()
    def _drawn(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Returns the tokens of ``EACH`` rows after each prompt."""
        random_numbers = torch.Generator().manual_seed(self._draws.getrandbits(63))
        which = [prompt for prompt in range(PROMPTS) for _ in range(EACH)]
        decoder, device = self._policy.decoder(), self._policy.device
        decoder.begin(len(which), [EACH] * PROMPTS, max(map(len, prompts)), DRAWN_TOKENS)
        try:
            prefilled = decoder.prefill(prompts, [EACH] * PROMPTS)
            decoder.join(prefilled, which)
            logits, rows = prefilled.logits[which], [list[int]() for _ in which]
            for number in range(DRAWN_TOKENS):
                likely = logits[:, : self._network.vocabulary].float().softmax(-1).cpu()
                tokens = torch.multinomial(likely, 1, generator=random_numbers)[:, 0]
                for row, token in zip(rows, tokens.tolist(), strict=True):
                    row.append(token)
                if number + 1 < DRAWN_TOKENS:
                    logits = decoder.step(tokens.to(device))
        finally:
            decoder.release()
        return rows

    def _step(self, prompts: Sequence[tuple[int, ...]], rows: Sequence[Sequence[int]]) -> None:
        """Computes gradients of the rows with advantages of a round's kind, and drops them."""
        completions = tuple(
            TrainingCompletion(
                np.array(row),
                Alignment(np.arange(len(row)), np.zeros(len(row), np.float32), 0),
                1.0 - 2 * (at % 2),
                SELF,
            )
            for at, row in enumerate(rows)
        )
        micro_batch = MicroBatch(tuple(prompts), tuple(at // EACH for at in range(len(rows))), completions)
        advantages = torch.tensor([each.advantage for each in completions], device=self._policy.device)

        def one(each: MicroBatch) -> None:
            logps, _ = completion_logps(self._network, each, self._passes)
            of_rows = logps.view(len(rows), -1).mean(1)
            self._network.backward(-(advantages * of_rows).mean())

        with _gradients_kept(self._policy.trainable()):
            self._network.each(one, [micro_batch])


@contextmanager
def _gradients_kept(trained: Mapping[str, torch.nn.Parameter]) -> Iterator[None]:
    """Within the context there are no gradients at first; afterwards those from before are there again."""
    before = {name: p.grad for name, p in trained.items()}
    for parameter in trained.values():
        parameter.grad = None
    try:
        yield
    finally:
        for name, parameter in trained.items():
            parameter.grad = before[name]
