"""Where in a task's or reward's own code an exception arose: its file and line, for the person who wrote it."""

from __future__ import annotations

import traceback
from pathlib import Path

import node

_OURS = str(Path(node.__file__).parent)


def place_of(error: BaseException, file: str | None = None) -> str | None:
    """Returns "FILE, line N" of the deepest frame in ``file``; without one, in the first file that is not the node's.

    None if no frame is: the error arose in the node's own code.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if file is None:
        file = next((name for name, _ in frames if not name.startswith(_OURS)), None)
    lines = [line for name, line in frames if name == file]
    return f"{file}, line {lines[-1]}" if lines else None
