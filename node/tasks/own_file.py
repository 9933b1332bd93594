"""What a Python file of the node's owner defines, named as ``FILE.py:NAME`` in a setting.

``OwnFile.read`` checks the file and runs none of it: it must be Python, and bind the name at its top level. ``load``
runs it. A file comes from this machine's disk and from nowhere else: no peer and no model names one, only the owner's
settings. Equal content and an equal name give equal ``shape``, wherever the file lies; what it imports is not part of
that.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
import traceback
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import CodeType, ModuleType
from typing import ClassVar, Final, Self

import node
from protocol.errors import ConfigurationError

FILE_BYTES: Final = 1 << 20
_NAMED: Final = re.compile(r"(?P<path>.+\.py):(?P<name>[^:/\\]*)")
_OURS = str(Path(node.__file__).parent)


def is_own_file(text: str) -> bool:
    """Returns whether a setting's value names a file rather than what is built in or installed."""
    return _NAMED.fullmatch(text) is not None or text.endswith(".py")


@dataclass(frozen=True)
class OwnFile:
    """A file that is compiled, and run for the first time when ``load`` is called. A subclass says which setting names
    it, and what that wants of it."""

    KEY: ClassVar[str]
    WANTED: ClassVar[str]

    path: Path
    name: str
    digest: str  # SHA-256 of the file
    code: CodeType = field(repr=False)

    @classmethod
    def read(cls, text: str) -> Self:
        """Raises ``ConfigurationError``, with the line where there is one, for a file that cannot be used."""
        named = _NAMED.fullmatch(text)
        if named is None or not named["name"]:
            raise ConfigurationError(
                f'{cls.KEY} = "{text}" names no {cls.WANTED}: write "FILE.py:{cls.WANTED.upper()}"'
            )
        path = Path(named["path"]).expanduser()
        source = _source(cls.KEY, path)
        try:
            tree = ast.parse(source, str(path))
            code = compile(tree, str(path), "exec")
        except SyntaxError as error:
            raise ConfigurationError(f"{cls.KEY}: {path}, line {error.lineno}: {error.msg}") from error
        except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nested too deeply
            raise ConfigurationError(f"{cls.KEY}: {path} is not Python: {error}") from error
        _check_defined(cls, path, tree, named["name"])
        return cls(path, named["name"], hashlib.sha256(source).hexdigest(), code)

    @property
    def shape(self) -> dict[str, str]:
        """What of the file shapes rewards and prompts, for the hash of a task's configuration."""
        return {"function": self.name, "sha256": self.digest}

    @property
    def label(self) -> str:
        """For people, without the folder."""
        return f"{self.path.name}:{self.name}"

    def load(self) -> object:
        """Returns what the file binds to the name. Raises ``ConfigurationError``, with the line, for whatever the file
        raises."""
        return self._loaded

    @cached_property
    def _loaded(self) -> object:
        module = ModuleType(self.path.stem)
        module.__file__ = str(self.path)
        try:
            exec(self.code, vars(module))  # the owner's own code, as read from the owner's disk
        except (Exception, SystemExit) as error:  # it may raise anything
            where = place_of(error, str(self.path)) or str(self.path)
            raise ConfigurationError(f"{self.KEY}: {where}: {type(error).__name__}: {error}") from error
        return getattr(module, self.name, None)


def _source(key: str, path: Path) -> bytes:
    if not path.is_file():
        raise ConfigurationError(f"{key}: there is no file {path}: a path counts from the folder that you start in")
    try:
        if (size := path.stat().st_size) > FILE_BYTES:
            raise ConfigurationError(f"{key}: {path} has {size} bytes, the limit is {FILE_BYTES}: write a plug-in")
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{key}: {path} cannot be read: {error.strerror}") from error


def _check_defined(file: type[OwnFile], path: Path, tree: ast.Module, wanted: str) -> None:
    """Raises unless the file binds the name at its top level, by ``def``, ``class``, an assignment or an import."""
    bound: list[str] = []
    for statement in ast.walk(tree):
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            bound.append(statement.name)
        elif isinstance(statement, ast.Name) and isinstance(statement.ctx, ast.Store):
            bound.append(statement.id)
        elif isinstance(statement, ast.alias):
            bound.append(statement.asname or statement.name)
        elif isinstance(statement, ast.AsyncFunctionDef) and statement.name == wanted:
            raise ConfigurationError(
                f"{file.KEY}: {path}, line {statement.lineno}: {wanted} is async: write a plain def"
            )
    if wanted not in bound and "*" not in bound:
        nearest = difflib.get_close_matches(wanted, bound, n=1, cutoff=0.0)
        hint = f"the nearest name there is {nearest[0]!r}" if nearest else "it defines nothing"
        raise ConfigurationError(f"{file.KEY}: {path} has no {file.WANTED} {wanted!r}: {hint}")


def place_of(error: BaseException, file: str | None = None) -> str | None:
    """Returns "FILE, line N" of the deepest frame in ``file``; without one, in the first file that is not the node's.

    None if no frame is: the error arose in the node's own code.
    """
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if file is None:
        file = next((name for name, _ in frames if not name.startswith(_OURS)), None)
    lines = [line for name, line in frames if name == file]
    return f"{file}, line {lines[-1]}" if lines else None
