"""The plan of a run on a cluster before anything starts: memory, placement and time."""

from marl_ray.registry import PlugIn, ShellCommand

PLUGIN = PlugIn(
    commands={
        "plan": ShellCommand(
            "marl_ray.plugins.planner.command",
            "check a config, print it resolved, and estimate memory, placement and time",
        ),
    },
)
