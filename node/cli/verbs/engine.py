"""``starling engine install|list|remove``: engines that need an environment of their own."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

from node.cli.options import JsonOption, print_answer

app = typer.Typer(help="Install an engine in an environment of its own, list what there is, or remove one.")
EngineArgument = Annotated[Literal["vllm"], typer.Argument(metavar="ENGINE", help="vllm")]


@app.command("install")
def install_engine(
    engine: EngineArgument,
    build: Annotated[
        Literal["cuda", "cpu"] | None,
        typer.Option(help="Default: cuda where there is an NVIDIA GPU, else cpu."),
    ] = None,
) -> None:
    """Install vLLM beside starling, for all nodes of this user. 10 GiB for a GPU, 3.5 GiB for a processor.

    Ctrl-C leaves nothing that counts as installed; the next run starts from the beginning.
    Afterwards: starling up --set engine.backend=vllm.

    Example: starling engine install vllm
    """
    from node.doctor.gpu_devices import has_nvidia
    from node.engines.vllm_backend.environment import BUILDS, environment_at, install

    chosen = build or ("cuda" if has_nvidia() else "cpu")
    environment = environment_at(os.environ)
    on_terminal = sys.stderr.isatty()
    shown = ""

    def say(line: str) -> None:
        nonlocal shown
        if on_terminal:
            typer.echo(f"\r\x1b[K{line}", nl=False, err=True)
        elif (step := line.partition(":")[0]) != shown:
            shown = step
            typer.echo(step, err=True)

    try:
        installed = install(environment, BUILDS[chosen], say)
    finally:
        if on_terminal:
            typer.echo("", err=True)
    typer.echo(f"vLLM {installed.vllm} ({installed.build}) is in {environment.folder}")


@app.command("list")
def list_engines(as_json: JsonOption = False) -> None:
    """Show which engines there are, and where.

    Example: starling engine list --json
    """
    from node.engines.vllm_backend.environment import environment_at

    folder, found = environment_at(os.environ).folder, environment_at(os.environ).installed()
    vllm = f"{found.vllm} ({found.build}) in {folder}" if found else "not installed: starling engine install vllm"
    torch = "comes with starling; in the learner's process, or in one of its own (engine.backend)"
    answer = {"torch": True, "vllm": found, "folder": str(folder)}
    print_answer(answer, as_json, lambda: [f"torch   {torch}", f"vllm    {vllm}"])


@app.command("remove")
def remove_engine(engine: EngineArgument) -> None:
    """Delete an engine's environment. A node that uses it then generates with the embedded engine.

    Example: starling engine remove vllm
    """
    from node.engines.vllm_backend.environment import environment_at, remove

    environment = environment_at(os.environ)
    was_there = remove(environment)
    typer.echo(f"removed {environment.folder}" if was_there else f"there is nothing in {environment.folder}")
