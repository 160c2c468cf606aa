"""Rooms of walls, goals and boxes: a planner writes all moves, and checkers confirm or correct them."""

from pathlib import Path

from marl_ray.registry import PlugIn

PLAN_PATH_BASE_PATH = Path(__file__).parent / "base"

PLUGIN = PlugIn(
    names={
        "environment": {"plan_path": "marl_ray.plugins.plan_path.environment:PlanPath"},
        "dataset.type": {"plan_path": "marl_ray.plugins.plan_path.rows:PLAN_PATH"},
    },
    models={"bundled:toy-plan-path-base": PLAN_PATH_BASE_PATH},
)
