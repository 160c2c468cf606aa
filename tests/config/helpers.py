"""Builders of config trees for the tests of this package."""

from __future__ import annotations

from typing import Any


def config_tree(agents: Any = None, **sections: Any) -> dict[str, Any]:
    """Return the tree of a minimal config file. `sections` are merged into it."""
    tree: dict[str, Any] = {"model": {"name": "m"}, "dataset": {"name": "humaneval.jsonl"}}
    if agents is not None:
        tree["agents"] = agents
    for name, value in sections.items():
        tree[name] = {**tree.get(name, {}), **value} if isinstance(value, dict) else value
    return tree
