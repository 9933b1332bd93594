"""What the optimizer step is taken on: groups in the learner's own tokens, with advantages and behaviour spans.

The spans of B completions lie one after the other without padding: N tokens in S spans.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engines.engine import Observed, Segment
from node.learner.objective.alignment import Alignment, span_sums
from node.policy.device import sent

CPU: Final = torch.device("cpu")
SELF: Final = "self"  # the peer name of own completions


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCompletion:
    """One completion that has a gradient. Its model's input is the row: of a conversation, the actions' tokens, which
    alone are learnt, and between them what was observed."""

    token_ids: NDArray[np.int64]  # (T,) in the learner's tokenizer, T >= 1
    alignment: Alignment  # of these T tokens with the generator's
    advantage: float
    peer: str  # who generated it; ``SELF`` for own
    count: int = 1  # how many of the group's completions are exactly this one
    reward: float = 0.0
    as_text: bool = False  # without a behaviour policy: its ratio counts as 1
    segments: tuple[Segment, ...] = ()  # which versions of the policy sampled it; own completions only
    observed: Observed = ()  # of a conversation
    anew: tuple[int, ...] = ()  # of ``observed``, the places where a new row begins: these ids are its prompt
    turn_advantages: tuple[float, ...] = ()  # of each action, where these differ: ``advantage`` is the mean of |A| then

    @property
    def token_advantages(self) -> NDArray[np.float64]:
        """The advantage of each token, (T,)."""
        if not self.turn_advantages:
            return np.full(len(self.token_ids), self.advantage)
        return by_token(self.turn_advantages, self.observed, len(self.token_ids))

    def rows(self, prompt_ids: tuple[int, ...]) -> list[tuple[tuple[int, ...], TrainingCompletion]]:
        """Returns the rows of a completion after ``prompt_ids``, each a completion of its own, with their prompts."""
        if not self.anew:
            return [(prompt_ids, self)]
        ends = [*self.anew, len(self.token_ids)]
        prompts = [prompt_ids, *(ids for place, ids in self.observed if place in self.anew)]
        return [(prompt, self._part(*part)) for prompt, *part in zip(prompts, [0, *ends], ends, strict=False)]

    def _part(self, begin: int, end: int) -> TrainingCompletion:
        """Returns some of the actions; no span reaches over the end of one."""
        spans = self.alignment.span_of_token[begin:end]
        logps = self.alignment.behaviour_logps[spans[0] : spans[-1] + 1]
        heard = tuple((place - begin, ids) for place, ids in self.observed if begin < place < end)
        alignment = Alignment(spans - spans[0], logps, 0)
        first = sum(place <= begin for place, _ in self.observed)
        of_turns = self.turn_advantages[first : first + len(heard) + 1]
        ids = self.token_ids[begin:end]
        return replace(self, token_ids=ids, alignment=alignment, observed=heard, anew=(), turn_advantages=of_turns)

    @property
    def row_length(self) -> int:
        """R, the tokens of the row."""
        return len(self.token_ids) + sum(len(ids) for _, ids in self.observed)

    @property
    def row_ids(self) -> NDArray[np.int64]:
        """The row (R,); its last token is the last of ``token_ids``."""
        if not self.observed:
            return self.token_ids
        places = [place for place, ids in self.observed for _ in ids]
        return np.insert(self.token_ids, places, [token_id for _, ids in self.observed for token_id in ids])

    @property
    def row_places(self) -> NDArray[np.int64]:
        """Where in the row the tokens of ``token_ids`` stand, (T,)."""
        places = np.arange(len(self.token_ids))
        for place, ids in self.observed:
            places[place:] += len(ids)
        return places

    @property
    def foreign(self) -> bool:
        return self.peer != SELF


@dataclass(frozen=True, slots=True, eq=False)
class TrainingGroup:
    """One prompt with those of its completions that have a gradient.

    A completion with A = 0 has no gradient and costs no forward pass. One of our own counts in the normalisation all
    the same, with its tokens; of others, where advantages are against the learner, what teaches nothing counts nowhere,
    so that nobody can dilute a step. With a KL term own completions have a gradient whatever their advantage. Equal
    completions, which short right answers often are, are computed once and counted as often as they occur.
    """

    prompt_ids: tuple[int, ...]  # (P,) P >= 1
    completions: tuple[TrainingCompletion, ...]
    tokens: int  # completion tokens of the whole group, those with A = 0 included where they count
    size: int  # completions of the whole group, likewise
    unusable: int = 0  # foreign completions whose claimed log-probabilities are impossible, dropped or taken as text
    not_copied: tuple[str, ...] = ()  # why right foreign completions were left out, one reason each
    influence: float = 1.0  # what advantages (in the step), tokens and size are multiplied by

    @property
    def mass(self) -> float:
        """What the group adds to the absolute weights of the loss, less importance weights and influence:
        Σ count · |A| · tokens."""
        return sum(c.count * len(c.token_ids) * abs(c.advantage) for c in self.completions)

    @property
    def informative(self) -> bool:
        """Whether any completion has a gradient other than a KL term's."""
        return any(c.advantage != 0 for c in self.completions)


def by_token(of_turns: Sequence[float], observed: Observed, tokens: int) -> NDArray[np.float64]:
    """Returns what each action has for each of its tokens, (T,)."""
    ends = [*(place for place, _ in observed), tokens]
    return np.repeat(np.array(of_turns, dtype=np.float64), np.diff([0, *ends]))


def merged(completions: Iterable[TrainingCompletion]) -> tuple[TrainingCompletion, ...]:
    """Returns equal completions that the same weights sampled as one, with their ``count``.

    Their behaviour log-probabilities are equal too, up to rounding; those of the first are kept.
    """
    found: dict[tuple[Hashable, ...], TrainingCompletion] = {}
    for each in completions:
        shape = each.alignment.span_of_token.tobytes()
        heard = each.observed, each.anew, each.turn_advantages
        key = each.token_ids.tobytes(), shape, each.advantage, each.reward, each.as_text, each.segments, heard
        before = found.get(key)
        found[key] = each if before is None else replace(before, count=before.count + each.count)
    return tuple(found.values())


def one_row_each(groups: Iterable[TrainingGroup]) -> list[TrainingGroup]:
    """Returns the groups so that each completion is one row after its group's prompt: further rows of conversations
    that were written again are groups of their own."""
    found: list[TrainingGroup] = []
    for group in groups:
        by_prompt: dict[tuple[int, ...], list[TrainingCompletion]] = {group.prompt_ids: []}
        for prompt, row in (each for completion in group.completions for each in completion.rows(group.prompt_ids)):
            by_prompt.setdefault(prompt, []).append(row)
        found += [replace(group, prompt_ids=prompt, completions=tuple(rows)) for prompt, rows in by_prompt.items()]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class RaggedSpans:
    """What the objective needs of the completions of one micro-batch; the N tokens lie in the completions' order."""

    span_of_token: Tensor  # (N,) int64
    sequence_of_span: Tensor  # (S,) int64
    behaviour_logps: Tensor  # (S,)
    advantages: Tensor  # (B,); the mean of |A| where tokens differ
    token_advantages: Tensor  # (N,)
    foreign: Tensor  # (B,) bool
    as_text: Tensor  # (B,) bool
    counts: Tensor  # (B,) how often each completion counts
    lengths: Tensor  # (B,) own tokens
    peers: tuple[str, ...]  # (B,)
    present: Tensor  # (B,) bool: the engine sampled all of it from the very weights that now score it

    @classmethod
    def of(
        cls,
        completions: Sequence[TrainingCompletion],
        device: torch.device = CPU,
        dtype: torch.dtype = torch.float32,
        *,
        policy_version: int | None = None,
    ) -> RaggedSpans:
        """Lays the completions out in the order given, in which the N tokens must lie too. ``policy_version``: of the
        weights that score them; None: unknown."""
        counts = [c.alignment.spans for c in completions]
        starts = np.cumsum([0, *counts[:-1]])
        span_of_token = np.concatenate(
            [c.alignment.span_of_token + s for c, s in zip(completions, starts, strict=True)]
        )

        def column(values: list[float]) -> Tensor:
            return sent(torch.tensor(values, dtype=dtype), device)

        def flags(values: list[bool]) -> Tensor:
            return sent(torch.tensor(values, dtype=torch.bool), device)

        behaviour = torch.from_numpy(np.concatenate([c.alignment.behaviour_logps for c in completions]))
        credited = np.concatenate([c.token_advantages for c in completions])
        return cls(
            sent(torch.from_numpy(span_of_token), device),
            sent(torch.from_numpy(np.repeat(np.arange(len(completions)), counts)), device),
            sent(behaviour.to(dtype), device),
            column([c.advantage for c in completions]),
            sent(torch.from_numpy(credited.astype(np.float64 if dtype == torch.float64 else np.float32)), device),
            flags([c.foreign for c in completions]),
            flags([c.as_text for c in completions]),
            column([c.count for c in completions]),
            column([len(c.token_ids) for c in completions]),
            tuple(c.peer for c in completions),
            flags([{each.version for each in c.segments} == {policy_version} for c in completions]),
        )

    @property
    def sequence_of_token(self) -> Tensor:
        return self.sequence_of_span[self.span_of_token]  # (N,)

    def log_ratios(self, logps: Tensor) -> Tensor:
        """Returns log π − log μ of each span (S,) from the log-probabilities (N,) of policy π; 0 for text."""
        ratios = span_sums(logps, self.span_of_token, len(self.behaviour_logps)) - self.behaviour_logps
        return torch.where(self.as_text[self.sequence_of_span], 0.0, ratios)
