"""The HTML report: its contents, and that text of models stays inert."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_ray.cli.main import main
from marl_ray.plugins.report.chart_groups import (
    COOPERATION,
    LEVELS,
    REWARDS,
    chart_groups,
    confidence_intervals,
    metric_series,
)
from marl_ray.plugins.report.episode_view import select_episodes
from marl_ray.plugins.report.html_report import printable
from marl_ray.plugins.report.svg_charts import Series, layout_chart, round_ticks, thin, tick_labels
from marl_ray.results.returns_plot import centred_mean, smoothing_window
from marl_ray.telemetry.metrics import episode_record
from tests.factories import make_episode, make_node
from tests.plugins.report.report_runs import HOSTILE, write_run

VOID = ("br", "input", "meta")
"""HTML elements without an end tag."""
SECTIONS = ("Curves", "Episodes", "Machine and versions", "Config")


class Reader(HTMLParser):
    """The elements of a page with their attributes, and the text outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data


def make_report(arguments: list[str]) -> str:
    assert main(["report", *arguments]) == 0
    return Path(arguments[-1] if "--output" in arguments else f"{arguments[0]}/report.html").read_text()


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    page = make_report([str(write_run(tmp_path / "run", HOSTILE))])
    reader = Reader(page)
    assert [tag for tag, _ in reader.elements].count("script") == 1
    assert {"img", "iframe", "object", "b>"} & {tag for tag, _ in reader.elements} == set()
    assert [name for _, attributes in reader.elements for name in attributes if name.startswith("on")] == []
    shown = HOSTILE.replace("\x00", "\u2400").replace("\x1b", "\u241b").replace("\ud800", "\ufffd")
    assert reader.text.count(shown) >= 7, "task, prompts, responses, verdicts and the name of the level"
    assert all(character not in page for character in "\x00\x1b")


def test_a_report_loads_nothing_and_runs_only_its_own_script(tmp_path: Path) -> None:
    page = make_report([str(write_run(tmp_path / "run"))])
    reader = Reader(page)
    loading = {"src", "srcset", "data", "action", "formaction", "poster", "background", "xlink:href"}
    assert [name for _, attributes in reader.elements for name in attributes if name in loading] == []
    assert all((attributes.get("href") or "#").startswith("#") for _, attributes in reader.elements)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    policy = next(a["content"] for tag, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    for tag in ("script", "style"):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert len(inside) == 1
        digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_contents_of_a_report(tmp_path: Path) -> None:
    reader = Reader(make_report([str(write_run(tmp_path / "run"))]))
    for title in SECTIONS:
        assert title in reader.text
    assert "75% of recent completions were cut off" in reader.text
    assert "seed: 1" in reader.text
    assert "2.<b>" in reader.text
    assert "step     2        16 joint samples  training reward 2.00" in reader.text
    assert [tag for tag, _ in reader.elements].count("svg") >= 3, "reward, a level, a loss"
    assert "turn 1 held-out: 1" in reader.text
    assert "Turn 2 after joint action 1 of turn 1: joint action 0, reward 3" in reader.text
    assert "ended after joint actions 1: infra error" in reader.text


def test_several_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_run(tmp_path / name, seed=seed)) for seed, name in enumerate(("one", "two"))]
    assert main(["report", *runs]) == 1
    assert "needs --output FILE" in capsys.readouterr().err
    text = Reader(make_report([*runs, "--output", str(tmp_path / "both.html")])).text
    differ = text[text.index("Settings that differ") :].replace("\n", "")
    assert differ.startswith("Settings that differonetwoseed01one"), "nothing but the seed"
    assert "reward_mean, turn 1, held-out1 [0.804, 1.196]" in text


def test_the_best_worst_and_last_episodes_are_selected() -> None:
    rewards = [3.0, 1.0, 9.0, 2.0, 0.0, 9.0, 4.0]
    records = [{"step": n} | episode_record(make_episode(make_node(0, [reward]))) for n, reward in enumerate(rewards)]
    records.insert(3, {"step": 7} | episode_record(make_episode(None, ((), "prompt_too_long"))))
    selected = [(episode.record["step"], ", ".join(episode.reasons)) for episode in select_episodes(records, 2)[0]]
    assert selected == [(1, "worst"), (2, "best"), (4, "worst"), (5, "best, last"), (6, "last")]
    assert [episode.reasons for episode in select_episodes(records, 10)[0]] == [[]] * len(rewards)
    assert select_episodes(records, 0) == ([], 8)


def test_every_metric_has_a_chart_group() -> None:
    rows = [{"step": 1, "turn_2/level/aux": 1.0, "eval/turn_1/all_passed": 0.5, "agent_1/loss": 0.0, "time/step": 1.0}]
    groups = {(group.section, group.title): dict(group.metrics) for group in chart_groups(rows)}
    assert groups[REWARDS, "all_passed"] == {"turn 1": "turn_1/all_passed"}
    assert groups[LEVELS, "turn 2"] == {"aux": "turn_2/level/aux"}
    assert groups["Agents", "loss"] == {"agent 1": "agent_1/loss"}
    assert next(iter(groups)) == (REWARDS, "all_passed")


def test_measures_of_cooperation_are_in_one_section() -> None:
    measures = ["cooperation/agent_1_contribution", "cooperation/over_one_agent_twice", "tokens/critical_path"]
    measures += ["eval/reward_per_token/all", "turn_2/fix_rate", "agent_0/turn_1/credit_fidelity"]
    groups = {
        (group.section, group.title): dict(group.metrics) for group in chart_groups([dict.fromkeys(measures, 1.0)])
    }
    assert groups == {
        (COOPERATION, "contribution to the reward"): {"agent 1": "cooperation/agent_1_contribution"},
        (COOPERATION, "credit fidelity, turn 1"): {"agent 0": "agent_0/turn_1/credit_fidelity"},
        (COOPERATION, "over one agent twice"): {"": "cooperation/over_one_agent_twice"},
        (COOPERATION, "reward per token"): {"all": "reward_per_token/all"},
        (COOPERATION, "revisions in turn 2"): {"fix_rate": "turn_2/fix_rate"},
        (COOPERATION, "tokens per episode"): {"critical path": "tokens/critical_path"},
    }


def test_confidence_intervals_of_evaluations() -> None:
    row = {"eval/episodes": 100, "eval/turn_1/reward_mean": 2.0, "eval/turn_1/reward_std": 0.5, "eval/turn_1/x": 1.0}
    assert confidence_intervals([row], "turn_1/reward_mean") == [(pytest.approx(1.902), pytest.approx(2.098))]
    assert confidence_intervals([row], "turn_1/x") == []
    # Wilson's for none of ten: 0 to z^2 / (n + z^2)
    none = {"eval/episodes": 10, "eval/turn_1/all_passed": 0.0}
    assert confidence_intervals([none], "turn_1/all_passed") == [(0.0, pytest.approx(3.8416 / 13.8416))]
    assert confidence_intervals([none | {"eval/episodes": 1}], "turn_1/all_passed") == [(0.0, 0.0)]


def test_ticks_are_round_numbers() -> None:
    assert round_ticks(0.0, 4.0) == [0, 1, 2, 3, 4]
    assert round_ticks(-0.3, 0.31) == [-0.2, 0.0, 0.2]
    assert round_ticks(0.0, 23456.0) == [0, 10000, 20000]


@pytest.mark.parametrize("values", [(0.999999999997, 1.0), (1.0, 1.0 + 1e-8), (-1e-15, 2e-15), (1e12, 1e12 + 1)])
def test_values_that_hardly_differ_have_a_chart(values: tuple[float, float]) -> None:
    chart = layout_chart("share", [Series("", 0, list(enumerate(values)))])
    labels = [label for _, label in chart.y_ticks]
    assert len(labels) > 1
    assert len(set(labels)) == len(labels)


def test_tick_labels_are_distinct() -> None:
    assert tick_labels([0.0, 0.5, 1.0]) == ["0", "0.5", "1"]
    assert tick_labels([1.0, 1.00002, 1.00004]) == ["1.00000", "1.00002", "1.00004"]
    assert tick_labels([0.99999, 1.0]) == ["0.99999", "1.00000"]


def test_points_have_tooltips() -> None:
    [shapes] = layout_chart("one", [Series("", 0, [(float(n), 2.0 * n) for n in range(7)])]).series
    assert [text for _, _, text in shapes.hints] == [f"{n}: {2 * n}" for n in range(7)]
    [long] = layout_chart("long", [Series("", 0, [(float(n), 1.0) for n in range(10_000)])]).series
    assert (len(long.hints), long.hints[-1][2]) == (60, "9999: 1")
    [marks] = layout_chart("m", [Series("", 0, [(1.0, 0.5), (2.0, 0.5)], True, [(0.4, 0.6)] * 2)]).series
    assert marks.hints[0][2] == "1: 0.5 [0.4, 0.6]"


def test_long_lines_are_thinned() -> None:
    points = [(float(n), float(n % 2)) for n in range(10_000)]
    assert len(thin(points)) == 400
    assert all(y == pytest.approx(0.5, abs=0.03) for _, y in thin(points))
    [shapes] = layout_chart("long", [Series("", 0, points)]).series
    assert [len(line.split()) for _, line in shapes.lines] == [400, 400], "the line and its centred mean"


@given(values=st.lists(st.floats(-10, 10), min_size=1, max_size=60), lead=st.floats(0.01, 1))
def test_a_run_that_is_better_at_every_step_is_drawn_higher(values: list[float], lead: float) -> None:
    width = smoothing_window(len(values))
    lower = centred_mean(values, width)
    higher = centred_mean([value + lead for value in values], width)
    assert all(one < other for one, other in zip(lower, higher, strict=True))
    rising = [float(n) for n in range(len(values))]
    assert centred_mean(rising, width) == pytest.approx(rising), "no lag"


@pytest.mark.parametrize(("metric", "lines"), [("agent_0/learning_rate", 1), ("turn_1/reward_mean", 2)])
def test_only_noise_is_smoothed(metric: str, lines: int) -> None:
    rows = [{"env_steps": n, metric: n / 100} for n in range(20)]
    [shapes] = layout_chart("one", metric_series(rows, metric, "", 0)).series
    assert len(shapes.lines) == lines


def test_a_chart_of_one_value_has_room() -> None:
    assert "nan" not in repr(layout_chart("flat", [Series("turn 1", 0, [(0.0, 0.0)])]))
    [shapes] = layout_chart("flat", [Series("turn 1", 0, [(8.0, 2.0)])]).series
    assert [x for x, _ in shapes.dots] == ["252.0"], "in the middle"


def test_control_characters_become_pictures() -> None:
    assert printable("tab\tline\nbell\x07 \ud800") == "tab\tline\nbell\u2407 \ufffd"
