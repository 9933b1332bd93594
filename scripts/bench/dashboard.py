"""What the web page costs with many peers: seconds to its first paint, and shares of a core while it is live.

    python scripts/bench/dashboard.py [--json] [--peers 200] [--seconds 20] [--all]

The supervisor and its peers are those of ``api_peers.py``; the page is opened in headless Chromium (Debian: chromium,
chromium-driver). The page's share is what its renderer's main thread spent on tasks, by the browser's own account
(Performance.getMetrics): script, layout and painting, without a GPU. It shows 40 peers until all are asked for, which
``--all`` does. Every peer says something new each second, as in no real swarm.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from api_peers import cpu_seconds, until_told
from report import Figure, add_json_flag, report
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.remote.webdriver import WebDriver

SUPERVISOR = Path(__file__).with_name("api_peers.py")
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip
SETTLE_SECONDS = 8.0  # for plotly to load and draw
FIRST_PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
ROWS = "return document.querySelectorAll('#peers tbody tr').length"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="that the page is watched for")
    parser.add_argument("--all", action="store_true", help="with every peer in the table")
    add_json_flag(parser)
    arguments = parser.parse_args()
    report("dashboard", figures(arguments.peers, arguments.seconds, every_one=arguments.all), as_json=arguments.json)


def figures(peers: int, seconds: float, *, every_one: bool) -> list[Figure]:
    """Starts everything, measures, ends everything."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="st-") as home:
        command = [sys.executable, str(SUPERVISOR), "--role", "supervisor", "--home", home, "--port", str(port)]
        with subprocess.Popen([*command, "--peers", str(peers)], stdin=subprocess.PIPE) as supervisor:
            try:
                until_told(port, peers)
                browser = opened()
                try:
                    return measure(browser, supervisor.pid, port, peers, seconds, every_one=every_one)
                finally:
                    browser.quit()
            finally:
                supervisor.terminate()


def opened() -> WebDriver:
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


def measure(
    browser: WebDriver, supervisor: int, port: int, peers: int, seconds: float, *, every_one: bool
) -> list[Figure]:
    browser.get(f"http://127.0.0.1:{port}/")
    while (painted_ms := browser.execute_script(FIRST_PAINT)) is None:
        time.sleep(0.1)
    while not browser.execute_script(ROWS):
        time.sleep(0.1)
    if every_one:
        browser.execute_script("document.getElementById('peers-all').click()")
    time.sleep(SETTLE_SECONDS)
    busy_before, cpu_before = busy_seconds(browser), cpu_seconds(supervisor)
    began = time.perf_counter()
    time.sleep(seconds)
    elapsed_seconds = time.perf_counter() - began
    page = (busy_seconds(browser) - busy_before) / elapsed_seconds
    node = (cpu_seconds(supervisor) - cpu_before) / elapsed_seconds
    rows = browser.execute_script(ROWS)
    return [
        Figure(f"page of {peers} peers: first contentful paint", painted_ms / 1e3, "s", "lower", "<= 2 s"),
        Figure(f"the page's main thread, {rows} rows: share of a core", 100 * page, "%", "lower", "<= 5 %"),
        Figure("the supervisor, share of a core", 100 * node, "%", "lower", "<= 5 %"),
    ]


def busy_seconds(browser: WebDriver) -> float:
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


if __name__ == "__main__":
    main()
