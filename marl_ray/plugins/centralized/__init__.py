"""The baseline of one policy that writes the parts of all agents in one completion."""

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={"environment": {"centralized": "marl_ray.plugins.centralized.environment:Centralized"}},
    sections={"centralized": "marl_ray.plugins.centralized.options:CentralizedConfig"},
    adapt="marl_ray.plugins.centralized.settings:centralize",
)
