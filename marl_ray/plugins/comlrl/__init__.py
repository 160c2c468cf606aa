"""Config files of CoMLRL, which are read as they are, and converted by `marl-ray convert --to config`."""

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={"compat": {"comlrl": "marl_ray.plugins.comlrl.dialect:COMLRL"}},
)
