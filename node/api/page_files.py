"""The files of the web page and of reports."""

from __future__ import annotations

from functools import cache
from pathlib import Path

ASSETS = Path(__file__).with_name("assets")


@cache
def asset_text(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
