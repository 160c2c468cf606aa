"""The served report in a real browser."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import pytest

from marl_ray.plugins.report.live_report import serve_report
from marl_ray.storage.run_folder import RunFolder
from tests.browser import PHONE, browser_page, fits_the_window
from tests.plugins.report.report_runs import HOSTILE, add_step, write_run

pytestmark = pytest.mark.slow


def test_the_page_follows_the_run_and_opens_the_episode_of_a_link(tmp_path: Path) -> None:
    run = RunFolder(write_run(tmp_path / "run", HOSTILE))
    addresses: queue.Queue[str] = queue.Queue()
    threading.Thread(target=serve_report, args=([run], 2, 0, addresses.put), daemon=True).start()
    address = addresses.get(timeout=60)
    with browser_page(address) as (page, requests, messages):
        page.wait_for_selector("body[data-live]")
        version = page.get_attribute("body", "data-live")
        episode = page.locator("details.episode").first
        episode.locator("summary").first.click()
        add_step(run, 3)
        page.wait_for_selector(f"body:not([data-live='{version}'])", timeout=60_000)
        assert "3 steps" in page.inner_text(".live > p >> nth=0")
        assert episode.get_attribute("open") is not None, "episodes are not replaced"

        link = page.locator("details.episode").last.locator("summary a").get_attribute("href")
        page.goto(f"{address}{link}")
        page.reload()
        opened = page.locator("details.episode[open]")
        assert opened.get_attribute("id") == link[1:]

        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        difference = page.locator("table.difference").first
        before, after = (difference.locator("tr").nth(1).locator("td").nth(n).bounding_box() for n in (0, 1))
        assert (before["y"], before["width"]) == (after["y"], after["width"])
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        assert fits_the_window(page)
        assert page.title() == "marl_ray: run"
        assert all(request.startswith(address) for request in requests)
        assert messages == []
