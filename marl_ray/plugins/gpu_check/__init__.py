"""Checks of the code paths that depend on a machine's devices (`marl-ray doctor`)."""

from marl_ray.registry import Command, PlugIn

PLUGIN = PlugIn(
    commands={
        "doctor": Command(
            "marl_ray.plugins.gpu_check.command", "describe this machine, and check the code paths that need a GPU"
        ),
    },
)
