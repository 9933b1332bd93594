"""What the supervisor and the process that answers say to each other, a line of JSON each. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from node.trying.tried import Tried

MAX_QUESTION_CHARACTERS = 4000


class TryStart(Struct, frozen=True):
    """The first line on the process's standard input."""

    home: str
    config: dict[str, Any]  # ``Config.model_dump(mode="json")``


class TryRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /api/v1/try: the base model and a checkpoint answer one question."""

    text: Annotated[str, Meta(min_length=1, max_length=MAX_QUESTION_CHARACTERS)]  # the question, or the task's name
    of_task: bool = False  # the next question of that task that nobody trains on; its answers are judged
    checkpoint: Literal["last", "best"] = "last"


class Doing(Struct, frozen=True, tag_field="said", tag="doing"):
    """What the process does now."""

    what: str


class NotAnswered(Struct, frozen=True, tag_field="said", tag="refused"):
    """Why a request is not answered, and the remedy."""

    because: str


class Answered(Struct, frozen=True, tag_field="said", tag="answered"):
    tried: Tried


Said = Doing | NotAnswered | Answered
