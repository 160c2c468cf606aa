"""Section `code_completion` of a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marl_ray.config.values import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCompletionConfig(Section):
    """Environment code_completion: the methods of a class are divided among the agents."""

    strategy: Literal["param_count", "round_robin", "balanced"] = "param_count"
    """Assignment of methods to agents. param_count: methods with one parameter (including `self`) to the first agent,
    with two to the second, all others to the last; round_robin: in turn; balanced: similar amounts of code."""
