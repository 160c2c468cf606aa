"""The HTML report of one run, or of several runs side by side, as one self-contained file.

The page loads nothing and runs only its own script, whose hash its Content-Security-Policy names. Jinja2 escapes all
text of models, so that hostile text stays text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from marl_ray.config.values import read_yaml
from marl_ray.cooperation.run_sentences import cooperation_summary
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize
from marl_ray.plugins.report.chart_groups import (
    COOPERATION,
    REWARDS,
    TURNS,
    ChartGroup,
    chart_groups,
    confidence_intervals,
    group_series,
    metric_points,
    metric_series,
)
from marl_ray.plugins.report.episode_view import episode_view, select_episodes
from marl_ray.plugins.report.svg_charts import format_number, layout_chart
from marl_ray.plugins.report.wait_picture import wait_picture
from marl_ray.results.diagnostics import Rows, describe_wait_times, find_problems
from marl_ray.results.run_summary import read_metrics, reward_table
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.sinks import read_rows

LAST_STEPS = 10
"""Number of last training steps whose mean the comparison of runs shows."""
CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
"""Unicode pictures of control characters, which HTML cannot contain."""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run in the report: the settings of config.yaml by dotted key, and the variables of the template."""

    name: str
    rows: Rows
    settings: Mapping[str, Any]
    variables: Mapping[str, Any]


def render_report(folders: Sequence[RunFolder], episodes: int, live: bool = False) -> str:
    """Return the HTML page, with the `episodes` best, worst and last episodes each, and a comparison of several runs.

    A run may still be training; `live` adds the script that refreshes a served page.

    Raises UserError for a folder without a run and for damaged files.
    """
    runs = [_view_run(folder, episodes) for folder in folders]
    style, script = _asset("report.css"), _asset("report.js") + (_asset("live.js") if live else "")
    sources = f"style-src {_hash(style)}; script-src {_hash(script)}" + ("; connect-src 'self'" if live else "")
    variables = {
        "title": ", ".join(run.name for run in runs),
        "security_policy": Markup(f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"),
        "style": style,
        "script": script,
        "comparison": _compare(runs) if len(runs) > 1 else None,
        "runs": [run.variables for run in runs],
    }
    return _environment().get_template("report.html").render(variables)


def printable(value: Any) -> Any:
    """Return text with control characters as pictures and lone surrogates as U+FFFD; markup and other values as is.

    Example:
        >>> printable("tab\\tbell\\x07")
        'tab\\tbell␇'
    """
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return value.translate(CONTROL_PICTURES).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("marl_ray.plugins.report", "templates"),
        autoescape=True,
        finalize=printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": format_number, "pluralize": pluralize, "anchor": _anchor}
    return environment


def _anchor(episode: Mapping[str, Any]) -> str:
    """Return the fragment of an episode's address, which later pages of the run keep."""
    name = repr((episode["kind"], episode["step"], episode["task"]))
    return f"episode-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _asset(name: str) -> Markup:
    return Markup(resources.files("marl_ray.plugins.report").joinpath("templates", name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _view_run(folder: RunFolder, count: int) -> RunView:
    rows, name = read_metrics(folder), folder.path.name
    settings = flatten(read_yaml(folder.config)) if folder.config.exists() else {}
    records = read_rows(folder.episodes) if folder.episodes.exists() else ()
    episodes, total = select_episodes(records, count)
    try:
        wait_times = describe_wait_times(SavedRun.read(folder.path).config(), rows)
    except UserError:  # config.yaml is missing, or of a version that cannot be read
        wait_times = []
    try:
        machine = json.loads(folder.machine.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        machine = {}
    variables = {
        "name": name,
        "summary": _summary(rows, settings),
        "problems": find_problems(rows),
        "reward_table": "\n".join(reward_table(rows)),
        "cooperation": list(cooperation_summary(rows)),
        "wait_times": wait_times,
        "waits": wait_picture(read_rows(folder.timeline)) if folder.timeline.exists() else None,
        "error": folder.error.read_text(errors="replace", encoding="utf-8") if folder.error.exists() else "",
        "chart_sections": _chart_sections(rows),
        "episodes_note": f"{len(episodes)} of {pluralize(total, 'episode')} that the run kept: best, worst and last",
        "episodes": [episode_view(episode) for episode in episodes],
        "machine": [(key, [_plain(value)]) for key, value in flatten(machine).items()],
        "config_text": folder.config.read_text(encoding="utf-8") if folder.config.exists() else "",
    }
    return RunView(name, rows, settings, variables)


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted key (`magrpo.num_turns`); nothing for data of another type."""
    flat: dict[str, Any] = {}
    for key, value in tree.items() if isinstance(tree, Mapping) else ():
        nested = isinstance(value, Mapping) and value
        flat |= flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def _summary(rows: Rows, settings: Mapping[str, Any]) -> str:
    """Return one line: model, dataset, steps done and time taken."""
    last = max(rows, key=lambda row: row["step"], default={"step": 0})
    done = f"{pluralize(last['step'], 'step')}, {pluralize(last.get('env_steps', 0), 'joint sample')}"
    parts = {"time/step": "training", "time/eval": "evaluations"}
    times = {part: sum(row.get(key) or 0.0 for row in rows) for key, part in parts.items()}
    took = ", ".join(f"{_duration(seconds)} of {part}" for part, seconds in times.items())
    dataset, model = settings.get("dataset.name"), settings.get("model.name")
    return f"{model or 'one model per agent'} on {dataset}: {done}, {took}" if dataset else f"{done}, {took}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _chart_sections(rows: Rows) -> list[dict[str, Any]]:
    """Return a chart per group of metrics, by section; metrics that never change become text, not charts."""
    sections = []
    for title, groups in groupby(chart_groups(rows), key=lambda group: group.section):
        charts, constants = [], []
        for group in groups:
            series = group_series(rows, group)
            values = {y for one in series for _, y in one.points}
            if len(values) == 1 and title != REWARDS:
                constants.append(f"{group.title} {format_number(values.pop())}")
            elif series:
                charts.append(layout_chart(group.title, series))
        sections.append({"title": title, "open": title == REWARDS, "charts": charts, "constants": constants})
    return sections


def _compare(runs: Sequence[RunView]) -> dict[str, Any]:
    """Return shared reward charts, tables of the last values, and the settings that differ."""
    groups = chart_groups([row for run in runs for row in run.rows])
    rewards, cooperation, others = (
        [group for group in groups if group.section == section] for section in (REWARDS, COOPERATION, TURNS)
    )
    charts = []
    for group in rewards:
        for label, metric in group.metrics.items():
            series = [s for colour, run in enumerate(runs) for s in metric_series(run.rows, metric, run.name, colour)]
            if series:
                charts.append(layout_chart(f"{group.title}, {label}", series))
    return {
        "charts": charts,
        "header": ["", *(run.name for run in runs)],
        "rewards": _last_values(runs, rewards),
        "cooperation": _last_values(runs, cooperation),
        "other_metrics": _last_values(runs, others),
        "settings": _differing_settings(runs),
    }


def _last_values(runs: Sequence[RunView], groups: Sequence[ChartGroup]) -> list[tuple[str, list[str]]]:
    """Return (row title, a cell per run), without rows that are empty for every run."""
    table = []
    for group in groups:
        for label, metric in group.metrics.items():
            for kind, value in (("", _last_training_mean), (", held-out", _last_evaluation)):
                cells = [value(run, metric) for run in runs]
                if any(cells):
                    table.append((", ".join(filter(None, (group.title, label))) + kind, cells))
    return table


def _last_training_mean(run: RunView, metric: str) -> str:
    values = [y for _, y in metric_points(run.rows, metric)][-LAST_STEPS:]
    return format_number(sum(values) / len(values)) if values else ""


def _last_evaluation(run: RunView, metric: str) -> str:
    values, bounds = metric_points(run.rows, f"eval/{metric}"), confidence_intervals(run.rows, metric)
    if not values:
        return ""
    low, high = bounds[-1] if bounds else (0.0, 0.0)
    interval = f" [{format_number(low)}, {format_number(high)}]" if low < high else ""
    return format_number(values[-1][1]) + interval


def _differing_settings(runs: Sequence[RunView]) -> list[tuple[str, list[str]]]:
    """Return (key, a value per run) of the settings whose values differ."""
    table = []
    for key in dict.fromkeys(key for run in runs for key in run.settings):
        values = [_plain(run.settings[key]) if key in run.settings else "not set" for run in runs]
        if len(set(values)) > 1:
            table.append((key, values))
    return table


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
