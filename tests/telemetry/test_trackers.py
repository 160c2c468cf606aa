"""Event files of the TensorBoard sink, read with TensorBoard, and what Prometheus reads."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marl_ray.config import Config
from marl_ray.config.sections import OutputConfig
from marl_ray.core.errors import UserError
from marl_ray.telemetry import trackers
from marl_ray.telemetry.prometheus_sink import Gauge, PrometheusSink
from marl_ray.telemetry.trackers import TensorBoardSink, require_trackers, tracker_names
from tests.factories import make_config

ROWS: list[dict[str, Any]] = [
    {"step": 0, "env_steps": 0, "eval/turn_1/reward_mean": 0.5, "eval/episodes": 2},
    {"step": 1, "env_steps": 8, "turn_1/reward_mean": 1.5, "agent_0/loss": None, "turn_1/level/a+b": 1.0},
    {"step": 2, "env_steps": 16, "turn_1/reward_mean": 2.5},
]


def config_with(**sections: dict[str, Any]) -> Config:
    return make_config(sections=sections, num_turns=2)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the (step, value) pairs of each tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_rows_become_scalars_and_a_new_sink_starts_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config, folder = config_with(), tmp_path / "tensorboard"
    for rows in (ROWS, ROWS[:2]):
        sink = TensorBoardSink(config, tmp_path)
        assert sink.sent_step == -1, "it receives all rows of the run folder"
        for row in rows:
            sink.row(row, "")
        sink.close()
        assert scalars(folder)["turn_1/reward_mean"] == [(1, 1.5), (2, 2.5)][: len(rows) - 1]
    assert scalars(folder)["eval/turn_1/reward_mean"] == [(0, 0.5)]
    assert "agent_0/loss" not in scalars(folder)


def settings_of(config: Config) -> tuple[OutputConfig, Mapping[str, Any]]:
    return config.output, config.plugin_sections


def test_trackers_are_named_or_have_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_with()
    assert tracker_names(*settings_of(config)) == []
    wanted = replace(config, output=replace(config.output, tensorboard=True, sinks=("own:Sink", "tensorboard")))
    assert tracker_names(*settings_of(wanted)) == ["tensorboard", "own:Sink"]
    with pytest.raises(UserError, match=r"^output.sinks no_such:Sink: No module"):
        require_trackers(*settings_of(config_with(output={"sinks": ["no_such:Sink"]})))
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    require_trackers(*settings_of(config))
    with pytest.raises(UserError, match=r"^output.tensorboard is set but .* missing: pip install tensorboard$"):
        require_trackers(*settings_of(replace(config, output=replace(config.output, tensorboard=True))))


def test_prometheus_serves_rows_and_live_gauges_on_this_machine_only() -> None:
    live = [
        Gauge("lost_actors", {"kind": "generator"}, 1, "Lost"),
        Gauge("lost_actors", {"kind": "learner"}, 0, "Lost"),
    ]
    sink = PrometheusSink(config_with(output={"prometheus_port": 0}).output, lambda: live)
    host, port = sink.server.host, sink.server.port
    try:
        assert host == "127.0.0.1"
        sink.row(ROWS[0], "eval")
        rates = {"rollout/episodes": 4, "rollout/tokens_per_s": 90.0, "agent_1/staleness_max": 2, "note": "text"}
        sink.row(ROWS[1] | rates, "")
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as reply:
            assert reply.headers["Content-Type"].startswith("text/plain")
            lines = reply.read().decode().splitlines()
    finally:
        sink.close()
    assert "# TYPE marl_ray_lost_actors gauge" in lines
    assert {
        'marl_ray_lost_actors{kind="generator"} 1.0',
        "marl_ray_steps 1.0",
        "marl_ray_tokens_per_second 90.0",
        'marl_ray_staleness{agent="agent_1"} 2.0',
        'marl_ray_metric{name="eval/turn_1/reward_mean"} 0.5',
    } <= set(lines)
