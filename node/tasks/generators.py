"""reasoning-gym's ``create_dataset``, which imports only the generators that may be a task.

``import reasoning_gym`` imports all of its hundred generators, and with them matplotlib and sympy: over a second of CPU
time and a hundred megabytes in every process that makes prompts or scores answers. Its packages are therefore imported
here without running their ``__init__``, and these modules are kept out of ``sys.modules``, so that other code that
imports reasoning-gym by its name gets the whole library.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

LIBRARY: Final = "reasoning_gym"
# Generators whose scoring was read and evaluates nothing → the library's package that contains each.
AUDITED: Final = {
    "base_conversion": "algorithmic",
    "basic_arithmetic": "arithmetic",
    "fraction_simplification": "arithmetic",
    "number_sorting": "algorithmic",
    "rotate_matrix": "algorithmic",
    "spell_backward": "algorithmic",
}
_lock = threading.Lock()
_ours: dict[str, ModuleType] = {}  # the library's modules imported here, by full name


def create_dataset(generator: str, **config: Any) -> Any:
    """Returns the data set of one of ``AUDITED``. The first call imports them all."""
    with _lock, _library_is_ours():
        if not _ours:
            _import()
        return sys.modules[f"{LIBRARY}.factory"].create_dataset(generator, **config)  # may read the library's files


@contextmanager
def _library_is_ours() -> Iterator[None]:
    """Within the context ``sys.modules`` has our modules of the library; outside it has those of other code."""
    others = _taken_out()
    sys.modules.update(_ours)
    try:
        yield
    finally:
        _ours.update(_taken_out())
        sys.modules.update(others)


def _taken_out() -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == LIBRARY}


def _import() -> None:
    for package in (LIBRARY, *(f"{LIBRARY}.{part}" for part in sorted(set(AUDITED.values())))):
        spec = importlib.util.find_spec(package)
        assert spec is not None
        sys.modules[package] = importlib.util.module_from_spec(spec)
    for generator, part in AUDITED.items():
        importlib.import_module(f"{LIBRARY}.{part}.{generator}")
