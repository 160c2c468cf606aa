"""A roll call: each writer reads a row of its own and writes it, and all of them earn one reward."""

from pathlib import Path

from marl_ray.registry import PlugIn

CALLS_PATH = Path(__file__).parent / "calls.jsonl"
ROLL_CALL_BASE_PATH = Path(__file__).parent / "base"

PLUGIN = PlugIn(
    names={
        "environment": {"roll_call": "marl_ray.plugins.roll_call.environment:RollCall"},
        "dataset.type": {"roll_call": "marl_ray.plugins.roll_call.rows:ROLL_CALL"},
    },
    sections={"roll_call": "marl_ray.plugins.roll_call.options:RollCallConfig"},
    types_by_name={"roll-call": "roll_call"},
    rows={"bundled:roll-call": CALLS_PATH},
    models={"bundled:toy-roll-call-base": ROLL_CALL_BASE_PATH},
)
