"""What gains and losses mean, in words: the same for the command line, the page, reports and the demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from node.api.types import GainsAnswer, Loss, TaskGain, end_of
from node.events import TurnsUsed
from node.quantities import counted, times

OTHERS: Final = "others"  # peers beyond a round's bound, together
SMALL: Final = 0.005  # a mean reward below which a sentence calls nothing a gain
MAX_TURNS_NAMED: Final = 8  # the most frequent numbers
MAX_LOST_NAMED: Final = 4  # tasks in one sentence
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
            f"This node has learnt from nobody else yet: its mean reward over {tasks} is {answer.mean_now:.2f}; at "
            f"first it was {answer.mean_first:.2f}."
        )
    else:
        said = (
            f"This node's mean reward over {tasks} is {answer.mean_now:.2f}; before it learnt from others it was "
            f"{answer.mean_before:.2f}. {_shares(answer)}"
        )
    if answer.change is None:
        said += f" All of the change may be chance (its error is {answer.error:.2f})."
    if answer.started_from_peers:
        said += " It began with weights of peers."
    fallen = [(lost_task(loss), loss.best, loss.now) for loss in answer.losses]
    lower = [each.task for each in answer.tasks if each.change is not None and each.change < 0]
    if fallen:
        said += f" {lost_sentence(fallen)}"
    elif lower:
        said += f" Lower than before: {listed(lower[:MAX_LOST_NAMED])}."
    return said


def _shares(answer: GainsAnswer) -> str:
    parts = [f"{answer.from_others:+.2f} came with groups of peers{_most(answer)}"]
    parts.append(f"{answer.from_itself:+.2f} with its own")
    if abs(answer.not_attributed) >= SMALL:
        parts.append(f"{answer.not_attributed:+.2f} with no group of the task")
    return f"Of the change {listed(parts)}."


def _most(answer: GainsAnswer) -> str:
    """Returns who and what gave most, in brackets; nothing where little came from others."""
    if answer.from_others < SMALL or not answer.peers:
        return ""
    best, task = answer.peers[0], answer.tasks[0]
    who = "further peers" if best.peer == OTHERS else best.name or end_of(best.peer)
    return f" (most from {who}, most on {task.task}: {task.before:.2f} to {task.now:.2f})"


def in_steps(task: TaskGain, *, alone: bool) -> tuple[str, ...]:
    """Returns a task's reward at first, before it learnt from others (unless ``alone``), and now."""
    return tuple(
        f"{reward:.2f}" for reward in ((task.first, task.now) if alone else (task.first, task.before, task.now))
    )


def changed(by: float | None) -> str:
    """Returns a change of reward; it has no sign where it may be chance."""
    return "within chance" if by is None else f"{by:+.2f}"


def won_turns(used: Sequence[TurnsUsed]) -> float | None:
    """Returns the mean number of turns of conversations that were won; None where none was."""
    won = sum(each.won for each in used)
    return sum(each.turns * each.won for each in used) / won if won else None


def turns_words(used: Sequence[TurnsUsed]) -> str | None:
    """Describes how many turns conversations took, and how many of each number were won; None where there are none."""
    if not used:
        return None
    mean = won_turns(used)
    usual = sorted(used, key=lambda each: -each.episodes)[:MAX_TURNS_NAMED]
    by_turns = ", ".join(f"{each.turns}: {each.won / each.episodes:.2f}" for each in used if each in usual)
    took = "none won" if mean is None else f"won in {mean:.1f} turns"
    return f"{took}; won by turns taken {by_turns}"


def lost_task(loss: Loss) -> str:
    """Names the task of a loss, and says where it is of greedy answers: practice, beside which it stands, samples its
    answers, and may rise meanwhile."""
    return f"{loss.task} (greedy answers)" if loss.measured == "held-out" else loss.task


def fell(task: str, best: float, now: float) -> str:
    """Names one task that fell, with the figures: "add from 0.76 to 0.11"."""
    return f"{task} from {best:.2f} to {now:.2f}"


def lost_sentence(fallen: Sequence[tuple[str, float, float]]) -> str:
    """Returns one sentence about tasks that fell, each with what it was and what it is; empty where none did."""
    named = [fell(*each) for each in fallen[:MAX_LOST_NAMED]]
    if len(fallen) > MAX_LOST_NAMED:
        named.append(f"{len(fallen) - MAX_LOST_NAMED} more")
    return f"It has lost success on {listed(named)}." if named else ""


def loss_sentence(loss: Loss) -> str:
    """Describes one loss: the figures, since when, and what else changed meanwhile."""
    on = " on held-out prompts" if loss.measured == "held-out" else ""
    since = f", since round {loss.since_round}" if loss.since_round != loss.best_round else ""
    said = f"{lost_task(loss)} has fallen{on} from {loss.best:.2f} (round {loss.best_round}) to {loss.now:.2f}{since}."
    return f"{said} Meanwhile: {'; '.join(loss.went_with)}." if loss.went_with else said


def listed(named: Sequence[str]) -> str:
    """Returns what is named with commas and an "and"."""
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
