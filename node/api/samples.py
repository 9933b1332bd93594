"""The question and answers to be looked at, with whose they are. The learner has escaped and bounded every text."""

from __future__ import annotations

from node.api.record import RunRecord
from node.api.run_changes import RunChanges
from node.api.types import SampleAnswer, SampleGroup, SamplesAnswer
from node.events import SampledGroup

RIGHT = 0.5  # the least reward of an answer that is called right


def samples_answer(record: RunRecord, *, model: str) -> SamplesAnswer:
    """Returns the newest sample; ``model``: this node's."""
    own, peers, changes = record.samples, record.learnt_from, record.changes
    return SamplesAnswer(
        round=None if own is None else own.round,
        time_seconds=None if own is None else own.time_seconds,
        ours=None if own is None or own.ours is None else _group(own.ours, changes, model),
        learnt_from=None if peers is None or peers.learnt_from is None else _group(peers.learnt_from, changes, model),
        learnt_round=None if peers is None else peers.round,
        learnt_seconds=None if peers is None else peers.time_seconds,
    )


def _group(group: SampledGroup, changes: RunChanges, model: str) -> SampleGroup:
    known = None if group.peer is None else changes.known(group.peer)
    is_ours = group.peer is None
    return SampleGroup(
        whose="ours" if is_ours else "peer",
        peer=group.peer,
        name=known.name if known is not None else None,
        model=model if is_ours else known.model if known is not None else None,
        task=group.task,
        question=group.question,
        expected=group.expected,
        answers=tuple(
            SampleAnswer(answer.text, answer.cut, answer.reward, right=answer.reward >= RIGHT)
            for answer in group.answers
        ),
        completions=group.completions,
        reward_mean=group.reward_mean,
    )
