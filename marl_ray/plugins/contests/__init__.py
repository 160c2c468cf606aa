"""Rows of programming contests: APPS and LiveCodeBench."""

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={
        "dataset.type": {
            "apps": "marl_ray.plugins.contests.rows:APPS",
            "livecodebench": "marl_ray.plugins.contests.rows:LIVECODEBENCH",
        },
    },
    types_by_name={"livecodebench": "livecodebench", "code_generation_lite": "livecodebench"},
)
