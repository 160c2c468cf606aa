"""Section `tags` of a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from marl_ray.config.values import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class TagsConfig(Section):
    """Environment tags: readers of one text name words of it."""

    words: Annotated[int, Ge(1), Le(10)] | None = None
    """Words that each agent is asked for. null: six in all, divided equally between the agents."""
    commas: bool = False
    """Read the parts of the line between commas, which count if they are single words, so that a copied sentence earns
    nothing. false: read all words of the line."""
