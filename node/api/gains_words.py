"""What gains mean, in words: the formula, its limits, and the sentence for the top of a page."""

from __future__ import annotations

from typing import Final

from node.api.loss_words import lost_sentence
from node.api.types import GainsAnswer
from node.quantities import counted, times

OTHERS: Final = "others"  # peers beyond a round's bound, together
SMALL: Final = 0.005  # a mean reward below which a sentence calls nothing a gain
HOW: Final = (
    "After each round the change of a task's smoothed reward (own completions; a round counts 0.9 of the next) is "
    "divided among the groups of that task, own ones and those of peers, that the last rounds learnt from, in "
    "proportion to their weight in the gradient (|advantage| times tokens, which fades by the same 0.9 a round); the "
    "shares are added up from the first group of a peer on, falls like rises."
)
LIMITS: Final = (
    "This is an attribution, not an experiment: it does not know what this node would have learnt alone. A change that "
    "came from another task, from averaging weights or from chance is counted to the groups of the task itself."
)
AVERAGED: Final = "Weights were averaged with peers {}: what that brought is in these figures."
FROM_PEERS: Final = "The node took over weights of peers at a start: what they could is not among its gains."


def limits_of(*, averagings: int, from_peers: bool) -> str:
    """Returns what the figures of a run do not say."""
    said = f"{LIMITS} {AVERAGED.format(times(averagings))}" if averagings else LIMITS
    return f"{said} {FROM_PEERS}" if from_peers else said


def gains_sentence(answer: GainsAnswer) -> str:
    """Returns what the node can do, what it could, and what it has from whom, in plain words; losses included."""
    if answer.mean_now is None or answer.mean_first is None or answer.mean_before is None:
        return "This node has not finished a round yet."
    tasks = counted(len(answer.tasks), "task")
    if answer.others_since_round is None:
        said = (
            f"This node has learnt from nobody else yet: its mean reward over {tasks} is {answer.mean_now:.2f}; in its "
            f"first rounds it was {answer.mean_first:.2f}."
        )
    else:
        said = (
            f"This node's mean reward over {tasks} is {answer.mean_now:.2f}; before it learnt from others it was "
            f"{answer.mean_before:.2f}. {_shares(answer)}"
        )
        if abs(answer.mean_now - answer.mean_before) < 2 * answer.error:
            said += f" All of it may be chance (its error is {answer.error:.2f})."
    fallen = [(loss.task, loss.best, loss.now) for loss in answer.losses]
    if answer.started_from_peers:
        said += " It began with weights of peers."
    return f"{said} {lost_sentence(fallen)}" if fallen else said


def _shares(answer: GainsAnswer) -> str:
    parts = [f"{answer.from_others:+.2f} came with groups of peers{_most(answer)}"]
    parts.append(f"{answer.from_itself:+.2f} with its own")
    if abs(answer.not_attributed) >= SMALL:
        parts.append(f"{answer.not_attributed:+.2f} with no group of the task")
    return f"Of the change {', '.join(parts[:-1])} and {parts[-1]}."


def _most(answer: GainsAnswer) -> str:
    """Returns who and what gave most, in brackets; nothing where little came from others."""
    if answer.from_others < SMALL or not answer.peers:
        return ""
    best, task = answer.peers[0], answer.tasks[0]
    who = "further peers" if best.peer == OTHERS else best.name or f"…{best.peer[-5:]}"
    return f" (most from {who}, most on {task.task}: {task.before:.2f} to {task.now:.2f})"
