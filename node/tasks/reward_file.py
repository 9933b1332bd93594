"""A reward function from a Python file of the node's owner: ``tasks.jsonl_reward = "FILE.py:FUNCTION"``.

``RewardFile.read`` checks the file and runs none of it: it must be Python, and define the function at its top level.
The code runs at the first score, which in a node happens in the scoring workers alone (``worker.py``). A file comes
from this machine's disk and from nowhere else: no peer and no model names one, only the owner's settings. Equal content
and an equal name of the function give equal ``shape``, wherever the file lies; what it imports is not part of that.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, cast

import node
from protocol.errors import ConfigurationError

KEY: Final = "tasks.jsonl_reward"
FILE_BYTES: Final = 1 << 20
_NAMED: Final = re.compile(r"(?P<path>.+\.py):(?P<function>[^:/\\]*)")
_OURS = str(Path(node.__file__).parent)


def is_reward_file(text: str) -> bool:
    """Returns whether a value of ``tasks.jsonl_reward`` names a file rather than a reward."""
    return _NAMED.fullmatch(text) is not None or text.endswith(".py")


@dataclass(frozen=True)
class RewardFile:
    """A ``RewardFunction`` that is compiled, and run for the first time when it is called or ``load`` is."""

    path: Path
    function: str
    digest: str  # SHA-256 of the file
    code: CodeType = field(repr=False)

    @classmethod
    def read(cls, text: str) -> RewardFile:
        """Raises ``ConfigurationError``, with the line where there is one, for a file that cannot be used."""
        named = _NAMED.fullmatch(text)
        if named is None or not named["function"]:
            raise ConfigurationError(f'{KEY} = "{text}" names no function: write "FILE.py:FUNCTION"')
        path = Path(named["path"]).expanduser()
        source = _source(path)
        try:
            tree = ast.parse(source, str(path))
            code = compile(tree, str(path), "exec")
        except SyntaxError as error:
            raise ConfigurationError(f"{KEY}: {path}, line {error.lineno}: {error.msg}") from error
        except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nested too deeply
            raise ConfigurationError(f"{KEY}: {path} is not Python: {error}") from error
        _check_defined(path, tree, named["function"])
        return cls(path, named["function"], hashlib.sha256(source).hexdigest(), code)

    @property
    def shape(self) -> dict[str, str]:
        """What of the file shapes rewards, for the hash of a task's configuration."""
        return {"function": self.function, "sha256": self.digest}

    @property
    def label(self) -> str:
        """For people, without the folder."""
        return f"{self.path.name}:{self.function}"

    def load(self) -> None:
        """Runs the file. Raises ``ConfigurationError``, with the line, for whatever it raises."""
        _ = self._loaded

    def __call__(self, prompts: Sequence[str], completions: Sequence[str], **columns: Sequence[Any]) -> Sequence[float]:
        return self._loaded(prompts, completions, **columns)

    @cached_property
    def _loaded(self) -> Callable[..., Sequence[float]]:
        module = ModuleType(self.path.stem)
        module.__file__ = str(self.path)
        try:
            exec(self.code, vars(module))  # the owner's own code, as read from the owner's disk
        except (Exception, SystemExit) as error:  # it may raise anything
            where = place_of(error, str(self.path)) or str(self.path)
            raise ConfigurationError(f"{KEY}: {where}: {type(error).__name__}: {error}") from error
        function = getattr(module, self.function, None)
        if not callable(function):
            raise ConfigurationError(
                f"{KEY}: {self.function} of {self.path} is a {type(function).__name__}, not a function"
            )
        return cast(Callable[..., Sequence[float]], function)


def _source(path: Path) -> bytes:
    if not path.is_file():
        raise ConfigurationError(f"{KEY}: there is no file {path}: a path counts from the folder that you start in")
    try:
        if (size := path.stat().st_size) > FILE_BYTES:
            raise ConfigurationError(f"{KEY}: {path} has {size} bytes, the limit is {FILE_BYTES}: write a plug-in")
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{KEY}: {path} cannot be read: {error.strerror}") from error


def _check_defined(path: Path, tree: ast.Module, function: str) -> None:
    """Raises unless the file binds the name at its top level, by ``def``, an assignment or an import."""
    bound: list[str] = []
    for statement in ast.walk(tree):
        if isinstance(statement, ast.FunctionDef):
            bound.append(statement.name)
        elif isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
            bound.append(statement.id)
        elif isinstance(statement, ast.alias):
            bound.append(statement.asname or statement.name)
        elif isinstance(statement, ast.AsyncFunctionDef) and statement.name == function:
            raise ConfigurationError(f"{KEY}: {path}, line {statement.lineno}: {function} is async: write a plain def")
    if function not in bound and "*" not in bound:
        nearest = difflib.get_close_matches(function, bound, n=1, cutoff=0.0)
        hint = f"the nearest name there is {nearest[0]!r}" if nearest else "it defines nothing"
        raise ConfigurationError(f"{KEY}: {path} has no function {function!r}: {hint}")


def place_of(error: BaseException, file: str | None = None) -> str | None:
    """Returns "FILE, line N" of the deepest frame in ``file``; without one, in the first file that is not the node's.

    None if no frame is: the error arose in the node's own code.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if file is None:
        file = next((name for name, _ in frames if not name.startswith(_OURS)), None)
    lines = [line for name, line in frames if name == file]
    return f"{file}, line {lines[-1]}" if lines else None
