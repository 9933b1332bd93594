"""What a page in a browser says, once it says it."""

from __future__ import annotations

import time
from collections.abc import Callable

from selenium.webdriver.remote.webdriver import WebDriver

from tests.hang_guard import HANG_SECONDS


def text_of(browser: WebDriver, selector: str) -> str:
    return str(browser.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector))


def until(browser: WebDriver, selector: str, wanted: Callable[[str], bool]) -> str:
    """Returns the text of an element once it is ``wanted``."""
    deadline = time.monotonic() + HANG_SECONDS
    while not wanted(said := text_of(browser, selector)):
        assert time.monotonic() < deadline, f"{selector} says {said!r}; the page {text_of(browser, 'body')!r}"
        time.sleep(0.2)  # each look has the page laid out again
    return said
