"""Stands in for pycosat where a starling node is installed. It can be imported, and solves nothing.

reasoning-gym requires pycosat for one generator, ``zebra_puzzles``, which is no task of starling's. pycosat exists only
as C source, so that it would be the one reason why an installation needs a compiler. To use that generator, install the
real one in its place: ``pip install --force-reinstall --no-deps pycosat==0.6.6``, with a C compiler.
"""

from __future__ import annotations

from typing import NoReturn

__version__ = "0.6.6+stand.in"


class NoSolver(ImportError):
    """The real pycosat is not installed."""


def solve(*arguments: object, **options: object) -> NoReturn:
    """Raises ``NoSolver``."""
    raise NoSolver(
        "pycosat is not installed; starling installs a stand-in that solves nothing, because the real one needs a C "
        "compiler. To get it: pip install --force-reinstall --no-deps pycosat==0.6.6"
    )


itersolve = solve
