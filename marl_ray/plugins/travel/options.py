"""Section `travel` of a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marl_ray.config.values import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class TravelConfig(Section):
    """Environment travel: two agents plan one trip."""

    wishes: Literal["multiplied", "added"] = "multiplied"
    """Weight of the budget and of the traveller's wishes. multiplied: a plan that does not meet one of them earns
    little; added: their mean is one of the parts of the plan's quality, as in CoMLRL."""
