"""Shows an export on standard error: one line that changes on a terminal, a line a step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status
from rich.text import Text

from node.export.export_result import Progress
from node.quantities import size


class _OneLine:
    def __init__(self, status: Status) -> None:
        self._status = status

    def step(self, text: str) -> None:
        self._status.update(Text(text))

    def size(self, written_bytes: int, expected_bytes: int) -> None:
        self.step(f"writing: {size(written_bytes)} of {size(expected_bytes)}")


class _Lines:
    def step(self, text: str) -> None:
        print(text, file=sys.stderr)  # noqa: T201

    def size(self, written_bytes: int, expected_bytes: int) -> None:
        return


@contextmanager
def shown_export() -> Iterator[Progress]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    with console.status("") as status:
        yield _OneLine(status)
