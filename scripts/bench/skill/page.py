"""The page of comparisons with others: a person's words, then sections that benchmarks write, each its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from scripts import REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "against.md"


def write_section(title: str, text: str, page: Path = PAGE) -> Path:
    """Puts ``text`` in place of the section with that title, or after the last one. Returns the page."""
    before, _, after = f"{page.read_text(encoding='utf-8')}\n".partition(f"\n## {title}\n")
    _, following, later = after.partition("\n## ")
    parts = [before.rstrip(), f"## {title}", text.strip()]
    if following:
        parts.append(f"## {later}".rstrip())
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page
