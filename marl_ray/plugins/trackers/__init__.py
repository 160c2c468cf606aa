"""Trackers of metrics: Weights & Biases, trackio and MLflow."""

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={
        "output.sinks": {
            "wandb": "marl_ray.plugins.trackers.sinks:WandbSink",
            "trackio": "marl_ray.plugins.trackers.sinks:TrackioSink",
            "mlflow": "marl_ray.plugins.trackers.sinks:MlflowSink",
        },
    },
    sections={
        "wandb": "marl_ray.plugins.trackers.options:WandbConfig",
        "trackio": "marl_ray.plugins.trackers.options:TrackioConfig",
        "mlflow": "marl_ray.plugins.trackers.options:MlflowConfig",
    },
)
