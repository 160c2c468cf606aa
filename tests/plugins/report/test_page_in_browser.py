"""The pages in a real browser: every tab by keyboard, numbers drawn, live data, a long run, a phone."""

from __future__ import annotations

import json
import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from marl_ray.cli.main import main
from marl_ray.plugins.report.live_report import serve_report
from marl_ray.plugins.report.run_data import run_data
from marl_ray.plugins.report.run_page import render_run_data
from marl_ray.storage.run_folder import RunFolder
from tests.browser import DESKTOP, PHONE, browser_page, fits_the_window
from tests.plugins.report.long_run import write_long_run
from tests.plugins.report.report_runs import HOSTILE, add_step, write_run

pytestmark = pytest.mark.slow
MAX_PAGE_BYTES = 3_000_000
MAX_OPEN_MS = 2000


def page_of(run: Path) -> str:
    assert main(["report", str(run)]) == 0
    return f"file://{run}/report.html"


def rounded(value: float, digits: int) -> str:
    return f"{float(f'{value:.{digits}g}'):g}"


def wait_for_tab(page: Any, tab: str) -> None:
    page.wait_for_selector(f"#tab-{tab}:not([hidden])")


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_every_tab_opens_by_keyboard_and_fits(tmp_path: Path, size: tuple[int, int]) -> None:
    run = write_run(tmp_path / "run", HOSTILE)
    (run / "error.txt").write_text(HOSTILE, encoding="utf-8", errors="replace")
    with browser_page(page_of(run), size) as (page, requests, messages):
        page.wait_for_selector("body[data-ready]")
        tabs = page.evaluate("[...document.querySelectorAll('#tabs a')].map((a) => a.hash.slice(1))")
        assert tabs[0] == "overview"
        assert {"system", "config"} <= set(tabs)
        for tab in tabs:
            page.evaluate("document.activeElement.blur()")
            for _ in range(40):
                page.keyboard.press("Tab")
                if page.evaluate("document.activeElement.hash") == f"#{tab}":
                    break
            page.keyboard.press("Enter")
            wait_for_tab(page, tab)
            assert fits_the_window(page), tab
        assert page.title() == "run: failed"
        assert requests == [page.url.partition("#")[0]]
        assert messages == []
        assert page.evaluate("document.querySelectorAll('main img, main script, main iframe').length") == 0


def test_numbers_of_the_tiles_and_values_under_the_crosshair(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_long_run(run, steps=100)
    data = run_data(RunFolder(run), 0)
    reward = data["overview"]["reward"]
    with browser_page(page_of(run)) as (page, _, messages):
        tile = page.locator(".tile .value").first.inner_text()
        assert tile == f"{rounded(reward['before'], 3)} → {rounded(reward['after'], 3)} of 4"
        page.locator("figure.chart select").select_option("samples")
        chart = page.locator("figure.chart .plot").first
        chart.focus()
        page.keyboard.press("ArrowLeft")
        legend = page.locator("figure.chart .legend").first
        assert "joint samples" in legend.inner_text()
        held_out = data["evaluations"]["metrics"]["turn_2/reward_mean"]
        assert rounded(held_out[-1], 4) in legend.inner_text()
        page.locator("figure.chart select").select_option("steps")
        page.locator("figure.chart .plot").first.hover()
        assert page.locator("figure.chart .legend").first.inner_text().startswith("step ")
        assert messages == []


def test_metrics_are_found_by_name_and_title(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_long_run(run, steps=20)
    with browser_page(f"{page_of(run)}#system") as (page, _, messages):
        shown = "[...document.querySelectorAll('#all-metrics figure')].filter((one) => one.checkVisibility()).length"
        for words, count in (("norm gradient", 1), ("agent_0/turn_1/influence", 1), ("no such metric", 0)):
            page.get_by_label("Search the metrics").fill(words)
            assert page.evaluate(shown) == count, words
        assert messages == []


def test_a_long_run_opens_in_two_seconds_within_three_megabytes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_long_run(run)
    address = page_of(run)
    assert (run / "report.html").stat().st_size < MAX_PAGE_BYTES
    with browser_page(address) as (page, _, messages):
        page.wait_for_selector("body[data-ready]")
        timing = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
        assert timing < MAX_OPEN_MS
        assert messages == []


def test_the_page_follows_a_run_from_its_start(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.make()
    run.config.write_text("model: {name: bundled:toy-base}\ndataset: {name: 'bundled:toy'}\nmagrpo: {}\n")
    run.log_file.write_text("2026-01-02 03:04:05,678 INFO marl_ray.launch: starting 2 generators\n")
    addresses: queue.Queue[str] = queue.Queue()
    threading.Thread(target=serve_report, args=([run], 0, addresses.put), daemon=True).start()
    address = addresses.get(timeout=60)
    with browser_page(address) as (page, requests, messages):
        page.wait_for_selector("text=starting 2 generators")
        page.wait_for_selector("body[data-version]")
        add_step(run, 1)
        add_step(run, 2)
        page.wait_for_selector("figure.chart", timeout=60_000)
        assert page.locator(".chip.state").inner_text() == "stopped at step 2", "no process holds the lock"
        page.goto(f"{address}#system")
        page.get_by_label("Search the metrics").fill("reward")
        add_step(run, 3)
        page.wait_for_selector(".chip.state:has-text('step 3')", timeout=60_000)
        assert page.get_by_label("Search the metrics").input_value() == "reward", "kept beside new data"
        assert page.evaluate("document.activeElement.type") == "search"
        page.route("**/version", lambda route: route.abort())
        page.wait_for_selector("text=The server has not answered", timeout=60_000)
        assert all(request.startswith(address) for request in requests)
        assert [text for text in messages if "ERR_FAILED" not in text] == []


def test_the_list_sorts_and_opens_pages(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    for seed, name in enumerate(("one", "two", "three")):
        write_run(folder / name, seed=seed)
    assert main(["report", str(folder)]) == 0
    with browser_page(f"file://{folder}/report.html", PHONE) as (page, _, messages):
        page.get_by_role("button", name="run", exact=True).click()
        names = page.locator("table.runs tbody tr td:first-child")
        assert names.all_inner_texts() == ["one", "three", "two"]
        page.get_by_role("button", name="run", exact=True).click()
        assert names.all_inner_texts() == ["two", "three", "one"]
        assert fits_the_window(page)
        page.goto(f"file://{folder}/report.html#compare")
        wait_for_tab(page, "compare")
        assert fits_the_window(page)
        page.goto(f"file://{folder}/report.html#runs")
        page.get_by_role("link", name="two").click()
        page.wait_for_selector("h1:has-text('two')")
        assert messages == []


def test_exact_numbers_are_not_smoothed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.make()
    run.config.write_text("magrpo: {}\n")
    rows = [{"step": n, "env_steps": n, "agent_0/learning_rate": n / 100, "agent_0/loss": n % 2} for n in range(1, 31)]
    run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (run.path / "report.html").write_text(render_run_data(run_data(run)), encoding="utf-8")
    count = """(title) => {
      const group = page.run.charts.find((one) => one.title === title);
      return charts.metricSeries(page.run, group, "step").series.map((one) => one.values[0]);
    }"""
    with browser_page(f"file://{run.path}/report.html") as (page, _, messages):
        assert page.evaluate(count, "Learning rate") == [0.01]
        assert page.evaluate(count, "Loss") == [1, 1], "the values, and their centred mean, which has no lag"
        assert page.evaluate("charts.centredMean([1, 2, 3, 4, 5, 6])") == [1, 2, 3, 4, 5, 6]
        assert messages == []


def test_the_theme_is_kept_and_a_browser_may_keep_nothing(tmp_path: Path) -> None:
    address = page_of(write_run(tmp_path / "run", HOSTILE))
    ground = "getComputedStyle(document.body).backgroundColor"
    with browser_page(address) as (page, _, messages):
        light = page.evaluate(ground)
        page.get_by_label("Theme").select_option("dark")
        dark = page.evaluate(ground)
        assert dark != light
        assert page.evaluate("page.colour('ground')") == dark, "of charts, too"
        page.reload()
        assert page.evaluate(ground) == dark
        assert page.get_by_label("Theme").input_value() == "dark"
        forbidden = "for (const name of ['getItem', 'setItem']) Storage.prototype[name] = () => { throw new Error(); };"
        page.add_init_script(forbidden)
        page.reload()
        assert page.evaluate(ground) == light
        page.get_by_label("Theme").select_option("dark")
        assert page.evaluate(ground) == dark
        assert messages == []
