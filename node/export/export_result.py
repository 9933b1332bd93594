"""What an export made, and how its progress is shown. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct


class Export(Struct, frozen=True):
    """What ``starling export --json`` prints."""

    folder: str  # absolute
    form: Literal["model", "adapter"]
    four_bit: bool  # the linear layers, in NF4
    model: str  # the base model's name, as configured
    family: str  # hex
    round: int
    checkpoint: str
    replicas: int  # whose mean the weights are; 1: this node's own
    replicas_because: str  # in words
    warnings: tuple[str, ...]
    size_bytes: int

    def load_from(self, folder: str) -> str:
        """Returns Python that loads it from ``folder``, with a class of transformers or of peft."""
        loader = "AutoModelForCausalLM" if self.form == "model" else "AutoPeftModelForCausalLM"
        return f"{loader}.from_pretrained({folder!r})"


class Progress(Protocol):
    """Shows an export to the user. Must not raise."""

    def step(self, text: str) -> None:
        """Called when the next part begins."""

    def size(self, written_bytes: int, expected_bytes: int) -> None:
        """Called about once a second while weights are written, from another thread."""


class Request(Struct, frozen=True):
    """What the user wants."""

    folder: Path
    checkpoint: str | None = None  # a round's number, a path, "best"; None: the newest
    model: str | None = None  # where the base model is now; None: as the checkpoint says
    merge: bool = False
    four_bit: bool = False
    mean_of_family: bool = False
    force: bool = False
