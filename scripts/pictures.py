"""Makes the README's pictures of a node among three, its web page and its starling top:

    python -m scripts.pictures docs [--minutes 3] [--dark]

Three nodes with the three built-in models train on this machine for ``--minutes``, the first of them alone for a third
of that time. Then the page of the first, without what stands behind clicks, is drawn in headless Chromium (Debian:
chromium, chromium-driver) as page.png, its terminal interface as top.svg, and all nodes are ended.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import subprocess
import tempfile
import time
from pathlib import Path

from node.top.watch import View
from scripts.bench.common.browser import opened_browser, set_screen
from scripts.bench.common.processes import free_port, started_node
from scripts.top_picture import top_as_svg

MODELS = ("wren", "robin", "finch")
WIDTH = 1200
ALONE_SHARE = 1 / 3  # of the time: what the first node can do before others come
BELOW_PX = 16
SHOWN = "return Math.ceil(document.querySelector('.pair').getBoundingClientRect().bottom + scrollY)"
TERMINAL = 80, 24  # columns and lines
DRAWN_SECONDS = 8.0  # until the page has all its parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--dark", action="store_true")
    arguments = parser.parse_args()
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
            take_screenshot(port, arguments.folder / "page.png", dark=arguments.dark)
            top = asyncio.run(top_as_svg(Path(folder) / MODELS[0], View.NODE, TERMINAL, []))
            (arguments.folder / "top.svg").write_text(top, encoding="utf-8")
        finally:
            for node in started:
                node.terminate()
            for node in started:
                node.wait()


def start(home: Path, model: str, port: int, peer: str | None) -> subprocess.Popen[bytes]:
    flags = [
        "--name",
        model,
        "--model",
        f"builtin:{model}",
        "--set",
        f"api.port={port}",
        "--set",
        "machine.max_threads=1",
    ]
    flags += [] if peer is None else ["--peer", peer]
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


def take_screenshot(port: int, picture: Path, *, dark: bool) -> None:
    browser = opened_browser()
    try:
        set_screen(browser, WIDTH, "dark" if dark else "light")
        browser.get(f"http://127.0.0.1:{port}/")
        time.sleep(DRAWN_SECONDS)
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": browser.execute_script(SHOWN) + BELOW_PX, "scale": 1}
        taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
        picture.write_bytes(base64.b64decode(taken["data"]))
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
