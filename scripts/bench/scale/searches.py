"""Searches for a partner to average weights with: which of them count, and why others found none."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_PARTNERS_WORDS: Final = re.compile(r"\b[A-Za-z0-9]{40,}\b")  # a peer's id within a reason


@dataclass(frozen=True, slots=True)
class Search:
    """``is_calm``: no partition from its begin to its end. ``candidates`` are the peers it could still ask then."""

    began_seconds: float
    lasted_seconds: float
    is_calm: bool
    is_committed: bool
    because: str
    candidates: int


def counted(searches: Iterable[Search], *, from_seconds: float, to_seconds: float) -> list[Search]:
    """Returns the calm searches that began within this time.

    A search is counted by when it began, never by when it ended: of those that end within a short time, the failures
    began long before, and of those that began within it the failures have not ended. ``to_seconds`` must lie by the
    longest search before the last one was noted.
    """
    return [search for search in searches if search.is_calm and from_seconds <= search.began_seconds < to_seconds]


def committed_share(searches: Sequence[Search]) -> float:
    return sum(search.is_committed for search in searches) / len(searches) if searches else 0.0


def reasons(searches: Iterable[Search]) -> Counter[str]:
    """Returns how many proposals of the searches that found nobody ended for which reason."""
    found: Counter[str] = Counter()
    for search in searches:
        for part in [] if search.is_committed else search.because.split(", "):
            count, sign, why = part.partition(" × ")
            found[_PARTNERS_WORDS.sub("a peer", why if sign else part)] += int(count) if sign else 1
    return found
