"""Calls of functions that two agents choose and fill in."""

from pathlib import Path

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={
        "environment": {"function_calls": "marl_ray.plugins.function_calls.environment:FunctionCalls"},
        "dataset.type": {"function_calls": "marl_ray.plugins.function_calls.rows:FUNCTION_CALLS"},
    },
    types_by_name={"bfcl": "function_calls", "bundled:requests": "function_calls"},
    rows={"bundled:requests": Path(__file__).parent / "requests.jsonl"},
)
