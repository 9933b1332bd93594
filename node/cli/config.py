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
    """A tree of two levels as TOML. JSON's strings, numbers, booleans and lists of strings are TOML's too."""
    import json

    top = [f"{key} = {json.dumps(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for name, section in tree.items():
        if isinstance(section, dict):
            top += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    return "\n".join(top)


def _load(home: Path | None, sets: list[str] | None) -> Config:
    from node.configuration import load_config
    from node.home import home_at

    return load_config(home_at(home, os.environ).path, os.environ, assignments(sets))
