"""`marl-ray report` on a folder that holds only metrics.jsonl, and the reward plot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marl_ray.cli.main import main
from marl_ray.results.returns_plot import plot_run


@pytest.mark.plugins("report")
def test_the_report_command_prints_rewards_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"step": 0, "env_steps": 0, "eval/turn_1/reward_mean": 1.0, "eval/turn_2/reward_mean": 1.25},
        {"step": 1, "env_steps": 8, "turn_1/reward_mean": 1.5, "turn_1/all_passed": 0.0},
        {"step": 2, "env_steps": 16, "turn_1/reward_mean": 2.0, "turn_2/reward_mean": None, "turn_1/all_passed": 0.5},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "en')
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "step     0         0 joint samples  held-out reward 1.00 1.25",
        "step     2        16 joint samples  training reward 2.00",
        str(tmp_path / "returns.png"),
        str(tmp_path / "report.html"),
    ]
    assert height(tmp_path / "returns.png") == 832


def test_the_plot_has_no_panel_of_tests_without_such_a_metric(tmp_path: Path) -> None:
    plot_run([{"step": 1, "env_steps": 8, "turn_1/reward_mean": 1.5}], tmp_path / "returns.png", "r")
    assert height(tmp_path / "returns.png") == 572


def height(png: Path) -> int:
    """Return the height of a PNG in pixels."""
    data = png.read_bytes()
    assert data.startswith(b"\x89PNG")
    return int.from_bytes(data[20:24], "big")
