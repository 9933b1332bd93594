"""Chooses a question and answers of a round for people to look at: text only, escaped and bounded, now and then.

Of our own groups one with right and wrong answers is taken where there is one, of the groups of peers one that the
round learnt from. Tasks take turns, so that the same one is not shown for ever. The best and the worst answers of a
group are shown. The texts of a peer are never given without its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from node.events import SAMPLE_ANSWERS, SAMPLE_CHARACTERS, SAMPLES_SECONDS, SampledAnswer, SampledGroup, Samples
from node.learner.foreign.candidates import VerifiedGroup
from node.learner.generation.own_rollouts import Rollout
from node.printable import printable, printable_lines
from node.tasks.scorer import Scores
from node.tasks.task import Prompt
from protocol.limits import NAME_BYTES

CUT_BYTES: Final = 4 * SAMPLE_CHARACTERS  # of a completion, before it is decoded


class SampleChoice:
    """Remembers the time and the task of what was shown last."""

    def __init__(self) -> None:
        self._shown_at_seconds: float | None = None
        self._shown: dict[tuple[bool, str], int] = {}  # (ours, task): the round in which it was shown last

    def of_round(
        self,
        now_seconds: float,
        round_number: int,
        own: Sequence[tuple[Rollout, Scores]],
        learnt_from: Sequence[VerifiedGroup],
    ) -> Samples | None:
        """Returns what may be looked at; None where something was shown less than ``SAMPLES_SECONDS`` ago, or there is
        nothing."""
        if self._shown_at_seconds is not None and 0 <= now_seconds - self._shown_at_seconds < SAMPLES_SECONDS:
            return None
        ours = self._chosen(True, [(rollout.prompt.ref.task, scores.rewards) for rollout, scores in own], round_number)
        theirs = self._chosen(False, [(each.prompt.ref.task, each.rewards) for each in learnt_from], round_number)
        if ours is None and theirs is None:
            return None
        self._shown_at_seconds = now_seconds
        return Samples(
            time_seconds=now_seconds,
            round=round_number,
            ours=None if ours is None else _group(None, own[ours][0].prompt, own[ours][0].texts, own[ours][1].rewards),
            learnt_from=None if theirs is None else _of_peer(learnt_from[theirs]),
        )

    def _chosen(self, ours: bool, groups: Sequence[tuple[str, Sequence[float]]], round_number: int) -> int | None:
        """Returns the index of the group to show: rewards that differ first, then the task shown longest ago."""
        if not groups:
            return None
        chosen = min(
            range(len(groups)),
            key=lambda i: (max(groups[i][1]) == min(groups[i][1]), self._shown.get((ours, groups[i][0]), -1), i),
        )
        self._shown[ours, groups[chosen][0]] = round_number
        return chosen


def _of_peer(group: VerifiedGroup) -> SampledGroup:
    return _group(group.foreign.peer, group.prompt, group.texts(), group.rewards)


def _group(peer: str | None, prompt: Prompt, texts: Sequence[bytes], rewards: Sequence[float]) -> SampledGroup:
    shown = best_and_worst(texts, rewards)
    return SampledGroup(
        peer=None if peer is None else printable(peer),
        task=printable(prompt.ref.task, NAME_BYTES),
        question=printable_lines(prompt.text, SAMPLE_CHARACTERS),
        expected=None if prompt.answer is None else printable_lines(prompt.answer, SAMPLE_CHARACTERS),
        answers=tuple(_answer(texts[i], rewards[i]) for i in shown),
        completions=len(texts),
        reward_mean=sum(rewards) / len(rewards),
    )


def best_and_worst(texts: Sequence[bytes], rewards: Sequence[float]) -> list[int]:
    """Returns at most ``SAMPLE_ANSWERS`` indices: from the best and from the worst in turn, equal texts once, the best
    first."""
    order = sorted(range(len(texts)), key=lambda i: (-rewards[i], i))
    turns = [i for pair in zip(order, reversed(order), strict=True) for i in pair]
    chosen: list[int] = []
    seen: set[bytes] = set()
    for i in turns:
        if len(chosen) < SAMPLE_ANSWERS and texts[i] not in seen:
            chosen.append(i)
            seen.add(texts[i])
    return sorted(chosen, key=lambda i: (-rewards[i], i))


def _answer(text: bytes, reward: float) -> SampledAnswer:
    decoded = text[:CUT_BYTES].decode("utf-8", "replace")
    cut = len(text) > CUT_BYTES or len(decoded) > SAMPLE_CHARACTERS
    return SampledAnswer(printable_lines(decoded, SAMPLE_CHARACTERS), cut, float(reward))
