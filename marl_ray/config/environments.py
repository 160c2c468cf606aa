"""Settings of single environments; see `marl_ray.config.schema` for all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marl_ray.config.values import NotNegativeInt, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCompletionConfig:
    """The environment code_completion: a class whose methods are shared out among the agents."""

    strategy: Literal["param_count", "round_robin", "balanced"] = "param_count"
    """Who writes which methods. param_count: those with one parameter (`self` counts) the first agent, those with two
    the second, the last agent all that have more; round_robin: in turns; balanced: so that all have about as much to
    write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """A model that scores answers, for environments that ask one (`marl_ray.external.llm_judge`)."""

    model: str | None = None
    """The model, as its server calls it; null: none."""
    base_url: str | None = None
    """Where it is asked, an endpoint compatible with OpenAI's as in http://localhost:8000/v1; null: OpenAI's own."""
    key_variable: str = "JUDGE_API_KEY"
    """Environment variable that holds the key. Only the process that the command starts reads it."""
    timeout_s: Positive = 60.0
    """Seconds one request has in all."""
    retries: NotNegativeInt = 3
    """Further requests where the server says that another may help; then there is no verdict."""
