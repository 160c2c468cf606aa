"""A browser of a run's recorded episodes in a terminal."""

from marl_ray.registry import PlugIn, ShellCommand

PLUGIN = PlugIn(
    commands={
        "view": ShellCommand("marl_ray.plugins.view.command", "browse the episodes of a run in a terminal"),
    },
)
