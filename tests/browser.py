"""A page in a real browser. Needs the package playwright and an installed Chromium; tests are skipped without them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DESKTOP, PHONE = (1280, 900), (390, 844)
"""Width and height of a window in pixels."""


@contextmanager
def browser_page(address: str, size: tuple[int, int] = DESKTOP) -> Iterator[tuple[Any, list[str], list[str]]]:
    """Open an address and yield the page, the addresses of all requests, and the messages of the console."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        requests: list[str] = []
        messages: list[str] = []
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        yield page, requests, messages
        browser.close()


def fits_the_window(page: Any) -> bool:
    """Return whether the page is no wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))
