"""Weights & Biases, trackio and MLflow."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marl_ray.config import Config, to_tree
from marl_ray.core.files import write_atomically
from marl_ray.plugins.trackers.options import MlflowConfig, TrackioConfig, WandbConfig
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.sinks import Sink
from marl_ray.telemetry.trackers import numbers

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


def run_id(run_dir: Path, tracker: str, new: str | None = None) -> str | None:
    """Return the id of the run in a tracker, which the run folder stores. Without one, store and return `new`."""
    path = run_dir / ID_FILE
    with _id_lock:
        ids: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if tracker not in ids and new is not None:
            ids[tracker] = new
            write_atomically(path, json.dumps(ids, indent=1).encode())
        return ids.get(tracker)


class WandbSink(Sink):
    """Logs rows to a Weights & Biases run. A resumed run continues the run of its id in trackers.json.

    W&B ignores rows of steps that it has received before a run was resumed.
    """

    package = "wandb"

    def __init__(self, config: Config, run_dir: Path) -> None:
        import wandb

        settings = config.section(WandbConfig)
        self.run = wandb.init(
            id=run_id(run_dir, "wandb", uuid.uuid4().hex[:8]),
            resume="allow",
            project=settings.project or DEFAULT_PROJECT,
            entity=settings.entity,
            name=settings.name or run_dir.name,
            dir=settings.dir or str(run_dir),
            tags=list(settings.tags),
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

    package = "trackio"

    def __init__(self, config: Config, run_dir: Path) -> None:
        import trackio

        settings = config.section(TrackioConfig)
        name = run_id(run_dir, "trackio", f"{run_dir.name}-{uuid.uuid4().hex[:8]}")
        with contextlib.redirect_stdout(sys.stderr):  # it prints where results are
            self.run = trackio.init(
                project=settings.project or DEFAULT_PROJECT,
                name=name,
                space_id=settings.space_id,
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

    package = "mlflow"

    def __init__(self, config: Config, run_dir: Path) -> None:
        from mlflow.tracking import MlflowClient

        settings = config.section(MlflowConfig)
        default = f"sqlite:///{run_dir.parent / 'mlflow.db'}"
        self.client = MlflowClient(settings.tracking_uri or _mlflow_variable() or default)
        known = run_id(run_dir, "mlflow")
        if known is None:
            name = settings.experiment or DEFAULT_PROJECT
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

        now = int(time.time() * 1000)
        step = int(row["step"])
        metrics = []
        for key, value in numbers(row):
            metrics.append(Metric(re.sub(r"[^\w/. -]", "_", key), value, now, step))  # MLflow takes no other signs
        self.client.log_batch(self.id, metrics)

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
