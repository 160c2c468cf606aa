"""Pictures of the pages of a run: `python -m tools.page_pictures RUN OUT` writes a PNG per tab, window and theme.

Needs the package playwright and an installed Chromium. Ends with status 1 if a page writes to the console or is wider
than its window.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from marl_ray.plugins.report.run_page import render_run
from marl_ray.storage.run_folder import RunFolder

WINDOWS = {"desktop": (1280, 900), "phone": (390, 844)}
THEMES = ("light", "dark")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRAWN_MS = 500
"""Time for the charts that come into view with a tab."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the pictures")
    parser.add_argument("--whole", action="store_true", help="the whole page instead of its first screen")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text(render_run(RunFolder(options.run)), encoding="utf-8")
        problems = take_pictures(page.as_uri(), options.out, options.whole)
    for problem in problems:
        print(problem, file=sys.stderr)
    return bool(problems)


def take_pictures(address: str, out: Path, whole: bool) -> list[str]:
    """Write the pictures and return the problems of the pages."""
    from playwright.sync_api import sync_playwright

    problems: list[str] = []
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        for window, (width, height) in WINDOWS.items():
            for theme in THEMES:
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
                page.on("console", lambda message: problems.append(message.text))
                page.on("pageerror", lambda error: problems.append(str(error)))
                page.goto(address)
                for tab in page.evaluate("[...document.querySelectorAll('#tabs a')].map((a) => a.hash)"):
                    page.goto(address + tab)
                    page.wait_for_timeout(DRAWN_MS)
                    name = f"{tab.removeprefix('#')}-{window}-{theme}.png"
                    page.screenshot(path=out / name, full_page=whole)
                    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                        problems.append(f"{name}: wider than the window")
                    print(out / name)
                page.close()
        browser.close()
    return problems


if __name__ == "__main__":
    raise SystemExit(main())
