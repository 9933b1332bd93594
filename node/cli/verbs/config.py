"""``starling config show|validate``: the resolved configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from node.cli.options import HomeOption, JsonOption, SetOption, assignments

if TYPE_CHECKING:
    from node.configuration import Config

app = typer.Typer(help="Show or check the configuration.", no_args_is_help=True)


@app.command("show")
def show_config(home: HomeOption = None, sets: SetOption = None, as_json: JsonOption = False) -> None:
    """Print the configuration that a start would use, as TOML: flags override the environment, which overrides
    node.toml, which overrides the defaults.

    Example: starling config show --set learner.own_groups=16
    """
    config = _load(home, sets)
    typer.echo(config.model_dump_json(indent=2) if as_json else as_toml(config.model_dump(mode="json")))


@app.command()
def validate(home: HomeOption = None, sets: SetOption = None, as_json: JsonOption = False) -> None:
    """Check the configuration. If it is invalid, print the reason and exit with code 78.

    Example: starling config validate --home /data/node
    """
    import json

    from node.home import home_at

    _load(home, sets)
    path = home_at(home, os.environ).path / "node.toml"
    found = str(path) if path.exists() else None
    if as_json:
        typer.echo(json.dumps({"valid": True, "file": found}))
        return
    typer.echo(f"valid: {found}" if found else f"valid: there is no {path}, so the defaults apply")


def as_toml(tree: dict[str, object]) -> str:
    """Returns a tree of sections as TOML. JSON's strings, numbers, booleans and lists of strings are valid TOML."""
    return "\n".join(_toml_lines(tree))


def _toml_lines(section: dict[str, object], prefix: str = "") -> list[str]:
    """Returns a section's own keys before its sub-sections, as TOML demands."""
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
