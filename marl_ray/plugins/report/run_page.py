"""The page of a run: one self-contained HTML file that holds the run's data, a style sheet and a script.

The page loads nothing and runs only its own script, whose hash its Content-Security-Policy names. The data is JSON in
an element that no browser executes, and the script writes all of its text as text nodes, so that hostile text stays
text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from marl_ray.plugins.report.run_data import run_data
from marl_ray.storage.run_folder import RunFolder

STYLES = ("vendor/uplot/uPlot.min.css", "page/page.css", "page/episodes.css")
CHART_LIBRARY = "vendor/uplot/uPlot.iife.min.js"
SCRIPTS = (
    "core.js",
    "charts.js",
    "bar.js",
    "overview.js",
    "episodes.js",
    "changed.js",
    "rollouts.js",
    "cooperation.js",
    "system.js",
    "all_metrics.js",
    "config.js",
)
"""The scripts of the page. Tabs appear in the order in which their scripts register them."""
LIST_SCRIPTS = ("core.js", "charts.js", "bar.js", "run_list.js")
"""The scripts of the page that lists several runs."""


def render_run(folder: RunFolder, live: bool = False) -> str:
    """Return the page of a run. `live`: the page asks its server for new data."""
    return render_run_data(run_data(folder), live)


def render_run_data(data: Mapping[str, Any], live: bool = False) -> str:
    """Return the page of a run with its `run_data`."""
    return render_page(data, SCRIPTS, data["reward_table"], live)


def render_list(data: Mapping[str, Any], live: bool = False) -> str:
    """Return the page of a list of runs with its `list_data`."""
    return render_page(data, LIST_SCRIPTS, "\n".join(run["name"] for run in data["runs"]), live)


def render_page(data: Mapping[str, Any], scripts: Sequence[str], plain_text: str, live: bool) -> str:
    """Return a page that draws `data` with `scripts`. Browsers without scripts show `plain_text`."""
    style = "\n".join(map(_asset, STYLES))
    script = "\n".join([_asset(CHART_LIBRARY), *(_asset(f"page/{name}") for name in scripts)])
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    if live:
        policy += "; connect-src 'self'"
    variables = {
        "title": f"{data['name']} - marl_ray",
        "security_policy": Markup(f"{policy}; base-uri 'none'; form-action 'none'"),
        "style": Markup(style),
        "script": Markup(script),
        "data": Markup(data_text(data)),
        "plain_text": plain_text,
        "live": live,
    }
    return _environment().get_template("page.html").render(variables)


def data_text(data: Mapping[str, Any]) -> str:
    """Return data as JSON that can stand in an HTML element: no text in it ends the element.

    Lone surrogates, which UTF-8 cannot express, become U+FFFD.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("<", "\\u003c")


@cache
def _environment() -> Environment:
    loader = PackageLoader("marl_ray.plugins.report", "page")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


@cache
def _asset(path: str) -> str:
    return resources.files("marl_ray.plugins.report").joinpath(path).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
