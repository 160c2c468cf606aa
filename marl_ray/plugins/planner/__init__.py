"""The plan of a run on a cluster before anything starts: memory, placement and time."""

from marl_ray.registry import Command, PlugIn

PLUGIN = PlugIn(
    commands={
        "plan": Command(
            "marl_ray.plugins.planner.command",
            "check a config, print it resolved, and estimate memory, placement and time",
        ),
    },
)
