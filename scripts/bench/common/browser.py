"""Headless Chromium for what looks at the web page: started quietly, and asked what is wrong for readers.

Needed are Debian's ``chromium`` and ``chromium-driver``, or their like elsewhere on PATH. axe-core, which finds
barriers for readers with a keyboard or a screen reader, comes with the package axe-core-python.
"""

from __future__ import annotations

import base64
import shutil
from importlib.resources import files

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webdriver import WebDriver

QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--window-size=1200,1000",
)  # fmt: skip
SERIOUS = frozenset({"serious", "critical"})
RUN_AXE = "axe.run(document, {resultTypes: ['violations']}).then((found) => arguments[0](found.violations))"
ELSEWHERE = """return performance.getEntriesByType('resource').map((entry) => entry.name)
  .filter((name) => !name.startsWith(location.origin) && !name.startsWith('data:'))"""
BEYOND = "return Math.max(0, document.documentElement.scrollWidth - window.innerWidth)"


def opened_browser() -> WebDriver:
    """Returns a headless Chromium. Ends the program where none is installed."""
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise SystemExit("no browser: install chromium and chromium-driver (Debian, Ubuntu: apt install)")
    options = Options()
    options.binary_location = chromium
    for argument in QUIET:
        options.add_argument(argument)
    browser = webdriver.Chrome(options, Service(driver))
    browser.execute_cdp_cmd("Performance.enable", {})
    return browser


def set_screen(browser: WebDriver, width: int, scheme: str, height: int = 900) -> None:
    """Makes the screen ``width`` pixels wide, and ``scheme`` ("light" or "dark") the reader's wish."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def barriers(browser: WebDriver) -> list[str]:
    """Returns what axe-core calls serious or critical on the page as it is now, one line each with its first place."""
    browser.execute_script((files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8"))
    found = browser.execute_async_script(RUN_AXE)
    return [
        f"{each['id']}: {each['help']} ({len(each['nodes'])} places, such as {each['nodes'][0]['html'][:200]}; "
        f"{each['nodes'][0]['failureSummary']})"
        for each in found
        if each["impact"] in SERIOUS
    ]


def requests_elsewhere(browser: WebDriver) -> list[str]:
    """Returns the addresses outside this page's origin that it has requested."""
    return [str(name) for name in browser.execute_script(ELSEWHERE)]


def pixels_beyond(browser: WebDriver) -> int:
    """Returns by how much the page is wider than the screen."""
    return int(browser.execute_script(BEYOND))


def screenshot(browser: WebDriver, width: int, height: int) -> bytes:
    """Returns a picture (PNG) of the page's first ``height`` pixels, whatever of them the window shows."""
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    return base64.b64decode(taken["data"])
