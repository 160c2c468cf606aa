"""The server's page in a real browser."""

from __future__ import annotations

import json

import pytest

from tests.browser import PHONE, browser_page, fits_the_window
from tests.plugins.serve.canned_team import canned_team

pytestmark = pytest.mark.slow


def test_the_page_shows_both_agents_and_the_tests() -> None:
    with canned_team() as (address, _, _), browser_page(address) as (page, requests, messages):
        page.fill(
            "#task", 'def double(n: int) -> int:\n    """Return 2 times n."""\n</script><script>alert(1)</script>'
        )
        page.fill("#tests", "assert double(2) == 4\nassert double(0) == 1")
        page.click("#send")
        page.get_by_text("Done: 1 of 2 tests passed.").wait_for(timeout=120_000)
        turns = page.inner_text("#turns")
        assert turns.count("def aux(n):") == 2
        assert turns.count("1 of 2 tests passed") == 2
        assert "def double(n):" in page.inner_text("#answer")
        assert requests == [f"{address}/", f"{address}/v1/chat/completions"]
        assert messages == []
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        assert fits_the_window(page)
        page.fill("#task", "hang")
        page.click("#send")
        page.locator("#part-1-agent_0").wait_for()
        page.click("#stop")
        page.get_by_text("Stopped.").wait_for(timeout=60_000)


def test_the_page_names_an_agent_whose_text_is_no_part_of_the_answer() -> None:
    parts = [
        {"marl_ray": {"event": "delta", "turn": 1, "agent": "agent_0", "text": "I would rather not."}},
        {"marl_ray": {"event": "delta", "turn": 1, "agent": "agent_1", "text": "def double(n): return 2 * n"}},
        {"marl_ray": {"event": "answer", "left_out": ["agent_0"]}},
        {"choices": [{"delta": {"content": "def double(n): return 2 * n"}}]},
    ]
    stream = "".join(f"data: {json.dumps(part)}\n\n" for part in parts) + "data: [DONE]\n\n"
    with canned_team() as (address, _, _), browser_page(address) as (page, _, messages):
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body=stream, content_type="text/event-stream"))
        page.fill("#task", "Double a number.")
        page.click("#send")
        page.get_by_text("Without agent 0: its text above is no part of this answer.").wait_for(timeout=30_000)
        assert "I would rather not." in page.inner_text("#part-1-agent_0")
        assert messages == []
