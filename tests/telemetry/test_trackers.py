"""Event files of the TensorBoard sink, read with TensorBoard."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from marl_ray.core.errors import UserError
from marl_ray.telemetry import sinks
from marl_ray.telemetry.sinks import TensorBoardSink, require_trackers
from tests.factories import make_config


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the (step, value) pairs of each tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_rows_become_scalars_and_resuming_rewrites_the_kept_rows(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    folder, metrics = tmp_path / "tensorboard", tmp_path / "metrics.jsonl"
    first = TensorBoardSink(folder, metrics)
    first.row({"step": 0, "env_steps": 0, "eval/turn_1/reward_mean": 0.5}, "before")
    first.row({"step": 1, "env_steps": 8, "turn_1/reward_mean": 1.5, "agent_0/loss": float("nan")}, "")
    first.row({"step": 2, "env_steps": 16, "turn_1/reward_mean": 2.5}, "")
    first.close()
    assert scalars(folder)["turn_1/reward_mean"] == [(1, 1.5), (2, 2.5)]
    assert scalars(folder)["eval/turn_1/reward_mean"] == [(0, 0.5)]
    metrics.write_text(json.dumps({"step": 1, "env_steps": 8, "turn_1/reward_mean": 1.5, "agent_0/loss": None}) + "\n")
    again = TensorBoardSink(folder, metrics)
    again.row({"step": 2, "env_steps": 16, "turn_1/reward_mean": 3.5}, "")
    again.close()
    assert scalars(folder) == {"turn_1/reward_mean": [(1, 1.5), (2, 3.5)], "env_steps": [(1, 8.0), (2, 16.0)]}


def test_a_missing_package_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda name: None)
    config = make_config(num_turns=2)
    require_trackers(config)
    wanted = replace(config, output=replace(config.output, tensorboard=True))
    with pytest.raises(UserError, match=r"^output.tensorboard is set but .* missing: pip install tensorboard$"):
        require_trackers(wanted)
