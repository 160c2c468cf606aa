"""Travel planning: two agents with fixed roles fill the days of one trip at the same time."""

from pathlib import Path

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={
        "environment": {"travel": "marl_ray.plugins.travel.environment:TravelPlanning"},
        "dataset.type": {"travel": "marl_ray.plugins.travel.rows:TRAVEL"},
    },
    types_by_name={"travelplanner": "travel", "bundled:trips": "travel"},
    rows={"bundled:trips": Path(__file__).parent / "trips.jsonl"},
    sections={"travel": "marl_ray.plugins.travel.options:TravelConfig"},
)
