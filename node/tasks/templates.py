"""Compact prompts: ``str.format`` over a generator's metadata, with lists joined by the separators named in the format.

``{matrix: /}`` joins the innermost lists by a space and the next level by a slash; ``{numbers:}`` joins by nothing. A
whole number is written without decimals, so that ``7.0`` costs one character. Everything else is as in ``str.format``:
``{direction:.3}`` takes three letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class _Joined:
    """A list whose format specification is its separators, innermost first."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __format__(self, separators: str) -> str:
        nested = any(isinstance(item, _Joined) for item in self._items)
        inner, own = (separators[:-1], separators[-1:]) if nested else (separators, separators)
        return own.join(format(item, inner if isinstance(item, _Joined) else "") for item in self._items)


def _compact(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return _Joined([_compact(item) for item in value])
    return str(value).removesuffix(".0")


def render(template: str, metadata: Mapping[str, Any]) -> str:
    """Returns the template filled with ``metadata``. Raises KeyError for a field that ``metadata`` lacks."""
    return template.format_map({name: _compact(value) for name, value in metadata.items()})
