"""What a model has lost, in words: the same for the command line, the page, reports and the demonstration."""

from __future__ import annotations

from collections.abc import Sequence

from node.api.types import Loss

MAX_NAMED = 4  # tasks in one sentence


def fell(task: str, best: float, now: float) -> str:
    """Names one task that fell, with the figures: "add from 0.76 to 0.11"."""
    return f"{task} from {best:.2f} to {now:.2f}"


def lost_sentence(fallen: Sequence[tuple[str, float, float]]) -> str:
    """Returns one sentence about tasks that fell, each with what it was and what it is; empty where none did."""
    if not fallen:
        return ""
    named = [fell(*each) for each in fallen[:MAX_NAMED]]
    if len(fallen) > MAX_NAMED:
        named.append(f"{len(fallen) - MAX_NAMED} more")
    listed = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    return f"It has lost success on {listed}."


def loss_sentence(loss: Loss) -> str:
    """Describes one loss: the figures, since when, and what else changed meanwhile."""
    on = " on held-out prompts" if loss.measured == "held-out" else ""
    said = (
        f"{loss.task} has fallen{on} from {loss.best:.2f} (round {loss.best_round}) to {loss.now:.2f}, since round "
        f"{loss.since_round}."
    )
    return f"{said} Meanwhile: {'; '.join(loss.went_with)}." if loss.went_with else said


def loss_lines(losses: Sequence[Loss]) -> list[str]:
    """Returns one line for each loss, for ``starling status`` and ``starling report``."""
    return [f"lost      {loss.sentence}" for loss in losses]
