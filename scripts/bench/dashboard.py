"""The cost of the web page with many peers: seconds to its first paint, shares of a core while it is live; and what it
must never do: ask another server, be wider than a phone, shut out a keyboard or a screen reader.

    python -m scripts.bench.dashboard [--json] [--peers 200] [--seconds 20]

The supervisor is real, its peers are not (``common/crowded_supervisor.py``): every peer changes each second and a round
ends each second, more often than in a real swarm. The page is opened in headless Chromium (Debian: chromium,
chromium-driver) and watched twice: as it opens, and with the table of all peers open, scrolled to its middle. Its share
is the CPU time of its renderer's main thread (script, layout, painting), by the browser's own account
(Performance.getMetrics); that of the renderer with all its threads, which draw without a GPU here, is reported too.
Then updates are counted on a row that is on the screen, and axe-core looks at the page with everything open, light and
dark, 1440 and 375 pixels wide.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time

from selenium.webdriver.remote.webdriver import WebDriver

from scripts.bench.common.browser import barriers, opened_browser, pixels_beyond, requests_elsewhere, set_screen
from scripts.bench.common.crowded_supervisor import started_supervisor, wait_until_known
from scripts.bench.common.process_usage import cpu_seconds
from scripts.bench.common.processes import free_port
from scripts.bench.common.reporting import Figure, figures_parser, report

SETTLE_SECONDS = 3.0  # until the page has all it asked for
COUNTED_SECONDS = 10.0
WIDTHS = (1440, 375)
FIRST_PAINT = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
NODES = "return document.querySelectorAll('#graph circle').length"
ROWS = "return document.querySelectorAll('#peers tbody tr').length"
MIDDLE = "[...document.querySelectorAll('#peers tbody tr')].at(arguments[0])"
OPEN_PEERS = "document.getElementById('peers-part').open = true"
OPEN_ALL = "document.querySelectorAll('details').forEach((part) => { part.open = true; })"
SHOW_ALL = "document.getElementById('peers-all').click()"
SCROLL = f"{MIDDLE}.scrollIntoView({{block: 'center'}})"
ROUND_SHOWN = f"return {MIDDLE}.querySelector('[data-title=round]').textContent"


def main() -> None:
    parser = figures_parser(__doc__)
    parser.add_argument("--peers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the two measurements")
    arguments = parser.parse_args()
    report("dashboard", figures(arguments.peers, arguments.seconds), as_json=arguments.json)


def figures(peers: int, seconds: float) -> list[Figure]:
    """Starts all processes, measures, and ends them."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="st-") as home, started_supervisor(home, port, peers) as supervisor:
        try:
            wait_until_known(port, peers)
            browser = opened_browser()
            try:
                return measure(browser, supervisor.pid, port, peers, seconds)
            finally:
                browser.quit()
        finally:
            supervisor.terminate()


def measure(browser: WebDriver, supervisor: int, port: int, peers: int, seconds: float) -> list[Figure]:
    browser.get(f"http://127.0.0.1:{port}/")
    while (painted_ms := browser.execute_script(FIRST_PAINT)) is None:
        time.sleep(0.1)
    while not browser.execute_script(NODES):
        time.sleep(0.1)
    found = [Figure(f"page of {peers} peers: first contentful paint", painted_ms / 1e3, "s", "lower", "<= 2 s")]
    found += shares(browser, supervisor, seconds, "as it opens")
    browser.execute_script(OPEN_PEERS)
    while not browser.execute_script(ROWS):
        time.sleep(0.1)
    browser.execute_script(SHOW_ALL)
    browser.execute_script(SCROLL, peers // 2)
    found += shares(browser, supervisor, seconds, f"{browser.execute_script(ROWS)} rows, scrolled to the middle")
    found.append(Figure("updates of a row on the screen", updates(browser, peers // 2), "/s", "higher", "1"))
    return [*found, *promises(browser)]


def shares(browser: WebDriver, supervisor: int, seconds: float, about: str) -> list[Figure]:
    """Returns the shares of a core: of the page's main thread, with the supervisor, and of the whole renderer."""
    time.sleep(SETTLE_SECONDS)
    before, began = (*spent_seconds(browser), cpu_seconds(supervisor)), time.perf_counter()
    time.sleep(seconds)
    after, elapsed_seconds = (*spent_seconds(browser), cpu_seconds(supervisor)), time.perf_counter() - began
    page, renderer, node = ((late - early) / elapsed_seconds for early, late in zip(before, after, strict=True))
    return [
        Figure(f"{about}: the page's main thread, share of a core", 100 * page, "%", "lower", "<= 5 %"),
        Figure(f"{about}: with the supervisor, share of a core", 100 * (page + node), "%", "lower", "<= 5 %"),
        Figure(f"{about}: the renderer with all its threads", 100 * renderer, "%", "lower"),
    ]


def promises(browser: WebDriver) -> list[Figure]:
    """Returns counts that must be 0, over both widths and both schemes with everything open; says what was found."""
    wide, barred = 0, 0
    browser.execute_script(OPEN_ALL)
    for width, scheme in itertools.product(WIDTHS, ("light", "dark")):
        set_screen(browser, width, scheme)
        time.sleep(SETTLE_SECONDS)
        wide = max(wide, pixels_beyond(browser))
        found = barriers(browser)
        barred += len(found)
        for line in found:
            print(f"{width} pixels, {scheme}: {line}", file=sys.stderr)
    elsewhere = requests_elsewhere(browser)
    return [
        Figure("requests to other servers", len(elsewhere), "", "lower", "0"),
        Figure("pixels beyond the screen, 1440 and 375 wide", wide, "px", "lower", "0"),
        Figure("serious or critical findings of axe-core, light and dark", barred, "", "lower", "0"),
    ]


def spent_seconds(browser: WebDriver) -> tuple[float, float]:
    """Returns the CPU time of the page's main thread, and of its whole renderer."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    spent = {each["name"]: float(each["value"]) for each in metrics}
    return spent["ThreadTime"], spent["ProcessTime"]


def updates(browser: WebDriver, row: int) -> float:
    """Returns how often a second the content of ``row`` changes."""
    began, changes = time.perf_counter(), 0
    before = browser.execute_script(ROUND_SHOWN, row)
    while (elapsed_seconds := time.perf_counter() - began) < COUNTED_SECONDS:
        time.sleep(0.1)
        now = browser.execute_script(ROUND_SHOWN, row)
        changes, before = changes + (now != before), now
    return changes / elapsed_seconds


if __name__ == "__main__":
    main()
