"""``starling pause`` and ``starling resume``: the owner has the machine to himself for a while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import HomeOption, JsonOption, home_of, print_answer

if TYPE_CHECKING:
    from node.api.types import PauseAnswer, Paused

PauseForOption = Annotated[
    str | None, typer.Option("--for", metavar="2h", help="For so long: 90min, 2h, 1d. Default: until starling resume.")
]
ResumeForOption = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="2h", help="Train for so long, also outside the schedule and while the machine is in use."
    ),
]
NowOption = Annotated[
    bool, typer.Option("--now", help="Drop the step that is under way; what is kept is the last checkpoint.")
]


def pause(
    home: HomeOption = None, for_text: PauseForOption = None, now: NowOption = False, as_json: JsonOption = False
) -> None:
    """Pause training: the learner finishes its step, checkpoints, and gives back its memory, that of a GPU too.

    Peers stay connected and are served. A pause outlives a restart of the node and of the machine.

    Examples:

    starling pause

    starling pause --for 2h
    """
    from node.api.node_client import ask_pause

    _show(ask_pause(home_of(home), _seconds(for_text), at_once=now), as_json)


def resume(home: HomeOption = None, for_text: ResumeForOption = None, as_json: JsonOption = False) -> None:
    """Train again: the learner starts and continues from its last checkpoint.

    Examples:

    starling resume

    starling resume --for 30min
    """
    from node.api.node_client import ask_resume

    _show(ask_resume(home_of(home), _seconds(for_text)), as_json)


def _seconds(text: str | None) -> float | None:
    from node.configuration.amounts import span_seconds

    try:
        return None if text is None else span_seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _show(answer: PauseAnswer, as_json: bool) -> None:
    print_answer(answer, as_json, lambda: _lines(answer.paused))


def _lines(paused: Paused | None) -> Iterator[str]:
    from node.api.answers import paused_sentence

    if paused is None:
        yield "The node trains: its learner loads, and continues from its last checkpoint."
        return
    yield paused_sentence(paused, time.time())
    yield "`starling status` shows when the learner has ended."
