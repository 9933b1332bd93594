"""docs/papers.md: its settings exist and are accepted, and its column of defaults says what the defaults are."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from node.configuration import Config
from node.configuration.sources import known_keys
from scripts import REPOSITORY

PAGE = (REPOSITORY / "docs" / "papers.md").read_text(encoding="utf-8")
SETTING = re.compile(r"`([a-z_.]+) = ([^`]+)`")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.partition("## Tried and rejected")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| mechanism")
]


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = key.split(".")
        here = tree
        for section in sections:
            here = here.setdefault(section, {})
        here[last] = value
    return tree


def value_of(config: Config, key: str) -> object:
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("row", ROWS, ids=[row[0][:40] for row in ROWS])
def test_settings_of_a_mechanism_are_accepted_and_are_the_defaults_where_the_row_says_so(row: list[str]) -> None:
    _, settings_cell, equation, _, default = row
    settings = {key: tomllib.loads(f"value = {value}")["value"] for key, value in SETTING.findall(settings_cell)}
    assert settings or settings_cell == "–"
    assert settings.keys() <= set(known_keys())
    assert "](" in equation
    config = Config.model_validate(nested(settings))
    assert default in ("yes", "no")
    if settings:
        are_defaults = all(value_of(config, key) == value_of(Config(), key) for key in settings)
        assert are_defaults == (default == "yes")


def test_every_paper_that_the_code_names_is_on_the_page() -> None:
    named = set()
    for folder in ("node", "swarm", "protocol"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8").replace("\n", " ")
            named |= set(re.findall(r"arXiv[:\s]\s*(\d{4}\.\d{4,5})", text))
    assert named, "the pattern finds none"
    assert named - set(re.findall(r"\d{4}\.\d{4,5}", PAGE)) <= {"2411.09009"}  # a comparison in a docstring
