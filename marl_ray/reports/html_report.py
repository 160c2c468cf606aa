"""One HTML file of one run, or of several beside each other. It loads nothing, and runs no script but its own: the
policy in its head names that by its hash, so a script that a model wrote would not run even where it were one."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from itertools import groupby
from typing import Any

from marl_ray.core.text import pluralize
from marl_ray.reports.chart_groups import REWARDS, TURNS, ChartGroup, chart_groups, curves, intervals, points
from marl_ray.reports.episode_html import show
from marl_ray.reports.markup import Child, Markup, element
from marl_ray.reports.run_data import RunData, flat
from marl_ray.reports.run_summary import table
from marl_ray.reports.svg_charts import Series, chart, number

OPEN = (REWARDS,)
"""Sections of charts that are open at first."""


def render_report(runs: Sequence[RunData]) -> str:
    """The whole file."""
    style, script = _asset("page.css"), _asset("page.js")
    allowed = f"style-src {_hash(style)}; script-src {_hash(script)}"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    title = ", ".join(run.name for run in runs)
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width"),
        element("title", f"marl_ray: {title}"),
        element("style", style),
    ]
    several = len(runs) > 1
    links = [element("a", run.name, href=f"#run{place}") for place, run in enumerate(runs)] if several else []
    body = [element("h1", title), element("nav", links) if several else None, _comparison(runs) if several else None]
    body += [_run(run, place, several) for place, run in enumerate(runs)]
    whole = element("html", element("head", head), element("body", body, element("script", script)), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _asset(name: str) -> Markup:
    """A file of this package."""
    return Markup(resources.files("marl_ray.reports").joinpath(name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _run(run: RunData, place: int, several: bool) -> Markup:
    """Everything of one run."""
    kept = (
        f"{len(run.episodes)} of {pluralize(run.episodes_kept, 'episode')} that the run kept: its best, worst and last"
    )
    parts: list[Child] = [
        element("h2", run.name, id=f"run{place}") if several else None,
        element("p", _summary(run)),
        [element("p", alert, class_="alert") for alert in run.alerts],
        element("pre", "\n".join(table(run.rows)) or "no step yet"),
        [element("p", line) for line in run.waiting],
        _folded("The bug that ended it", run.error) if run.error else None,
        _charts(run),
        element("h3", "Episodes"),
        element("p", kept, class_="quiet"),
        element("div", _filter(), [show(episode) for episode in run.episodes], class_="episodes"),
        element("h3", "Machine and versions"),
        _machine(run),
        element("h3", "Config"),
        _folded("config.yaml", run.config_text),
    ]
    return element("article", parts)


def _summary(run: RunData) -> str:
    """What was trained, and how far."""
    last = max((row for row in run.rows), key=lambda row: row["step"], default={"step": 0})
    done = f"{pluralize(last['step'], 'step')}, {pluralize(last.get('env_steps', 0), 'joint sample')}"
    parts = {"time/step": "training", "time/eval": "evaluations"}
    times = {what: sum(row.get(key) or 0.0 for row in run.rows) for key, what in parts.items()}
    took = ", ".join(f"{_duration(seconds)} of {what}" for what, seconds in times.items())
    data, model = run.settings.get("dataset.name"), run.settings.get("model.name")
    return f"{model or 'models of their own'} on {data}: {done}, {took}" if data else f"{done}, {took}"


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _folded(title: str, text: str) -> Markup:
    return element("details", element("summary", title), element("pre", text))


def _charts(run: RunData) -> list[Markup]:
    """A chart a group of metrics, by section; what never changes is a line of text."""
    found = []
    for section, members in groupby(chart_groups(run.rows), key=lambda group: group.section):
        drawn: list[Markup] = []
        still: list[str] = []
        for group in members:
            of_family = curves(run.rows, group)
            values = {y for curve in of_family for _, y in curve.points}
            if len(values) == 1 and group.section != REWARDS:
                still.append(f"{group.title} {number(values.pop())}")
            elif of_family:
                drawn.append(chart(group.title, of_family))
        inside = [
            element("div", drawn, class_="charts"),
            element("p", f"always the same: {', '.join(still)}", class_="quiet") if still else None,
        ]
        found.append(element("details", element("summary", element("b", section)), inside, open=section in OPEN))
    axis = "over joint samples; bold: mean of the last steps; points: held-out tasks, with 95 % intervals over tasks"
    return [element("h3", "Curves"), element("p", axis, class_="quiet"), *found]


def _filter() -> Markup:
    """Hidden until the script is there to serve it."""
    fields: list[Child] = [element("label", "task ", element("input", name="task"))]
    of = (("", "all"), ("train", "training"), ("eval", "held-out"))
    kinds = [element("option", text, value=value) for value, text in of]
    fields.append(element("label", "of ", element("select", kinds, name="kind")))
    for name, text in (("first", "step from "), ("last", "to "), ("low", "reward from "), ("high", "to ")):
        fields.append(element("label", text, element("input", name=name, type="number", step="any")))
    return element("div", fields, element("output"), class_="filter", hidden=True)


def _machine(run: RunData) -> Markup:
    if not run.machine:
        return element("p", "The run left no machine.json.", class_="quiet")
    facts = flat(run.machine).items()
    lines = [element("tr", element("th", key), element("td", _plain(value))) for key, value in facts]
    return element("table", lines)


def _comparison(runs: Sequence[RunData]) -> Markup:
    """Rewards of all runs in the same charts, their last numbers in a table, and which settings differ."""
    of_all = chart_groups([row for run in runs for row in run.rows])
    drawn = []
    for group in of_all:
        if group.section != REWARDS:
            continue
        for label, metric in group.metrics.items():
            found = [curve for place, run in enumerate(runs) for curve in _curves_of(run, place, metric)]
            if found:
                drawn.append(chart(f"{group.title}, {label}", found))
    rewards, others = ([group for group in of_all if group.section == section] for section in (REWARDS, TURNS))
    told = "mean of the last ten training steps; last held-out evaluation, with its 95 % interval"
    parts: list[Child] = [
        element("h2", "Comparison"),
        element("div", drawn, class_="charts"),
        element("h3", "Last values"),
        element("p", told, class_="quiet"),
        _last_values(runs, rewards),
        element("details", element("summary", "more of the turns"), _last_values(runs, others)) if others else None,
        element("h3", "Settings that differ"),
        _settings(runs),
    ]
    return element("section", parts)


def _curves_of(run: RunData, place: int, metric: str) -> list[Series]:
    found = []
    if line := points(run.rows, metric):
        found.append(Series(run.name, place, line))
    if marks := points(run.rows, f"eval/{metric}"):
        found.append(Series(f"{run.name} held-out", place, marks, True, intervals(run.rows, metric)))
    return found


def _last_values(runs: Sequence[RunData], of: Sequence[ChartGroup]) -> Markup:
    lines = [element("tr", element("th"), [element("th", run.name) for run in runs])]
    for group in of:
        for label, metric in group.metrics.items():
            for kind, value in (("", _lately), (", held-out", _held_out)):
                cells = [value(run, metric) for run in runs]
                if any(cells):
                    name = element("th", f"{group.title}, {label}{kind}")
                    lines.append(element("tr", name, [element("td", cell) for cell in cells]))
    return element("table", lines)


def _lately(run: RunData, metric: str) -> str:
    values = [y for _, y in points(run.rows, metric)][-10:]
    return number(sum(values) / len(values)) if values else ""


def _held_out(run: RunData, metric: str) -> str:
    values, bounds = points(run.rows, f"eval/{metric}"), intervals(run.rows, metric)
    if not values:
        return ""
    low, high = bounds[-1] if bounds else (0.0, 0.0)
    return number(values[-1][1]) + (f" [{number(low)}, {number(high)}]" if low < high else "")


def _settings(runs: Sequence[RunData]) -> Markup:
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    lines = [element("tr", element("th"), [element("th", run.name) for run in runs])]
    for key in keys:
        values = [_plain(run.settings[key]) if key in run.settings else "not set" for run in runs]
        if len(set(values)) > 1:
            lines.append(element("tr", element("th", key), [element("td", value) for value in values]))
    return element("table", lines) if len(lines) > 1 else element("p", "none")


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
