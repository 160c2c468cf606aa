"""Trackers: TensorBoard, Weights & Biases, trackio and MLflow, and the choice of a run's trackers."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import re
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marl_ray.config import Config, to_tree
from marl_ray.core.errors import UserError
from marl_ray.core.files import write_atomically
from marl_ray.telemetry import SINKS
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.sinks import Sink

DEFAULT_PROJECT = "marl_ray"
"""Project or experiment of a tracker that `output.sinks` names without its own setting."""
ID_FILE = "trackers.json"
"""File in the run folder with the id of the run in each tracker."""
MLFLOW_MAX_PARAMS = 100
"""Maximum number of parameters per request of MLflow."""
MLFLOW_MAX_VALUE = 500
"""Maximum length of a parameter's value in all versions of MLflow."""
WANDB_START_S = 20
"""Maximum duration of one attempt to start a run of Weights & Biases."""
_id_lock = threading.Lock()
logger = logging.getLogger(__name__)


def tracker_names(config: Config) -> list[str]:
    """Return the config's trackers: the names in `output.sinks`, and trackers with an enabled setting of their own.

    `wandb.project`, which configs from elsewhere have, enables wandb only if its package is installed.
    """
    enabled = {
        "tensorboard": config.output.tensorboard,
        "wandb": config.wandb.project and not _without_wandb(config),
        "trackio": config.trackio.project,
        "mlflow": config.mlflow.experiment,
    }
    return list(dict.fromkeys([*(name for name, on in enabled.items() if on), *config.output.sinks]))


def _without_wandb(config: Config) -> bool:
    """Return whether wandb.project is set and the package is missing."""
    return bool(config.wandb.project) and importlib.util.find_spec("wandb") is None


def require_trackers(config: Config) -> None:
    """Raise UserError if the config names a tracker that does not exist or whose package is not installed; with
    `wandb.project` alone, warn of the missing package."""
    if _without_wandb(config) and "wandb" not in config.output.sinks:
        logger.warning("wandb.project is set but the package wandb is missing: metrics stay in the run folder")
    settings = {
        "tensorboard": "output.tensorboard",
        "wandb": "wandb.project",
        "trackio": "trackio.project",
        "mlflow": "mlflow.experiment",
    }
    for name in tracker_names(config):
        setting = "output.sinks" if name in config.output.sinks else settings[name]
        if name in settings and importlib.util.find_spec(name) is None:
            raise UserError(f"{setting} is set but the package {name} is missing: pip install {name}")
        if name not in settings:
            SINKS.get(name)


def run_id(run_dir: Path, tracker: str, new: str | None = None) -> str | None:
    """Return the id of the run in a tracker, which the run folder stores. Without one, store and return `new`."""
    path = run_dir / ID_FILE
    with _id_lock:
        ids: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if tracker not in ids and new is not None:
            ids[tracker] = new
            write_atomically(path, json.dumps(ids, indent=1).encode())
        return ids.get(tracker)


def numbers(row: MetricRow) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a row except its step; a number that is not finite is null in metrics.jsonl."""
    for key, value in row.items():
        if key != "step" and isinstance(value, int | float):
            yield key, value


class TensorBoardSink(Sink):
    """Writes every number of a row as a scalar at its step. A new sink writes all rows of the run folder again."""

    sent_step = -1

    def __init__(self, config: Config, run_dir: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = run_dir / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        self.writer = EventFileWriter(str(folder))

    def row(self, row: MetricRow, name: str) -> None:
        """Write one event."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=key, simple_value=value) for key, value in numbers(row)]
        self.writer.add_event(Event(wall_time=time.time(), step=int(row["step"]), summary=Summary(value=values)))
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandbSink(Sink):
    """Logs rows to a Weights & Biases run. A resumed run continues the run of its id in trackers.json.

    W&B ignores rows of steps that it has received before a run was resumed.
    """

    def __init__(self, config: Config, run_dir: Path) -> None:
        import wandb

        self.run = wandb.init(
            id=run_id(run_dir, "wandb", uuid.uuid4().hex[:8]),
            resume="allow",
            project=config.wandb.project or DEFAULT_PROJECT,
            entity=config.wandb.entity,
            name=config.wandb.name or run_dir.name,
            dir=config.wandb.dir or str(run_dir),
            tags=list(config.wandb.tags),
            config=to_tree(config),
            # A thread cannot ask for an API key, standard error belongs to the run, and at the end of the process wandb
            # waits for a start that is in progress.
            settings=wandb.Settings(console="off", login_timeout=1, init_timeout=WANDB_START_S, reinit="create_new"),
        )
        self.sent_step = self.run.step - 1

    def row(self, row: MetricRow, name: str) -> None:
        self.run.log(dict(numbers(row)), step=int(row["step"]))

    def close(self) -> None:
        self.run.finish()


class TrackioSink(Sink):
    """Logs rows to a trackio run, on this machine or in a Space. A resumed run continues the run of the same name."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        import trackio

        name = run_id(run_dir, "trackio", f"{run_dir.name}-{uuid.uuid4().hex[:8]}")
        with contextlib.redirect_stdout(sys.stderr):  # it prints where results are
            self.run = trackio.init(
                project=config.trackio.project or DEFAULT_PROJECT,
                name=name,
                space_id=config.trackio.space_id,
                config=to_tree(config),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self.sent_step = getattr(self.run, "_next_step", 0) - 1  # it has no public name

    def row(self, row: MetricRow, name: str) -> None:
        self.run.log(dict(numbers(row)), step=int(row["step"]))

    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self.run.finish()


class MlflowSink(Sink):
    """Logs rows and settings to an MLflow run. A resumed run continues the run of its id in trackers.json."""

    def __init__(self, config: Config, run_dir: Path) -> None:
        from mlflow.tracking import MlflowClient

        default = f"sqlite:///{run_dir.parent / 'mlflow.db'}"
        self.client = MlflowClient(config.mlflow.tracking_uri or _mlflow_variable() or default)
        known = run_id(run_dir, "mlflow")
        if known is None:
            name = config.mlflow.experiment or DEFAULT_PROJECT
            experiment = self.client.get_experiment_by_name(name)
            experiment_id = self.client.create_experiment(name) if experiment is None else experiment.experiment_id
            known = self.client.create_run(experiment_id, run_name=run_dir.name).info.run_id
            run_id(run_dir, "mlflow", known)
            self._log_settings(known, config)
        self.id = known
        history = self.client.get_metric_history(known, "env_steps")  # every row has this metric
        self.sent_step = max((point.step for point in history), default=-1)

    def row(self, row: MetricRow, name: str) -> None:
        from mlflow.entities import Metric

        now, step = int(time.time() * 1000), int(row["step"])
        self.client.log_batch(
            self.id, [Metric(re.sub(r"[^\w/. -]", "_", key), value, now, step) for key, value in numbers(row)]
        )

    def close(self) -> None:
        self.client.set_terminated(self.id)

    def _log_settings(self, id: str, config: Config) -> None:
        from mlflow.entities import Param

        params = [Param(key, str(value)[:MLFLOW_MAX_VALUE]) for key, value in _flat(to_tree(config))]
        for start in range(0, len(params), MLFLOW_MAX_PARAMS):
            self.client.log_batch(id, params=params[start : start + MLFLOW_MAX_PARAMS])


def _mlflow_variable() -> str | None:
    from mlflow.environment_variables import MLFLOW_TRACKING_URI

    return MLFLOW_TRACKING_URI.get()


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
