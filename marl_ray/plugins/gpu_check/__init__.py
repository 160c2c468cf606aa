"""Checks of the code paths that depend on a machine's devices (`marl-ray doctor`)."""

from marl_ray.registry import PlugIn, ShellCommand

PLUGIN = PlugIn(
    commands={
        "doctor": ShellCommand(
            "marl_ray.plugins.gpu_check.command", "describe this machine, and check the code paths that need a GPU"
        ),
    },
)
