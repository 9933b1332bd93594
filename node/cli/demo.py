"""``starling demo``: three unlike nodes learn from each other, or a family averages weights; what it gained them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BUILTIN = "builtin:wren,builtin:robin,builtin:finch"
BUILTIN_FAMILY = ",".join(["builtin:wren"] * 4)


def demo(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long the nodes learn together.")] = 3.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write every figure to FILE.")
    ] = None,
    family: Annotated[bool, typer.Option("--family", help="Four like nodes, which average weights too.")] = False,
    models: Annotated[
        str | None,
        typer.Option(metavar="MODEL,MODEL,…", help="One for each node, two or more.", show_default=BUILTIN),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and sampling.")] = 0,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of each task, for each measurement.")] = 200,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of every node's configuration.")
    ] = None,
) -> None:
    """Start three unlike nodes, or four like ones, on this machine, and compare learning together with learning alone.

    It takes a bit more than twice --minutes. Nothing of it stays, also when it is interrupted.
    """
    import msgspec

    from node.cli.options import assignments
    from node.demo.family import FamilyReport
    from node.demo.plan import DemoReport
    from node.demo.run import DemoSettings, demonstrate, describe_run
    from node.demo.show import DemoShow, show_report
    from protocol.errors import ConfigurationError

    models = models or (BUILTIN_FAMILY if family else BUILTIN)
    names = tuple(name.strip() for name in models.split(",") if name.strip())
    if len(names) < 2:
        raise ConfigurationError(f"--models {models} names {len(names)}: learning together takes two or more")
    if family != (len(set(names)) == 1):
        raise ConfigurationError(
            f"--models {models}: "
            + ("a family is one model, named once for each node" if family else "one model is a family: add --family")
        )
    if json_file is not None and not json_file.parent.is_dir():
        raise ConfigurationError(f"--json {json_file}: there is no directory {json_file.parent}")
    assignments(sets)  # a fault in these is told now, not after the first measurement
    flags = tuple(part for text in sets or [] for part in ("--set", text))
    settings = DemoSettings(names, minutes, prompts, seed, flags)
    report: DemoReport | FamilyReport
    if family:
        from node.demo.family_run import demonstrate_family
        from node.demo.family_show import show_family

        with DemoShow() as show:
            report = demonstrate_family(settings, show)
        show_family(report)
    else:
        with DemoShow() as show:
            results = demonstrate(settings, show)
        report = describe_run(settings, results)
        show_report(report)
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        typer.echo(f"Every figure: {json_file}")
