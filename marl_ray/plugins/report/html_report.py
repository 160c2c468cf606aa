"""The HTML report of one run, or of several runs side by side, as one self-contained file.

The page loads nothing and runs only its own script, whose hash its Content-Security-Policy names. Jinja2 escapes all
text of models, so that hostile text stays text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import chain, groupby
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
    metric_series,
)
from marl_ray.plugins.report.episode_view import episode_view, select_episodes
from marl_ray.plugins.report.svg_charts import format_number, layout_chart
from marl_ray.plugins.report.wait_picture import wait_picture
from marl_ray.results.diagnostics import Rows, describe_wait_times, find_problems
from marl_ray.results.returns_plot import metric_points
from marl_ray.results.run_summary import read_metrics, reward_table
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.metrics import EpisodeRecord
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
    style = _asset("report.css")
    script = _asset("report.js")
    connections = ""
    if live:
        script += _asset("live.js")
        connections = "; connect-src 'self'"
    sources = f"style-src {_hash(style)}; script-src {_hash(script)}{connections}"
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
    # Decoding replaces the surrogates that no partner makes a character.
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
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _view_run(folder: RunFolder, count: int) -> RunView:
    # A run that is in progress, or that has failed early, lacks some of its files.
    rows = read_metrics(folder)
    name = folder.path.name
    settings: Mapping[str, Any] = {}
    config_text = ""
    if folder.config.exists():
        settings = flatten(read_yaml(folder.config))
        config_text = folder.config.read_text(encoding="utf-8")
    records: Iterable[EpisodeRecord] = ()
    if folder.episodes.exists():
        records = read_rows(folder.episodes)
    episodes, total = select_episodes(records, count)
    waits = None
    if folder.timeline.exists():
        waits = wait_picture(read_rows(folder.timeline))
    error = ""
    if folder.error.exists():
        error = folder.error.read_text(errors="replace", encoding="utf-8")
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
        "waits": waits,
        "error": error,
        "chart_sections": _chart_sections(rows),
        "episodes_note": f"{len(episodes)} of {pluralize(total, 'episode')} that the run kept: best, worst and last",
        "episodes": [episode_view(episode) for episode in episodes],
        "machine": [(key, [_plain(value)]) for key, value in flatten(machine).items()],
        "config_text": config_text,
    }
    return RunView(name, rows, settings, variables)


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted key (`magrpo.num_turns`); nothing for data of another type."""
    flat: dict[str, Any] = {}
    if not isinstance(tree, Mapping):
        return flat
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _summary(rows: Rows, settings: Mapping[str, Any]) -> str:
    """Return one line: model, dataset, steps done and time taken."""
    last = max(rows, key=lambda row: row["step"], default={"step": 0})
    done = f"{pluralize(last['step'], 'step')}, {pluralize(last.get('env_steps', 0), 'joint sample')}"
    training = sum(row.get("time/step") or 0.0 for row in rows)
    evaluations = sum(row.get("time/eval") or 0.0 for row in rows)
    text = f"{done}, {_duration(training)} of training, {_duration(evaluations)} of evaluations"
    dataset = settings.get("dataset.name")
    if not dataset:
        return text
    model = settings.get("model.name") or "one model per agent"
    return f"{model} on {dataset}: {text}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _chart_sections(rows: Rows) -> list[dict[str, Any]]:
    """Return a chart per group of metrics, by section; metrics that never change become text, not charts."""
    sections = []
    for title, groups in groupby(chart_groups(rows), key=lambda group: group.section):
        charts = []
        constants = []
        for group in groups:
            series = group_series(rows, group)
            values: set[float] = set()
            for one in series:
                values.update(y for _, y in one.points)
            if len(values) == 1 and title != REWARDS:
                constants.append(f"{group.title} {format_number(values.pop())}")
            elif series:
                charts.append(layout_chart(group.title, series))
        sections.append({"title": title, "open": title == REWARDS, "charts": charts, "constants": constants})
    return sections


def _compare(runs: Sequence[RunView]) -> dict[str, Any]:
    """Return shared reward charts, tables of the last values, and the settings that differ."""
    by_section: dict[str, list[ChartGroup]] = defaultdict(list)
    for group in chart_groups(list(chain(*(run.rows for run in runs)))):
        by_section[group.section].append(group)
    charts = []
    for group in by_section[REWARDS]:
        for label, metric in group.metrics.items():
            series = []
            for colour, run in enumerate(runs):
                series += metric_series(run.rows, metric, run.name, colour)
            if series:
                charts.append(layout_chart(f"{group.title}, {label}", series))
    return {
        "charts": charts,
        "header": ["", *(run.name for run in runs)],
        "rewards": _last_values(runs, by_section[REWARDS]),
        "cooperation": _last_values(runs, by_section[COOPERATION]),
        "other_metrics": _last_values(runs, by_section[TURNS]),
        "settings": _differing_settings(runs),
    }


def _last_values(runs: Sequence[RunView], groups: Sequence[ChartGroup]) -> list[tuple[str, list[str]]]:
    """Return (row title, a cell per run), without rows that are empty for every run."""
    table = []
    for group in groups:
        for label, metric in group.metrics.items():
            title = f"{group.title}, {label}" if label else group.title
            training = [_last_training_mean(run, metric) for run in runs]
            if any(training):
                table.append((title, training))
            held_out = [_last_evaluation(run, metric) for run in runs]
            if any(held_out):
                table.append((f"{title}, held-out", held_out))
    return table


def _last_training_mean(run: RunView, metric: str) -> str:
    points = metric_points(run.rows, metric)[-LAST_STEPS:]
    if not points:
        return ""
    return format_number(sum(y for _, y in points) / len(points))


def _last_evaluation(run: RunView, metric: str) -> str:
    points = metric_points(run.rows, f"eval/{metric}")
    if not points:
        return ""
    _, value = points[-1]
    text = format_number(value)
    for low, high in confidence_intervals(run.rows, metric)[-1:]:
        if low < high:
            text += f" [{format_number(low)}, {format_number(high)}]"
    return text


def _differing_settings(runs: Sequence[RunView]) -> list[tuple[str, list[str]]]:
    """Return (key, a value per run) of the settings whose values differ."""
    keys: dict[str, None] = {}
    """Keys of all runs, in order of first appearance."""
    for run in runs:
        keys |= dict.fromkeys(run.settings)
    table = []
    for key in keys:
        values = []
        for run in runs:
            values.append(_plain(run.settings[key]) if key in run.settings else "not set")
        if len(set(values)) > 1:
            table.append((key, values))
    return table


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
