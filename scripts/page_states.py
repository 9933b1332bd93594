"""Pictures of the web page in every state that matters, to look at before it is changed and after:

    python -m scripts.page_states FOLDER [--state running] [--peers 3] [--width 375] [--serve 8475]

Each picture is of one state (starting, alone, running, ended), with 3 or 200 peers, 1440 or 375 pixels wide, light or
dark, from top to bottom. The answers are made up, from the API's own types; the page is the real one, in headless
Chromium. With ``--serve`` the page stays on that port for 10 minutes instead.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aiohttp import web
from selenium.webdriver.remote.webdriver import WebDriver

from node.api.page import add_page
from scripts.bench.common.browser import opened_browser, screenshot, set_screen
from scripts.page_answers import STATES, State, made_answers

PEERS = (3, 200)
WIDTHS = (1440, 375)
SCHEMES = ("light", "dark")
DRAWN_SECONDS = 4.0  # until the page has all its parts
SERVED_SECONDS = 600.0
MAX_HEIGHT = 16_000  # of a picture
TOKEN = "made-up"  # with which the buttons change nothing and succeed
ALL_OPEN = "document.querySelectorAll('.details details').forEach((part) => { part.open = true; })"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--state", choices=STATES, action="append", help="only this one; may be repeated")
    parser.add_argument("--peers", type=int, action="append")
    parser.add_argument("--width", type=int, action="append")
    parser.add_argument("--scheme", choices=SCHEMES, action="append")
    parser.add_argument("--open", action="store_true", help="with all details open")
    parser.add_argument("--serve", type=int, metavar="PORT")
    arguments = parser.parse_args()
    states, peers = arguments.state or STATES, arguments.peers or PEERS
    if arguments.serve:
        with served_page(states[0], peers[0], arguments.serve):
            time.sleep(SERVED_SECONDS)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    browser = opened_browser()
    try:
        for state, count in itertools.product(states, peers):
            if count != peers[0] and state in ("starting", "alone"):
                continue  # the same picture
            for width, scheme in itertools.product(arguments.width or WIDTHS, arguments.scheme or SCHEMES):
                picture = arguments.folder / f"{state}-{count}-{width}-{scheme}.png"
                with served_page(state, count) as port:
                    height = take_picture(browser, port, picture, width, scheme, with_details=arguments.open)
                print(f"{picture}: {height} pixels high")
    finally:
        browser.quit()


@contextmanager
def served_page(state: State, peers: int, port: int = 0) -> Iterator[int]:
    """Serves the page with made answers on a port of this machine, which it gives."""
    ended, loop, ready = threading.Event(), asyncio.new_event_loop(), threading.Event()
    with socket.create_server(("127.0.0.1", port)) as listening:

        async def serve() -> None:
            runner = web.AppRunner(application(state, peers), shutdown_timeout=0.1)
            await runner.setup()
            await web.SockSite(runner, listening).start()
            ready.set()
            await asyncio.to_thread(ended.wait)
            await runner.cleanup()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        try:
            ready.wait()
            yield listening.getsockname()[1]
        finally:
            ended.set()
            thread.join()
            loop.close()


def application(state: State, peers: int) -> web.Application:
    """The page with made answers. A node that has ended sends one status and no more."""
    answers = made_answers(state, peers, time.time())

    async def on_answer(request: web.Request) -> web.Response:
        body = answers.get(request.match_info["name"])
        if body is None:
            raise web.HTTPNotFound()
        kind = "image/svg+xml" if body.startswith(b"<") else "application/json"
        return web.Response(body=body, content_type=kind)

    async def on_change(request: web.Request) -> web.Response:
        is_owner = request.headers.get("Authorization") == f"Bearer {TOKEN}"
        if not is_owner:
            return web.json_response({}, status=401)
        return web.Response(body=answers.get(request.match_info["name"], b"{}"), content_type="application/json")

    async def on_events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        with suppress(ConnectionResetError):  # the reader left
            for _ in range(2 if state == "ended" else 3600):
                await response.write(b"retry: 60000\nevent: status\ndata: " + answers["status"] + b"\n\n")
                await asyncio.sleep(1.0)
        return response

    app = web.Application()
    app.router.add_get("/api/v1/events", on_events)
    app.router.add_get("/api/v1/{name}", on_answer)
    app.router.add_post("/api/v1/{name}", on_change)
    add_page(app.router)
    return app


def take_picture(
    browser: WebDriver, port: int, picture: Path, width: int, scheme: str, *, with_details: bool = False
) -> int:
    """Writes a picture of the whole page and returns its height in pixels."""
    set_screen(browser, width, scheme)
    browser.get(f"http://127.0.0.1:{port}/")
    if with_details:
        browser.execute_script(ALL_OPEN)
    time.sleep(DRAWN_SECONDS)
    height = min(MAX_HEIGHT, int(browser.execute_script("return document.documentElement.scrollHeight")))
    picture.write_bytes(screenshot(browser, width, height))
    return height


if __name__ == "__main__":
    main()
