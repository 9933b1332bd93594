"""Makes the README's pictures of a node among three, its web page and its starling top, and of a demonstration:

    python -m scripts.pictures docs [--minutes 3]
    python -m scripts.pictures docs --demo DEMO.json      ``starling demo --json DEMO.json`` writes it

Three nodes with the three built-in models train on this machine for ``--minutes``, the first of them alone for a third
of that time. Then the page of the first, without what stands behind clicks, is drawn in headless Chromium (Debian:
chromium, chromium-driver) as page.png, its terminal interface as top.svg, and all nodes are ended. No picture loads a
font from a server.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text
from textual.pilot import Pilot

from node.api.node_client import ask_status
from node.demo.plan import DemoReport
from node.demo.show import conclusions, reward_table
from node.home import Home
from node.top.terminal_app import Top
from node.top.watch import Seen, Watch
from scripts.bench.common.browser import opened_browser, screenshot, set_screen
from scripts.bench.common.processes import free_port, started_node

MODELS = ("wren", "robin", "finch")
WIDTH = 1200
ALONE_SHARE = 1 / 3  # of the time: what the first node can do before others come
BELOW_PX = 16
SHOWN = "return Math.ceil(document.querySelector('.pair').getBoundingClientRect().bottom + scrollY)"
TERMINAL = 80, 24  # columns and lines
DEMO_COLUMNS = 76
DRAWN_SECONDS = 8.0  # until the page has all its parts
WAIT_SECONDS = 20.0  # for the node's answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--demo", type=Path, metavar="DEMO.json", help="draw this demonstration instead")
    arguments = parser.parse_args()
    if arguments.demo:
        (arguments.folder / "demo.svg").write_text(demo_as_svg(arguments.demo), encoding="utf-8")
        return
    port = free_port()
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="st-") as folder:
        try:
            address = None
            for model in MODELS:
                node = start(Path(folder) / model, model, port if address is None else 0, address)
                started.append(node)
                if address is None:
                    address = first_address(node)
                    time.sleep(60 * arguments.minutes * ALONE_SHARE)
            time.sleep(60 * arguments.minutes * (1 - ALONE_SHARE))
            (arguments.folder / "page.png").write_bytes(page_picture(port))
            top = asyncio.run(top_as_svg(Home(Path(folder) / MODELS[0])))
            (arguments.folder / "top.svg").write_text(top, encoding="utf-8")
        finally:
            for node in started:
                node.terminate()
            for node in started:
                node.wait()


def start(home: Path, model: str, port: int, peer: str | None) -> subprocess.Popen[bytes]:
    flags = ["--name", model, "--model", f"builtin:{model}", *([] if peer is None else ["--peer", peer])]
    flags += ["--set", f"api.port={port}", "--set", "machine.max_threads=1"]
    output = subprocess.PIPE if peer is None else subprocess.DEVNULL
    return started_node(home, *flags, stdout=output, stderr=subprocess.DEVNULL)


def first_address(node: subprocess.Popen[bytes]) -> str:
    assert node.stdout is not None
    for line in node.stdout:
        event = json.loads(line)
        if event["event"] == "node":
            # Its further output is discarded, so that the node never waits for a reader.
            subprocess.Popen(["cat"], stdin=node.stdout, stdout=subprocess.DEVNULL)
            return str(event["addresses"][0])
    raise SystemExit("the first node ended before it listened")


def page_picture(port: int) -> bytes:
    browser = opened_browser()
    try:
        set_screen(browser, WIDTH, "light")
        browser.get(f"http://127.0.0.1:{port}/")
        time.sleep(DRAWN_SECONDS)
        return screenshot(browser, WIDTH, browser.execute_script(SHOWN) + BELOW_PX)
    finally:
        browser.quit()


async def top_as_svg(home: Home) -> str:
    """Returns what starling top shows first of the node that runs in ``home``."""
    watch = Watch(home, Seen(await asyncio.to_thread(ask_status, home), time.time()), time.time)
    async with Top(watch).run_test(size=TERMINAL) as pilot:
        deadline_seconds = time.monotonic() + WAIT_SECONDS
        while watch.seen.gains is None:
            if time.monotonic() > deadline_seconds:
                raise SystemExit(f"the node did not answer with what it learnt in {WAIT_SECONDS:g} s")
            await pilot.pause(0.05)
        await pilot.pause(0.3)
        return terminal_svg(pilot)


def terminal_svg(pilot: Pilot[None]) -> str:
    """Returns what ``App.export_screenshot`` does, in the colours of a terminal."""
    width, height = pilot.app.size
    console = Console(
        width=width, height=height, file=io.StringIO(), force_terminal=True, color_system="truecolor", record=True
    )
    console.print(pilot.app.screen._compositor.render_update(full=True, screen_stack=pilot.app._background_screens))
    return without_fonts(console.export_svg(title="starling top", theme=SVG_EXPORT_THEME))


def demo_as_svg(written: Path) -> str:
    report = msgspec.json.decode(written.read_bytes(), type=DemoReport)
    console = Console(record=True, width=DEMO_COLUMNS, file=io.StringIO(), highlight=False, force_terminal=True)
    console.print(Text(f"$ starling demo --minutes {report.minutes:g}", style="bold"))
    for result in report.models:
        console.print(reward_table(result))
    for line in conclusions(report):
        console.print(Text(line))
    return without_fonts(console.export_svg(title="starling demo"))


def without_fonts(picture: str) -> str:
    return re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)


if __name__ == "__main__":
    main()
