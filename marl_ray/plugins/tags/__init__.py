"""A text that two agents divide between them without talking."""

from pathlib import Path

from marl_ray.registry import PlugIn

TEXTS_PATH = Path(__file__).parent / "texts.jsonl"

PLUGIN = PlugIn(
    names={
        "environment": {"tags": "marl_ray.plugins.tags.environment:Tagging"},
        "dataset.type": {"tags": "marl_ray.plugins.tags.rows:TAGS"},
    },
    sections={"tags": "marl_ray.plugins.tags.options:TagsConfig"},
    types_by_name={"bundled:tags": "tags"},
    rows={"bundled:tags": TEXTS_PATH},
)
