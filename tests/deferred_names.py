"""What of deferred packages a process has imported after all, and what it would catch by a name that is deferred."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path

from swarm import deferred_imports


def imported_after_all(packages: Iterable[str]) -> list[str]:
    """Returns those of ``packages`` that are imported. Raises ``AssertionError`` for a module with an ``except`` clause
    that has a deferred name: it catches nothing."""
    for module in list(sys.modules.values()):
        names = {name for name, value in vars(module).items() if isinstance(value, deferred_imports._StandIn)}
        tree = ast.parse(Path(str(module.__file__)).read_text()) if names else ast.Module([], [])
        handled = [
            each.type for each in ast.walk(tree) if isinstance(each, ast.ExceptHandler) and each.type is not None
        ]
        for classes in handled:
            caught = {each.id for each in ast.walk(classes) if isinstance(each, ast.Name)}
            assert not caught & names, f"{module.__name__} catches {caught & names}, which is deferred"
    return [package for package in packages if package in sys.modules]
