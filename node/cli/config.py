"""``starling config show|validate``: the resolved configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from node.cli.options import HomeOption, JsonOption, SetOption, assignments

if TYPE_CHECKING:
    from pathlib import Path

    from node.configuration import Config

app = typer.Typer(help="Show or check the configuration.", no_args_is_help=True)


@app.command()
def show(home: HomeOption = None, sets: SetOption = None, as_json: JsonOption = False) -> None:
    """Print the configuration that a start would use, as TOML: flags over environment over node.toml over defaults."""
    config = _load(home, sets)
    typer.echo(config.model_dump_json(indent=2) if as_json else as_toml(config.model_dump(mode="json")))


@app.command()
def validate(home: HomeOption = None, sets: SetOption = None, as_json: JsonOption = False) -> None:
    """Check the configuration; exit code 78 and the reason if it cannot be."""
    import json

    from node.home import home_at

    _load(home, sets)
    path = home_at(home, os.environ).path / "node.toml"
    found = str(path) if path.exists() else None
    if as_json:
        typer.echo(json.dumps({"valid": True, "file": found}))
        return
    typer.echo(f"valid: {found}" if found else f"valid; there is no {path}, so defaults apply")


def as_toml(tree: dict[str, object]) -> str:
    """A tree of sections as TOML. JSON's strings, numbers, booleans and lists of strings are TOML's too."""
    return "\n".join(_toml_lines(tree))


def _toml_lines(section: dict[str, object], prefix: str = "") -> list[str]:
    """A section's own keys come before its sub-sections, as TOML demands."""
    import json

    lines = [f"{key} = {json.dumps(value)}" for key, value in section.items() if not isinstance(value, dict)]
    for name, inner in section.items():
        if isinstance(inner, dict):
            lines += ["", f"[{prefix}{name}]", *_toml_lines(inner, f"{prefix}{name}.")]
    return lines


def _load(home: Path | None, sets: list[str] | None) -> Config:
    from node.configuration import load_config
    from node.home import home_at

    return load_config(home_at(home, os.environ).path, os.environ, assignments(sets))
