"""Every page of the documentation can be found from its index, and every link in it leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from scripts import REPOSITORY
from scripts.bench.stages import expected

DOCS: Final = REPOSITORY / "docs"
PAGES: Final = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
MOST_WORDS: Final = 750  # of the README


def anchors(page: Path) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_leads_to_a_file_and_to_a_heading_of_it() -> None:
    for page in PAGES:
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" in link or link.startswith("mailto:"):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), (page.name, link)
            assert not anchor or anchor in anchors(target), (page.name, link)


def test_every_page_is_in_the_index_once() -> None:
    linked = LINK.findall((DOCS / "README.md").read_text(encoding="utf-8"))
    for page in DOCS.glob("*.md"):
        assert linked.count(page.name) == (page.name != "README.md"), page.name
    experiments = LINK.findall((DOCS / "experiments" / "README.md").read_text(encoding="utf-8"))
    for page in (DOCS / "experiments").glob("*.md"):
        if page.name != "README.md" and not page.name.endswith(".notes.md"):
            assert page.name in experiments, page.name


def test_the_readme_is_read_in_four_minutes() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").split()) <= MOST_WORDS


def test_arithmetic_of_stages_is_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    expected.main([])
    page = (DOCS / "stages.md").read_text(encoding="utf-8")
    assert all(each in page for each in capsys.readouterr().out.strip().split("\n\n"))
