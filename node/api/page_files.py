"""The files of the web page and of reports."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ASSETS = Path(__file__).with_name("assets")
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', flags=re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?function|const) ([\w$]+)", flags=re.MULTILINE)


@cache
def asset_text(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@cache
def bundled_script(entry: str) -> str:
    """Returns the module ``entry`` and all that it imports as one script, for a page that loads no file. Each module
    keeps its names to itself."""
    bundled: dict[str, str] = {}
    _bundle(entry, bundled)
    return "\n".join(["const modules = {};", *bundled.values()])


def _bundle(name: str, bundled: dict[str, str]) -> None:
    """Adds the module after those that it imports."""
    text = asset_text(f"{name}.js")
    for _, imported in IMPORT.findall(text):
        if imported not in bundled:
            _bundle(imported, bundled)
    exported = ", ".join(found for _, found in EXPORT.findall(text))
    body = EXPORT.sub(r"\1 \2", IMPORT.sub(r"const {\1} = modules.\2;", text))
    bundled[name] = f"modules.{name} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"
