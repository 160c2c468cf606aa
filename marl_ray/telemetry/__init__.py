"""Logs, metric rows, timings and sinks of a run."""

from __future__ import annotations

from marl_ray.registry import Registry

SINKS = Registry(
    "output.sinks",
    {
        "tensorboard": "marl_ray.telemetry.trackers:TensorBoardSink",
    },
    member="row",
)
"""Trackers: subclasses of `marl_ray.telemetry.sinks.Sink` that are created as `Tracker(config, run_dir)`."""

__all__ = ["SINKS"]
