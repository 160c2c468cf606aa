"""Words and houses that several agents build from blocks."""

from pathlib import Path

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={
        "environment": {
            "word_builder": "marl_ray.plugins.builder.environment:WordBuilder",
            "house_builder": "marl_ray.plugins.builder.environment:HouseBuilder",
        },
        "dataset.type": {
            "word_builder": "marl_ray.plugins.builder.rows:WORD_BUILDER",
            "house_builder": "marl_ray.plugins.builder.rows:HOUSE_BUILDER",
        },
    },
    types_by_name={"bundled:words": "word_builder", "bundled:houses": "house_builder"},
    rows={
        "bundled:words": Path(__file__).parent / "words.jsonl",
        "bundled:houses": Path(__file__).parent / "houses.jsonl",
    },
)
