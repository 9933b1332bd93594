"""Checks the claims of a foreign group: only what was checked here is believed. Every function is pure.

The prompt is regenerated from its reference, the rewards are recomputed, conversations are replayed, and where the
group's tokenizer is ours the tokens must be those of the text. The log-probabilities cannot be checked; they only ever
lower or cap a weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node.environments.conversation import ConversationTask, most_turns
from node.learner.foreign.outcomes import Decision, ForeignOutcome
from node.policy.tokens import TokenTable
from node.tasks.scorer import Scores
from node.tasks.task import Prompt, Task
from protocol.conversations import first_difference
from protocol.errors import MalformedError
from protocol.rollouts import Completion, FinishReason, Group
from swarm.api import Judgement

REWARD_TOLERANCE = 1e-3  # claims travel as float32


@dataclass(frozen=True, slots=True)
class ForeignRefusal:
    """Why a fetched group is not learnt from, and how that counts for its sender."""

    judgement: Judgement | None  # None: nothing of it was checked
    decision: Decision
    detail: str


def regenerated_prompt(group: Group, tasks: Mapping[str, Task], tokens: TokenTable) -> Prompt:
    """Returns the group's prompt, made here. Raises ``MalformedError`` for what cannot be a group of this task."""
    task = tasks.get(group.prompt.task)
    if task is None:
        raise MalformedError(f"there is no task {group.prompt.task!r} here")
    if group.converses != isinstance(task, ConversationTask):
        kind = "conversations" if group.converses else "single answers"
        raise MalformedError(f"{kind} of {task.name!r}, which has none")
    prompt = task.prompt(group.prompt)
    for completion in group.completions:
        if len(turns := completion.turns()) > most_turns(task):
            raise MalformedError(f"a conversation of {len(turns)} turns; {task.name!r} allows {most_turns(task)}")
        for turn in turns:
            if len(turn.token_ids) > task.max_new_tokens:
                raise MalformedError(
                    f"{len(turn.token_ids)} tokens at once; task {task.name!r} allows {task.max_new_tokens}"
                )
            if group.tokenizer == tokens.fingerprint:
                _check_tokens(turn, tokens)
    return prompt


def _check_tokens(completion: Completion, tokens: TokenTable) -> None:
    """Raises ``MalformedError`` unless ids, byte lengths, text and finish reason agree in our own tokenizer."""
    ids = completion.token_ids.tolist()
    if ids and max(ids) >= tokens.vocabulary:
        raise MalformedError(f"token id {max(ids)}; the vocabulary has {tokens.vocabulary}")
    if tokens.text_of(ids) != completion.text or tokens.byte_lengths(ids) != completion.token_bytes.tolist():
        raise MalformedError("the token ids do not stand for the text")
    ends = [position for position, token_id in enumerate(ids) if token_id in tokens.eos_ids]
    if ends != ([len(ids) - 1] if completion.finish is FinishReason.STOP else []):
        raise MalformedError(f"end-of-sequence at {ends} of {len(ids)} tokens, finish reason {completion.finish}")


def check_turns(group: Group, scores: Scores) -> str | None:
    """Compares the claimed digests of conversations with those found here; returns where they differ first, None where
    all agree that could be replayed."""
    for index, (completion, played) in enumerate(zip(group.completions, scores.played, strict=True)):
        claimed = [group.beginning, *(action.digest for action in completion.actions)]
        turn = None if played is None else first_difference(claimed, played.digests)
        if turn is not None:
            where = f"turn {turn} of {len(completion.actions)}" if turn else "the first text"
            return f"completion {index}: {where} goes otherwise here"
    return None


def check_rewards(claimed: Sequence[float], scores: Scores) -> ForeignRefusal | None:
    """Compares claimed rewards with recomputed ones; returns None where every claim holds.

    A completion that our scorer could not score, because it ran out of time for example, accuses nobody: the group is
    left unused.
    """
    for index, (claim, reward, fault) in enumerate(zip(claimed, scores.rewards, scores.faults, strict=True)):
        if fault is None and not abs(claim - reward) <= REWARD_TOLERANCE:
            detail = f"completion {index}: claimed reward {claim:g}, recomputed {reward:g}"
            return ForeignRefusal(Judgement.FALSE_REWARD, ForeignOutcome.FALSE_REWARD, detail)
    faults = [fault for fault in scores.faults if fault is not None]
    if faults:
        detail = f"{faults[0].reason}: {faults[0].detail}"
        return ForeignRefusal(Judgement.UNUSED, ForeignOutcome.NOT_SCORED, detail)
    return None
