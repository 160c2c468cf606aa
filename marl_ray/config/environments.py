"""Settings of single environments; see `marl_ray.config.schema` for all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCompletionConfig:
    """The environment code_completion: a class whose methods are shared out among the agents."""

    strategy: Literal["param_count", "round_robin", "balanced"] = "param_count"
    """Who writes which methods. param_count: those with one parameter (`self` counts) the first agent, those with two
    the second, the last agent all that have more; round_robin: in turns; balanced: so that all have about as much to
    write."""
