"""What Weights & Biases, trackio and MLflow receive, and the settings that enable them.

wandb, trackio and mlflow are not in the development environment: the tests with the real packages are skipped without
them.
"""

from __future__ import annotations

import importlib.machinery
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from marl_ray.config import Config
from marl_ray.config.sections import OutputConfig
from marl_ray.core.errors import UserError
from marl_ray.plugins.trackers.sinks import MlflowSink, TrackioSink, run_id
from marl_ray.telemetry import trackers
from marl_ray.telemetry.trackers import require_trackers, tracker_names
from tests.factories import make_config

ROWS: list[dict[str, Any]] = [
    {"step": 0, "env_steps": 0, "eval/episodes": 2},
    {"step": 1, "env_steps": 8, "turn_1/reward_mean": 1.5, "agent_0/loss": None, "turn_1/level/a+b": 1.0},
    {"step": 2, "env_steps": 16, "turn_1/reward_mean": 2.5},
]


def config_with(**sections: dict[str, Any]) -> Config:
    return make_config(sections=sections, num_turns=2)


def settings_of(config: Config) -> tuple[OutputConfig, Mapping[str, Any]]:
    return config.output, config.plugin_sections


def test_trackers_have_settings_of_their_own_or_are_named() -> None:
    assert tracker_names(*settings_of(config_with())) == []
    config = config_with(
        output={"tensorboard": True, "sinks": ["mlflow", "tensorboard", "own:Sink"]}, trackio={"project": "p"}
    )
    assert tracker_names(*settings_of(config)) == ["tensorboard", "trackio", "mlflow", "own:Sink"]
    with pytest.raises(UserError, match=r"unknown output.sinks 'wandv': did you mean wandb\?"):
        config_with(output={"sinks": ["wandv"]})


def test_a_missing_package_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"^output.sinks is set but .* missing: pip install mlflow$"):
        require_trackers(*settings_of(config_with(output={"sinks": ["mlflow"]})))


@pytest.mark.parametrize("installed", [True, False])
def test_a_project_of_wandb_without_its_package_is_a_warning(
    installed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = importlib.machinery.ModuleSpec("wandb", None) if installed else None
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: found)
    config = config_with(wandb={"project": "p"})
    require_trackers(*settings_of(config))
    assert tracker_names(*settings_of(config)) == ["wandb"] * installed
    warned = ["wandb.project is set but the package wandb is missing: metrics stay in the run folder"]
    assert caplog.messages == warned * (not installed)
    if not installed:
        with pytest.raises(UserError, match=r"^output.sinks is set but the package wandb is missing"):
            require_trackers(*settings_of(config_with(output={"sinks": ["wandb"]}, wandb={"project": "p"})))


def test_an_address_with_a_password_is_refused() -> None:
    with pytest.raises(UserError, match=r"^mlflow.tracking_uri names a user, and would be written"):
        config_with(mlflow={"tracking_uri": "https://u:p@host"})


def test_the_run_folder_keeps_ids(tmp_path: Path) -> None:
    assert run_id(tmp_path, "wandb") is None
    assert run_id(tmp_path, "wandb", "a") == run_id(tmp_path, "wandb", "b") == "a"
    assert run_id(tmp_path, "mlflow", "c") == "c"
    assert json.loads((tmp_path / "trackers.json").read_text()) == {"wandb": "a", "mlflow": "c"}


def deliver(make: Any, config: Config, run_dir: Path) -> None:
    """Send the first two rows in one process of a run, and the missing row in a second one."""
    for rows in (ROWS[:2], ROWS):
        sink = make(config, run_dir)
        for row in rows:
            if sink.sent_step is None or row["step"] > sink.sent_step:
                sink.row(row, "")
        sink.close()


def test_mlflow_resumes_its_run_in_a_local_database(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    run_dir = tmp_path / "runs" / "one"
    run_dir.mkdir(parents=True)
    deliver(MlflowSink, config_with(mlflow={"experiment": "e"}), run_dir)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    assert (run.info.run_name, run.info.status) == ("one", "FINISHED")
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "turn_1/reward_mean")] == [
        (1, 1.5),
        (2, 2.5),
    ]
    assert run.data.metrics["turn_1/level/a_b"] == 1.0
    assert run.data.params["magrpo.num_turns"] == "2"


OFFLINE_WANDB = """
import sys
from pathlib import Path
from tests.plugins.trackers.test_trackers import config_with, deliver
from marl_ray.plugins.trackers.sinks import WandbSink
deliver(WandbSink, config_with(wandb={"project": "p"}), Path(sys.argv[1]))
"""


def test_wandb_writes_both_processes_of_a_run_under_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE_WANDB, str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    id = run_id(tmp_path, "wandb")
    assert [path.name.rpartition("-")[2] for path in (tmp_path / "wandb").glob("offline-run-*")] in ([id], [id, id])


def test_trackio_resumes_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    deliver(TrackioSink, config_with(trackio={"project": "p"}), tmp_path)
    (run,) = trackio.Api().runs("p")
    assert run.name == run_id(tmp_path, "trackio")
