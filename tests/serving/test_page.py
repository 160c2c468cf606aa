"""The server's page in a real browser. Needs the package playwright and an installed Chromium; skipped without them."""

from __future__ import annotations

import shutil

import pytest

from tests.serving.canned_team import canned_team

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def test_the_page_shows_both_agents_and_the_tests() -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with canned_team() as (address, _, _), sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        problems: list[str] = []
        requests: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        page.fill(
            "#task", 'def double(n: int) -> int:\n    """Return 2 times n."""\n</script><script>alert(1)</script>'
        )
        page.fill("#tests", "assert double(2) == 4\nassert double(0) == 1")
        page.click("#send")
        page.get_by_text("Done.").wait_for(timeout=120_000)
        turns = page.inner_text("#turns")
        assert turns.count("def aux(n):") == 2
        assert turns.count("1 of 2 tests passed") == 2
        assert "def double(n):" in page.inner_text("#answer")
        assert requests == [f"{address}/", f"{address}/v1/chat/completions"]
        assert problems == []
        page.fill("#task", "hang")
        page.click("#send")
        page.locator("#part-1-agent_0").wait_for()
        page.click("#stop")
        page.get_by_text("Stopped.").wait_for(timeout=60_000)
        browser.close()
