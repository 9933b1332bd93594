"""``starling config show|validate``: the settings of a running node, or those of a start; and whether it can be."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from node.cli.options import HomeOption, JsonOption, SetOption, assignments, home_of, print_answer, shown_width

app = typer.Typer(help="Show or check the configuration.", no_args_is_help=True)


@app.command("show")
def show_config(
    home: HomeOption = None,
    sets: SetOption = None,
    start: Annotated[
        bool, typer.Option("--start", help="What a start from this shell would use, also while a node runs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the settings of the node that runs in --home, or else those that a
    start would use: flags override the environment, which overrides node.toml,
    which overrides what the directory's run was trained with, which overrides
    the defaults. The first line, with --json on standard error, says which.

    Examples:

    starling config show

    starling config show --set learner.own_groups=16
    """
    from node.doctor.settings_in_use import settings_of

    shown = settings_of(home_of(home), os.environ, assignments(sets), of_start=start)
    if as_json:
        import json

        typer.echo(f"starling: {shown.origin}", err=True)
        typer.echo(json.dumps(shown.config, indent=2))
        return
    typer.echo("\n".join([*(f"# {line}" for line in shown.lines()), "", as_toml(dict(shown.config))]))


@app.command()
def validate(home: HomeOption = None, sets: SetOption = None, as_json: JsonOption = False) -> None:
    """Check everything that a start needs: keys and values, addresses, names, the
    model, the data files, the directory, and whether the ports are free.

    Everything that is wrong is printed at once, with what to write instead, and
    the exit code is 78, or 69 if only a port is taken.

    Example: starling config validate --home /data/node
    """
    from node.cli.wording import finding_lines
    from node.doctor.before_start import check_start
    from node.doctor.findings import report_of

    where = home_of(home)
    checked = check_start(where, os.environ, assignments(sets))
    path = where.path / "node.toml"
    found = str(path) if path.exists() else None
    out = sys.stderr if checked.errors and not as_json else sys.stdout
    lines = finding_lines(report_of(checked.findings), shown_width(out)) if checked.findings else []
    if not checked.errors:
        lines.append(f"valid: {found}" if found else f"valid: there is no {path}, so the defaults apply")
    answer = {"valid": not checked.errors, "file": found, "findings": checked.findings}
    print_answer(answer, as_json, lambda: lines, out)
    if checked.errors:
        raise typer.Exit(checked.exit_code)


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
