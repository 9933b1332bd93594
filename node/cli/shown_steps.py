"""What a verb that computes is doing, on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.status import Status


class ShownSteps:
    """Shows steps in one line that changes on a terminal, in a line a step elsewhere."""

    def __init__(self, line: Status | None) -> None:
        self._line = line

    def step(self, text: str) -> None:
        if self._line is None:
            typer.echo(text, err=True)
        else:
            self.meanwhile(text)

    def meanwhile(self, text: str) -> None:
        """Shows ``text`` on a terminal alone."""
        from rich.text import Text

        if self._line is not None:
            self._line.update(Text(text))

    def size(self, written_bytes: int, expected_bytes: int) -> None:
        from node.quantities import size

        self.meanwhile(f"writing: {size(written_bytes)} of {size(expected_bytes)}")


@contextmanager
def shown_steps() -> Iterator[ShownSteps]:
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield ShownSteps(None)
        return
    with console.status("") as line:
        yield ShownSteps(line)
