"""``starling demo``: three different nodes learn from each other, or a family averages weights, and what they gain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protocol.errors import ConfigurationError

BUILTIN = "builtin:wren,builtin:robin,builtin:finch"
BUILTIN_FAMILY = ",".join(["builtin:wren"] * 4)


def demo(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long the nodes learn together.")] = 3.0,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="How many tokens each generates meanwhile, in place of --minutes.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write every figure to FILE.")
    ] = None,
    family: Annotated[
        bool, typer.Option("--family", help="Four nodes of one model, which also average weights.")
    ] = False,
    models: Annotated[
        str | None,
        typer.Option(metavar="MODEL,MODEL,…", help="One model for each node, two or more.", show_default=BUILTIN),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of prompts and sampling.")] = 0,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of each task for each measurement.")] = 200,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a key of every node's configuration. Repeatable."),
    ] = None,
) -> None:
    """Start three different nodes, or four of one model, on this machine, and compare learning together with learning
    alone.

    It takes twice --minutes, and the time to load and to measure the models three times. It begins with a plan that
    says how long each part takes, and corrects it once the first answers show how fast this machine is. It leaves
    nothing behind, even when it is interrupted.

    Example: starling demo --minutes 3 --json demo.json
    """
    import msgspec

    from node.cli.options import assignments
    from node.demo.family import FamilyReport
    from node.demo.plan import DemoReport
    from node.demo.run import DemoSettings, demonstrate
    from node.demo.show import DemoDisplay, show_report

    names = _named_models(models or (BUILTIN_FAMILY if family else BUILTIN), family=family)
    if json_file is not None and not json_file.parent.is_dir():
        raise ConfigurationError(f"--json {json_file}: the directory {json_file.parent} does not exist: make it first")
    assignments(sets)  # reports an error in them now, not after the first measurement
    flags = tuple(part for text in sets or [] for part in ("--set", text))
    settings = DemoSettings(names, None if tokens else minutes, prompts, seed, flags, tokens)
    report: DemoReport | FamilyReport
    if family:
        from node.demo.family_run import demonstrate_family
        from node.demo.family_show import show_family

        with DemoDisplay() as display:
            report = demonstrate_family(settings, display)
        show_family(report)
    else:
        with DemoDisplay() as display:
            report = demonstrate(settings, display)
        show_report(report)
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        typer.echo(f"All figures: {json_file}")


def _named_models(models: str, *, family: bool) -> tuple[str, ...]:
    """Returns the model of each node. Raises ``ConfigurationError`` where these are no such demonstration."""

    names = tuple(name.strip() for name in models.split(",") if name.strip())
    if len(names) < 2:
        raise ConfigurationError(f"--models {models} names {len(names)} model: learning together needs two or more")
    if family != (len(set(names)) == 1):
        remedy = (
            "a family has one model: name the same model once for each node, or leave out --family"
            if family
            else "several nodes of one model are a family: add --family"
        )
        raise ConfigurationError(f"--models {models}: {remedy}")
    return names
