"""The completions of one call, as they join, grow in and leave the decoder's batch.

The host looks at what was sampled once in ``look_every`` tokens. On a GPU each look waits for the device, and between
two looks nothing does: tokens, log-probabilities and random numbers stay there. A row whose completion has ended is
noticed at the next look; the tokens that it got meanwhile are dropped.

Where the host looks at every token, and the decoder can, a pass also verifies guesses of what follows (``drafting``):
then a look has one token of each row or more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engines.complete_groups import CompleteGroups
from node.engines.decoder import Decoder, Drafts, Past, Prefilled
from node.engines.drafting.row_drafts import Drafting, RowDrafts, Uniforms, verified
from node.engines.draws import Draws
from node.engines.resumption import SamplingStart
from node.engines.step_threads import StepThreads
from protocol.streams.engine_batches import HandOver, Sampled

PREFILL_TOKENS: Final = 8192  # padded prompt tokens in one forward pass; bounds its activations

Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]  # owner, id and log-probability of tokens


def joining_count(present: int, waiting: int, rows: int) -> int:
    """Returns how many waiting completions join: all that fit, once an eighth of the rows (or room for all) is free.

    Waiting for an eighth lets several prompts share one forward pass.
    """
    free = rows - present
    return min(free, waiting) if free >= min(waiting, max(1, rows // 8)) else 0


@dataclass(slots=True)
class _History:
    """Every token sampled, look by look: its completion, its id and its log-probability; a completion's in order."""

    completions: list[NDArray[np.int64]] = field(default_factory=list)
    tokens: list[NDArray[np.int64]] = field(default_factory=list)
    logps: list[NDArray[np.float32]] = field(default_factory=list)

    def taken(self, which: NDArray[np.int64]) -> list[Sampled]:
        """Returns what was sampled of the completions ``which``, ascending; the history has it no longer."""
        owners, tokens, logps = self.columns()
        theirs = np.isin(owners, which)
        rest = ~theirs
        self.completions, self.tokens, self.logps = [owners[rest]], [tokens[rest]], [logps[rest]]
        places = np.searchsorted(which, owners[theirs])
        return _by_owner((places, tokens[theirs], logps[theirs]), len(which))

    def columns(self) -> Columns:
        """Returns completions, tokens and log-probabilities, one number a token each."""
        return np.concatenate(self.completions), np.concatenate(self.tokens), np.concatenate(self.logps)


@dataclass(frozen=True, slots=True, eq=False)
class _Look:
    """What was sampled since the look before, (steps, n)."""

    tokens: NDArray[np.int64]
    logps: NDArray[np.float32]
    taken: NDArray[np.int64]  # (n,) how many of them each row has
    last: Tensor  # (n,) the newest tokens, on the device


class Batch:
    def __init__(
        self,
        decoder: Decoder[Any],
        starts: Sequence[SamplingStart],
        rows: int,
        groups: CompleteGroups | None,
        *,
        look_every: int,
        threads: StepThreads,
        drafting: Drafting | None = None,
        most_positions: int = 0,
        hand_over: HandOver | None = None,
        pasts: Sequence[Past | None] = (),
    ) -> None:
        """With ``drafting``, a pass has at most ``most_positions`` tokens; it needs a look at every token.
        ``hand_over``, which needs ``groups``, gets the completions of a group as soon as it is complete. ``pasts``: one
        for each start, or none at all; of completions of conversations, ``kept`` has the next ones."""
        self._decoder, self._starts, self._groups = decoder, starts, groups
        self._hand_over = hand_over
        self._pasts = pasts or [None] * len(starts)
        self.kept: dict[int, Past] = {}  # by completion: the keys and values at its end
        self._drafting, self._most_positions = drafting, most_positions
        self._row_drafts: RowDrafts | None = None
        self._drafts: Drafts | None = None  # of the latest pass
        self._look_every, self._threads = look_every, threads
        self._owners = [index for index, start in enumerate(starts) for _ in range(start.completions)]
        self._rows = rows = min(rows, len(self._owners))
        self._waiting = deque(range(len(self._owners)))  # completions, in order; those of one start are neighbours
        self._completion = np.zeros(rows, dtype=np.int64)  # of each row
        self._sampled = np.zeros(rows, dtype=np.int64)  # tokens that each row has
        self._remaining = np.zeros(rows, dtype=np.int64)  # tokens that each row may still have
        self._present = 0
        self._kept_bytes = 0  # -1: no more is kept
        # a start that more rows may continue: its index, its prefill, its index there
        self._half_joined: tuple[int, Prefilled[Any], int] | None = None

    def run(self, draws: Draws, eos_ids: Sequence[int]) -> list[Sampled]:
        """Returns tokens and log-probabilities of each completion, in the order of the starts; some may be empty, and
        those that were handed over are."""
        history = _History()
        if self._groups is None or not self._groups.suffice():
            longest_prompt = max(len(start.prefix_ids) for start in self._starts)
            longest_completion = max(start.limit for start in self._starts)
            completions = [start.completions for start in self._starts]
            self._decoder.begin(self._rows, completions, longest_prompt, longest_completion)
            if self._drafting is not None:
                self._row_drafts = RowDrafts(self._drafting, self._rows, self._most_positions, eos_ids)
            with self._threads.chosen():
                self._sample(draws, np.array(eos_ids), history)
        return _sequences(history, len(self._owners))

    def _sample(self, draws: Draws, eos_ids: NDArray[np.int64], history: _History) -> None:
        logits: Tensor | None = None
        while True:
            look = self._steps(self._admit(logits), draws)
            survivors = self._keep(look, draws, eos_ids, history)
            if self._groups is not None and self._groups.suffice():
                return
            if self._present:
                logits = self._step(look.last if survivors is None else look.last[survivors], draws)
            elif self._waiting:
                logits = None
            else:
                return

    def _step(self, last: Tensor, draws: Draws) -> Tensor:
        if self._row_drafts is None:
            with self._threads.step():
                return self._decoder.step(last)
        self._drafts = drafts = self._row_drafts.next_pass(self._remaining[: self._present], self._uniforms(draws))
        with self._threads.step(self._row_drafts.length):
            return self._decoder.step(last, drafts)

    def _uniforms(self, draws: Draws) -> Uniforms:
        present = self._present
        return partial(draws.uniforms, self._completion[:present], self._sampled[:present])

    def _steps(self, logits: Tensor, draws: Draws) -> _Look:
        """Samples as many tokens as come before the next look, at most as many as some row may still have."""
        if self._drafts is not None:
            return self._verify(self._drafts, logits, draws)
        present = self._present
        steps = min(self._look_every, int(self._remaining[:present].max()))
        draws.prepare(self._completion[:present], self._sampled[:present], steps)
        tokens: list[Tensor] = []
        logps: list[Tensor] = []
        for step in range(steps):
            if step:
                logits = self._decoder.step(tokens[-1])
            chosen, logp = draws.draw(logits)
            tokens.append(chosen)
            logps.append(logp)
        taken = np.full(present, steps)
        return _Look(torch.stack(tokens).cpu().numpy(), torch.stack(logps).cpu().numpy(), taken, tokens[-1])

    def _verify(self, drafts: Drafts, logits: Tensor, draws: Draws) -> _Look:
        """Samples after each position of the latest pass, and takes back the guesses that were wrong."""
        since = self._present - len(drafts.counts)  # rows that have joined
        drafts, self._drafts = replace(drafts, counts=np.pad(drafts.counts, (0, since))), None
        row_of = drafts.row_of
        draws.prepare(self._completion[row_of], self._sampled[row_of] + drafts.after, 1)
        chosen, logp = draws.draw(logits)
        tokens, logps, taken = verified(drafts, chosen.numpy(), logp.numpy())
        self._decoder.take_back(drafts.counts + 1 - taken)
        assert self._drafting is not None
        self._drafting.counts.verified(len(drafts.tokens), int(taken.sum()) - len(taken))
        last = torch.from_numpy(tokens[taken - 1, np.arange(len(taken))])
        return _Look(tokens, logps, taken, last)

    def _keep(self, look: _Look, draws: Draws, eos_ids: NDArray[np.int64], history: _History) -> Tensor | None:
        """Records the tokens up to each completion's end and removes the rows that ended.

        Returns the old index of each remaining row, in their new order; None where all remain.
        """
        steps, present = look.tokens.shape
        remaining = self._remaining[:present]
        position = np.arange(1, steps + 1)[:, None]
        ends = (np.isin(look.tokens, eos_ids) | (position == remaining)) & (position <= look.taken)
        ended = ends.any(0)
        tokens = np.where(ended, ends.argmax(0) + 1, look.taken)
        kept = position <= tokens
        if self._row_drafts is not None:
            self._row_drafts.took(look.tokens, self._uniforms(draws), tokens)
        completions = np.broadcast_to(self._completion[:present], kept.shape)
        history.completions.append(completions[kept])
        history.tokens.append(look.tokens[kept])
        history.logps.append(look.logps[kept])
        remaining -= look.taken
        self._sampled[:present] += look.taken
        if not ended.any():
            return None
        if self._groups is not None:
            complete = self._groups.ended(self._completion[:present][ended])
            if self._hand_over is not None and len(complete):
                for number, sampled in zip(complete.tolist(), history.taken(complete), strict=True):
                    self._hand_over(number, sampled)
        return torch.from_numpy(self._release(ended)).to(look.last.device)

    def _release(self, ended: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Removes the ended rows. Returns the old index of each remaining row, in their new order."""
        self._keep_pasts(np.flatnonzero(ended))
        left = self._present - int(ended.sum())
        holes = np.flatnonzero(ended[:left])
        tails = left + np.flatnonzero(~ended[left:])
        order = np.arange(left)
        order[holes] = tails
        for array in (self._completion, self._sampled, self._remaining):
            array[:left] = array[order]
        self._decoder.leave(np.flatnonzero(ended).tolist(), holes.tolist(), tails.tolist(), left)
        if self._row_drafts is not None:
            self._row_drafts.left(order)
        self._present = left
        return order

    def _keep_pasts(self, ended: NDArray[np.int64]) -> None:
        """Keeps keys and values of conversations, at most as many bytes as the batch itself takes."""
        for row in ended.tolist():
            completion = int(self._completion[row])
            if self._starts[self._owners[completion]].conversation is None or self._kept_bytes < 0:
                continue
            past = self._decoder.past_of(row)
            self._kept_bytes += 0 if past is None else past.nbytes
            if past is None or self._kept_bytes > self._decoder.cache_bytes:
                self._kept_bytes = -1  # no more
                continue
            self.kept[completion] = past

    def _admit(self, logits: Tensor | None) -> Tensor:
        """Adds waiting completions to the batch. Returns the logits of all rows in it."""
        count = joining_count(self._present, len(self._waiting), self._rows)
        parts = [] if logits is None else [logits]
        while count > 0:
            prefilled, which = self._prefill([self._waiting[place] for place in range(count)])
            if prefilled is None:  # waits for a prompt to end
                break
            self._decoder.join(prefilled, which)
            parts.append(prefilled.logits[torch.tensor(which, device=prefilled.logits.device)])
            self._join(len(which))
            count -= len(which)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _join(self, count: int) -> None:
        """The first of the waiting completions are rows from now on."""
        while count > 0:
            owner = self._owners[self._waiting[0]]
            first, start = self._present, self._starts[owner]
            while count > 0 and self._owners[self._waiting[0]] == owner:
                self._completion[self._present], self._sampled[self._present] = self._waiting.popleft(), 0
                self._remaining[self._present] = start.limit
                self._present += 1
                count -= 1
            if self._row_drafts is not None:
                self._row_drafts.joined(slice(first, self._present), start.prefix_ids)

    def _prefill(self, chosen: Sequence[int]) -> tuple[Prefilled[Any] | None, list[int]]:
        """Computes the prompts of the first of ``chosen``, as many as one pass may hold and the decoder has room for.

        Returns them, and for each completion covered the index of its prompt among them.
        """
        first = self._owners[chosen[0]]
        if self._half_joined is not None and self._half_joined[0] == first:
            _, prefilled, index = self._half_joined
            return prefilled, [index for completion in chosen if self._owners[completion] == first]
        room = self._decoder.free_prompts
        starts: list[int] = []
        which: list[int] = []
        longest = 0
        for completion in chosen:
            owner = self._owners[completion]
            if not starts or owner != starts[-1]:
                longest = max(longest, len(self._starts[owner].prefix_ids))
                too_many = bool(starts) and longest * (len(starts) + 1) > PREFILL_TOKENS
                if too_many or len(starts) == room:
                    break
                starts.append(owner)
            which.append(len(starts) - 1)
        if not starts:
            return None, []
        prompts = [self._starts[owner].prefix_ids for owner in starts]
        self._threads.before_prompts(sum(map(len, prompts)))
        completions, pasts = zip(
            *((self._starts[owner].completions, self._pasts[owner]) for owner in starts), strict=True
        )
        prefilled = self._decoder.prefill(prompts, completions, pasts)
        more = len(which) < len(self._waiting) and self._owners[self._waiting[len(which)]] == starts[-1]
        self._half_joined = (starts[-1], prefilled, len(starts) - 1) if more else None
        return prefilled, which


def _sequences(history: _History, completions: int) -> list[Sampled]:
    """Returns tokens and log-probabilities by completion, from those by look."""
    if not history.completions:
        return [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in range(completions)]
    return _by_owner(history.columns(), completions)


def _by_owner(columns: Columns, count: int) -> list[Sampled]:
    """Returns the tokens and log-probabilities of owners 0 to ``count`` - 1, each one's in their order."""
    owners, tokens, logps = columns
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=count))[:-1]
    return list(zip(np.split(tokens[order], ends), np.split(logps[order], ends), strict=True))
