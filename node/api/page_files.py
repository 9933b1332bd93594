"""Where the files of the web page and of reports lie, plotly's JavaScript out of its Python package among them."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from protocol.errors import ConfigurationError

ASSETS = Path(__file__).with_name("assets")
PLOTLY = "plotly.min.js"


@cache
def asset_text(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def plotly_path() -> Path:
    """Found without importing plotly, which would take a second. Raises ``ConfigurationError``."""
    spec = find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        found = Path(folder) / "package_data" / PLOTLY
        if found.is_file():
            return found
    raise ConfigurationError("plotly is not installed, and charts are drawn with it: pip install plotly")
