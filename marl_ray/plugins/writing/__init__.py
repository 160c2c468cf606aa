"""Summaries and introductions that two agents write together."""

from pathlib import Path

from marl_ray.registry import PlugIn

PLUGIN = PlugIn(
    names={
        "environment": {
            "writing_tldr": "marl_ray.plugins.writing.environment:SummaryAndDetails",
            "writing_arxiv": "marl_ray.plugins.writing.environment:PaperIntroduction",
        },
        "dataset.type": {
            "tldr": "marl_ray.plugins.writing.rows:TLDR",
            "arxiv": "marl_ray.plugins.writing.rows:ARXIV",
        },
    },
    types_by_name={"tldr": "tldr", "bundled:posts": "tldr", "arxiv": "arxiv", "bundled:abstracts": "arxiv"},
    rows={
        "bundled:posts": Path(__file__).parent / "posts.jsonl",
        "bundled:abstracts": Path(__file__).parent / "abstracts.jsonl",
    },
)
