"""The page of comparisons with others: a person's words, then sections that benchmarks write, each its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from scripts import REPOSITORY

PAGE: Final = REPOSITORY / "docs" / "against.md"


def write_results(title: str, text: str, name: str, picture: str, runs: object) -> None:
    """Writes a section, and beside the page ``against-NAME.svg``, the picture of its curves, and its runs as JSON."""
    PAGE.with_name(f"against-{name}.svg").write_text(picture, encoding="utf-8")
    PAGE.with_name(f"against-{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(runs), indent=1) + b"\n")
    write_section(title, text)


def write_section(title: str, text: str, page: Path = PAGE) -> Path:
    """Puts ``text`` in place of the section with that title, or after the last one. Returns the page."""
    before, _, after = f"{page.read_text(encoding='utf-8')}\n".partition(f"\n## {title}\n")
    _, following, later = after.partition("\n## ")
    parts = [before.rstrip(), f"## {title}", text.strip()]
    if following:
        parts.append(f"## {later}".rstrip())
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page
