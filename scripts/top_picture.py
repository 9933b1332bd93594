"""Draws what starling top shows: python -m scripts.top_picture docs/top.svg [--home DIRECTORY] [--view node]

The node is the one that runs in ``--home``, otherwise a simulated one. The picture loads no font from a server.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from textual.pilot import Pilot

from node.api.event_feed import EventFeed
from node.api.node_client import ask_status
from node.api.server import served
from node.home import Home
from node.top.terminal_app import Top
from node.top.watch import Seen, View, Watch
from scripts.bench.common.simulated_node import SimulatedNode

WAIT_SECONDS = 20.0  # for the node's answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--view", type=View, default=View.NODE, choices=list(View))
    parser.add_argument("--size", default="80x24", help="columns x lines")
    parser.add_argument("--light", action="store_true", help="as a light terminal shows it")
    parser.add_argument("--key", action="append", default=[], help="pressed before the picture is taken")
    arguments = parser.parse_args()
    columns, _, lines = arguments.size.partition("x")
    size = int(columns), int(lines)
    theme = DEFAULT_TERMINAL_THEME if arguments.light else SVG_EXPORT_THEME
    picture = asyncio.run(top_as_svg(arguments.home, arguments.view, size, arguments.key, theme))
    arguments.picture.write_text(picture, encoding="utf-8")


async def top_as_svg(
    home: Path | None, view: View, size: tuple[int, int], keys: list[str], theme: TerminalTheme = SVG_EXPORT_THEME
) -> str:
    """Returns the interface as SVG."""
    async with AsyncExitStack() as stack:
        if home is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="st-")))
            node = SimulatedNode(time.time())
            await stack.enter_async_context(served(node, EventFeed(), home / "supervisor.sock"))
        chosen = Home(home)
        watch = Watch(chosen, Seen(await asyncio.to_thread(ask_status, chosen), time.time()), time.time)
        pilot = await stack.enter_async_context(Top(watch).run_test(size=size))
        await pilot.press(str(list(View).index(view) + 1))
        await until_answered(pilot, watch, view)
        await pilot.press(*keys)
        await pilot.pause(0.3)
        return svg(pilot, theme)


async def until_answered(pilot: Pilot[None], watch: Watch, view: View) -> None:
    """Returns once the node has answered with what ``view`` shows, and it is drawn. Ends the program if it does not."""
    part = "history" if view is View.NODE else view.value
    deadline_seconds = time.monotonic() + WAIT_SECONDS
    while getattr(watch.seen, part) is None:
        if time.monotonic() > deadline_seconds:
            raise SystemExit(f"the node did not answer with its {part} in {WAIT_SECONDS:g} s")
        await pilot.pause(0.05)
    await pilot.pause(0.3)


def svg(pilot: Pilot[None], theme: TerminalTheme) -> str:
    """Returns what ``App.export_screenshot`` does, in the colours of a terminal, and without addresses of fonts."""
    width, height = pilot.app.size
    console = Console(
        width=width, height=height, file=io.StringIO(), force_terminal=True, color_system="truecolor", record=True
    )
    console.print(pilot.app.screen._compositor.render_update(full=True, screen_stack=pilot.app._background_screens))
    picture = console.export_svg(title="starling top", theme=theme)
    return re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)


if __name__ == "__main__":
    main()
