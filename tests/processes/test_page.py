"""The web page in a real browser, from a real node: what is on it, and what happens to it when nodes come and go.

It needs Debian's ``chromium`` and ``chromium-driver``, or their like elsewhere on PATH.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from tests.hang_guard import HANG_SECONDS
from tests.processes.browser_page import text_of, until

pytestmark = pytest.mark.processes

QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip
OPEN_ALL = "document.querySelectorAll('details').forEach((part) => { part.open = true; })"
SHOW = "document.querySelector(arguments[0]).scrollIntoView()"  # what is off the screen is updated rarely
ABSENT = "net::ERR_"  # what the browser itself says while the node is away


def on_path(*names: str) -> str:
    """The first of the programs that is there."""
    for name in names:
        if found := shutil.which(name):
            return found
    raise AssertionError(f"none of {', '.join(names)} is there; Debian, Ubuntu: apt install chromium chromium-driver")


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[webdriver.Chrome]:
    options = Options()
    options.binary_location = on_path("chromium", "chromium-browser", "google-chrome")
    for argument in (*QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1200,1600"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    driver = webdriver.Chrome(options, Service(on_path("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def nothing_is_wider_than_the_screen(browser: webdriver.Chrome, width: int) -> None:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    deadline = time.monotonic() + HANG_SECONDS  # charts take a new width in the next frame
    while (wide := browser.execute_script("return document.documentElement.scrollWidth")) > width:
        assert time.monotonic() < deadline, f"{wide} pixels on a screen of {width}"
        time.sleep(0.05)
    if picture := os.environ.get("STARLING_PAGE_PICTURES"):
        browser.save_screenshot(f"{picture}/page-{width}.png")


def _says(wanted: str, said: str) -> bool:
    return wanted in said


def complaints(browser: webdriver.Chrome) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_page_fits_the_screen_shows_peers_that_come_and_go_and_survives_the_node_restarting(
    processes: Any, browser: webdriver.Chrome
) -> None:
    port, home = free_port(), processes.root / "home"
    api = ("--set", f"api.port={port}")
    node = processes.up("--name", "lark", *api, "--set", "evaluation.every_rounds=2", home=home)
    node.wait_for_event("evaluated")
    browser.get(f"http://127.0.0.1:{port}/")
    until(browser, "#link", lambda said: said == "live")
    assert text_of(browser, "#name") == "lark"
    until(browser, "#headline", lambda said: "by itself" in said)
    until(browser, "#chart-skills", lambda said: "spell_backward" in said)
    browser.execute_script("document.querySelector('[data-curve=heldOut]').click()")
    until(browser, "#chart-skills", lambda said: "spell_backward" in said)
    until(browser, "#samples", lambda said: "right" in said or "wrong" in said)
    browser.execute_script(OPEN_ALL)
    until(browser, "#now", lambda said: "training" in said and "held-out reward" in said)
    until(browser, "#peers", lambda said: "No peer is known yet" in said)
    browser.execute_script("document.getElementById('try-do').click()")
    browser.execute_script(
        "document.getElementById('ask-token').value = arguments[0]", (home / "api.token").read_text()
    )
    browser.execute_script("document.getElementById('ask-do').click()")
    until(browser, "#tried", lambda said: "before training" in said and ("✓" in said or "✗" in said))
    address = node.wait_for_event("node")["addresses"][0]

    guest = processes.up("--name", "<b>jay</b>", "--peer", address, home=processes.root / "guest", torch=False)
    for part in ("#peers", "#graph"):
        browser.execute_script(SHOW, part)
        until(browser, part, lambda said: "<b>jay</b>" in said)  # as text, not as markup
        assert browser.execute_script("return document.querySelectorAll(`${arguments[0]} b`).length", part) == 0
    until(browser, "#swarm-count", lambda said: said.startswith("2 nodes"))
    assert guest.stop() == 0
    until(browser, "#links-count", lambda said: said.startswith(("0 of", "nobody")))
    assert complaints(browser) == []
    until(browser, "#rollouts", lambda said: "Flow" in said)
    for width in (1200, 360, 1200):  # a telephone that is turned upright keeps the width of what sticks out
        nothing_is_wider_than_the_screen(browser, width)

    until(browser, "header .buttons", lambda said: "Stop" in said)
    browser.execute_script("document.getElementById('stop').click()")  # the page keeps the token
    browser.execute_script("document.getElementById('ask-do').click()")
    assert node.end() == 0
    until(browser, "#link", lambda said: said == "ended" or "does not answer" in said)
    again = processes.up("--name", "lark", *api, home=home, torch=False)
    until(browser, "#link", lambda said: said == "live")
    again.wait_for_event("ready")  # or it would end before it has begun, and the report tell of one start
    for pressed, then in (("pause", "Resume"), ("resume", "Pause")):  # the page keeps the token meanwhile
        until(browser, "header .buttons", partial(_says, pressed.capitalize()))
        browser.execute_script("document.getElementById(arguments[0]).click()", pressed)
        browser.execute_script("document.getElementById('ask-do').click()")
        until(browser, "header .buttons", partial(_says, then))
        assert (processes.status(again)["paused"] is not None) == (pressed == "pause")
    assert again.stop() == 0
    assert [said for said in complaints(browser) if ABSENT not in said] == []

    written = processes.root / "run.html"
    assert processes.run("report", "--home", str(home), "--html", str(written)).returncode == 0
    browser.get(written.as_uri())
    until(browser, "#chart-skills", lambda said: "spell_backward" in said)
    until(browser, "#headline", lambda said: "by itself" in said)
    assert "3 starts" in text_of(browser, "#now"), "the last one after the pause"
    assert [said for said in complaints(browser) if ABSENT not in said] == []
    assert processes.none_alive()
