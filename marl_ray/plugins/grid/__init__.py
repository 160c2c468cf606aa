"""Letters on a grid, which two agents fill, each with its own part of the target or with all of it."""

from pathlib import Path

from marl_ray.registry import PlugIn

GRIDS_PATH = Path(__file__).parent / "grids.jsonl"
GRID_BASE_PATH = Path(__file__).parent / "base"

PLUGIN = PlugIn(
    names={
        "environment": {
            "grid": "marl_ray.plugins.grid.environment:LetterGrid",
            "grid_private": "marl_ray.plugins.grid.environment:PrivateGrid",
        },
        "dataset.type": {
            "grid": "marl_ray.plugins.grid.rows:GRID",
            "grid_private": "marl_ray.plugins.grid.rows:GRID_PRIVATE",
        },
    },
    types_by_name={"bundled:grid": "grid"},
    rows={"bundled:grid": GRIDS_PATH},
    models={"bundled:toy-grid-base": GRID_BASE_PATH},
)
