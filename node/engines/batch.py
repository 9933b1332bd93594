"""The completions of one call, as they join, grow in and leave the decoder's batch.

The host looks at what was sampled once in ``look_every`` tokens. On a GPU each look waits for the device, and between
two looks nothing does: tokens, log-probabilities and random numbers stay there. A row whose completion has ended is
noticed at the next look; the tokens that it got meanwhile are dropped.

Where the host looks at every token, and the decoder can, a pass also verifies guesses of what follows (``drafting``):
then a look has one token of each row or more.

A row of a conversation parts from the batch when its action has ended and keeps its keys and values. Once it is known
what the model reads next, it comes back: the next pass of all computes these tokens too (as Sarathi-Serve mixes prompts
with decoding, arXiv 2403.02310), and the row goes on. No row waits for another's environment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.engines.complete_groups import CompleteGroups
from node.engines.decoder import Decoder, Drafts, Parted, Prefilled
from node.engines.drafting.row_drafts import Drafting, RowDrafts, Uniforms, verified
from node.engines.draws import Draws
from node.engines.resumption import SamplingStart
from node.engines.step_threads import StepThreads
from node.engines.turns import BatchConversations, NextAction
from protocol.streams.engine_batches import HandOver, Sampled

PREFILL_TOKENS: Final = 8192  # padded prompt tokens, or those read between actions, in one pass; bounds activations

Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]  # owner, id and log-probability of tokens


def joining_count(present: int, waiting: int, rows: int) -> int:
    """Returns how many waiting completions join: all that fit, once an eighth of the rows (or room for all) is free.

    Waiting for an eighth lets several prompts share one forward pass.
    """
    free = rows - present
    return min(free, waiting) if free >= min(waiting, max(1, rows // 8)) else 0


def shares_of(starts: Sequence[SamplingStart], batches: int) -> list[range]:
    """Divides the completions of ``starts`` among at most so many batches, as evenly as whole groups can be."""
    in_all, ends = 0, dict[int, int]()  # of each group: completions up to its last one
    for start in starts:
        in_all += start.completions
        ends[start.request] = in_all
    cuts = {min(ends.values(), key=lambda end: abs(end - in_all * part / batches)) for part in range(1, batches)}
    return [range(*each) for each in pairwise(sorted({0, *cuts, in_all}))]


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
        only: range,
        look_every: int,
        threads: StepThreads,
        drafting: Drafting | None = None,
        most_positions: int = 0,
        hand_over: HandOver | None = None,
        conversations: BatchConversations | None = None,
        longest_completion: int = 0,
    ) -> None:
        """``only``: the completions that it samples, whole groups; others are in other batches.
        With ``drafting``, a pass has at most ``most_positions`` tokens; it needs a look at every token.
        ``hand_over``, which needs ``groups``, gets the completions of a group as soon as it is complete.
        ``conversations`` need a decoder whose rows may part. ``longest_completion``: the number of tokens after its
        start for which each row has room at first, if that is more than the starts' limits."""
        self._decoder, self._starts, self._groups = decoder, starts, groups
        self._hand_over = hand_over
        self._conversations = conversations
        self._parted: dict[int, Parted] = {}  # by completion
        self._returning: deque[tuple[int, NextAction]] = deque()  # of those parted
        self.longest_completion = longest_completion  # that a row has come to have room for
        self._drafting, self._most_positions = drafting, most_positions
        self._row_drafts: RowDrafts | None = None
        self._drafts: Drafts | None = None  # of the latest pass
        self._look_every, self._threads = look_every, threads
        self._owners = [index for index, start in enumerate(starts) for _ in range(start.completions)]
        self._own = only
        self._rows = rows = min(rows, len(only))
        self._waiting = deque(only)  # completions, in order; those of one start are neighbours
        self._completion = np.zeros(rows, dtype=np.int64)  # of each row
        self._sampled = np.zeros(rows, dtype=np.int64)  # tokens that each row has
        self._remaining = np.zeros(rows, dtype=np.int64)  # tokens that each row may still have
        self._present = 0
        # a start that more rows may continue: its index, its prefill, its index there
        self._half_joined: tuple[int, Prefilled[Any], int] | None = None

    def run(self, draws: Draws, eos_ids: Sequence[int]) -> list[Sampled]:
        """Returns tokens and log-probabilities of each of its completions, in the order of the starts; some may be
        empty, and those that were handed over are."""
        history = _History()
        if self._groups is None or not self._groups.suffice():
            starts = [self._starts[owner] for owner in dict.fromkeys(self._owners[each] for each in self._own)]
            longest_prompt = max(len(start.prefix_ids) for start in starts)
            self.longest_completion = max(self.longest_completion, *(start.limit for start in starts))
            completions = [start.completions for start in starts]
            self._decoder.begin(self._rows, completions, longest_prompt, self.longest_completion)
            if self._drafting is not None:
                self._row_drafts = RowDrafts(self._drafting, self._rows, self._most_positions, eos_ids)
            with self._threads.chosen():
                self._sample(draws, np.array(eos_ids), history)
        return _sequences(history, len(self._owners))[self._own.start : self._own.stop]

    def _sample(self, draws: Draws, eos_ids: NDArray[np.int64], history: _History) -> None:
        logits: Tensor | None = None
        while True:
            logits = self._admit(logits)
            last = torch.empty(0, dtype=torch.int64, device=draws.device)
            if logits is not None:
                look = self._steps(logits, draws)
                survivors = self._keep(look, draws, eos_ids, history)
                last = look.last if survivors is None else look.last[survivors]
            if self._conversations is not None:
                self._hear(self._conversations, nothing_joins=logits is None or not self._waiting)
            if self._groups is not None and self._groups.suffice():
                return
            if self._present or self._returning:
                logits = self._step(last, draws)
            elif self._waiting or self._parted:
                logits = None
            else:
                return

    def _hear(self, conversations: BatchConversations, *, nothing_joins: bool) -> None:
        """Takes what followed actions; waits for it where nothing else can be computed."""
        over: list[int] = []
        for completion, continuation in conversations.replies(
            wait=nothing_joins and not self._present and not self._returning
        ):
            if continuation is None:
                self._decoder.drop(self._parted.pop(completion))
                over.append(completion)
            else:
                self._returning.append((completion, continuation))
        if over and self._groups is not None:
            self._groups.ended(np.array(over))

    def _step(self, last: Tensor, draws: Draws) -> Tensor:
        drafts: Drafts | None = None
        length = 1.0
        if self._row_drafts is not None and self._present:
            drafts = self._row_drafts.next_pass(self._remaining[: self._present], self._uniforms(draws))
            length = self._row_drafts.length
        self._drafts = drafts
        if not self._returning:
            with self._threads.step(length):
                return self._decoder.step(last, drafts)
        newest, given = self._rejoin(drafts)
        self._threads.before_prompts(self._present + len(given.tokens))
        return self._decoder.step(torch.cat([last, torch.tensor(newest, device=last.device)]), given)

    def _rejoin(self, drafts: Drafts | None) -> tuple[list[int], Drafts]:
        """Adds rows that come back, as many as one pass may hold. Returns their newest tokens, and the pass with what
        they read. The guesses of the others are among that pass."""
        counts = np.zeros(self._present, dtype=np.int64) if drafts is None else drafts.counts
        back: list[tuple[int, NextAction]] = []
        positions = 0
        while self._returning and (not back or positions + len(self._returning[0][1].said) < PREFILL_TOKENS):
            back.append(self._returning.popleft())
            positions += 1 + len(back[-1][1].said)
        parted = [self._parted.pop(completion) for completion, _ in back]
        self._decoder.rejoin(parted, [1 + len(each.said) + each.limit for _, each in back])
        for completion, each in back:
            row = self._present
            self._completion[row], self._sampled[row], self._remaining[row] = completion, each.drawn, each.limit
            self._present += 1
            self.longest_completion = max(self.longest_completion, len(each.row) + each.limit - self._begun(completion))
            if self._row_drafts is not None:
                self._row_drafts.joined(slice(row, row + 1), each.row)
        said = [np.array(each.said, dtype=np.int64) for _, each in back]
        tokens = said if drafts is None else [drafts.tokens, *said]
        if drafts is not None:
            self._drafts = replace(drafts, counts=np.pad(counts, (0, len(back))))
        given = Drafts(np.concatenate(tokens), np.array([*counts, *map(len, said)]), len(back))
        return [each.row[-1 - len(each.said)] for _, each in back], given

    def _begun(self, completion: int) -> int:
        return len(self._starts[self._owners[completion]].prefix_ids)

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
        over = ended
        if self._conversations is not None:
            acting = ended & self._conversations.converse[self._completion[:present]]
            self._part(self._conversations, acting, look.taken - tokens, history)
            over = ended & ~acting
        if self._groups is not None:
            complete = self._groups.ended(self._completion[:present][over])
            if self._hand_over is not None and len(complete):
                for number, sampled in zip(complete.tolist(), history.taken(complete), strict=True):
                    self._hand_over(number, sampled)
        return torch.from_numpy(self._release(ended, over)).to(look.last.device)

    def _part(
        self,
        conversations: BatchConversations,
        acting: NDArray[np.bool_],
        beyond: NDArray[np.int64],
        history: _History,
    ) -> None:
        """Rows ``acting`` have ended an action, ``beyond`` tokens ago: they are about to part."""
        if not acting.any():
            return
        if (beyond[acting] > 0).any():
            self._decoder.take_back(np.where(acting, beyond, 0))
        rows = np.flatnonzero(acting)
        rows = rows[np.argsort(self._completion[rows])]
        completions = self._completion[rows]
        parted = self._decoder.part(rows.tolist())
        for completion, each, sampled in zip(completions.tolist(), parted, history.taken(completions), strict=True):
            self._parted[completion] = each
            conversations.acted(completion, *sampled)

    def _release(self, left_out: NDArray[np.bool_], over: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Removes rows, of which those ``over`` do not come back. Returns the old index of each remaining row, in their
        new order."""
        left = self._present - int(left_out.sum())
        holes = np.flatnonzero(left_out[:left])
        tails = left + np.flatnonzero(~left_out[left:])
        order = np.arange(left)
        order[holes] = tails
        for array in (self._completion, self._sampled, self._remaining):
            array[:left] = array[order]
        self._decoder.leave(np.flatnonzero(over).tolist(), holes.tolist(), tails.tolist(), left)
        if self._row_drafts is not None:
            self._row_drafts.left(order)
        self._present = left
        return order

    def _admit(self, logits: Tensor | None) -> Tensor | None:
        """Adds waiting completions to the batch. Returns the logits of all rows in it, None where there is no row."""
        count = joining_count(self._present + len(self._parted), len(self._waiting), self._rows)
        parts = [] if logits is None else [logits]
        while count > 0:
            prefilled, which = self._prefill([self._waiting[place] for place in range(count)])
            if prefilled is None:  # waits for a prompt to end
                break
            self._decoder.join(prefilled, which)
            parts.append(prefilled.logits[torch.tensor(which, device=prefilled.logits.device)])
            self._join(len(which))
            count -= len(which)
        return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else None

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
        prefilled = self._decoder.prefill(prompts, [self._starts[owner].completions for owner in starts])
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
