"""Settings of a team for the environment `centralized`, in which one policy writes all parts."""

from __future__ import annotations

from typing import Any

from marl_ray.config.validation import count_agents
from marl_ray.config.values import PositiveInt, convert
from marl_ray.core.errors import UserError

NAME = "centralized"
PER_AGENT = ("max_new_tokens", "policy")
"""Settings in which the entries of a team's agents may differ."""


def centralize(
    run: dict[str, Any], entries: list[dict[str, Any]] | None, algorithm: str
) -> list[dict[str, Any]] | None:
    """Replace the agents of a team by one agent with the team's tokens, if the environment is `centralized`.

    `run` contains values by key and is modified. Returns the entries of agents. With `centralized.team`, which a stored
    config has, the settings are the ones of the one agent already. Raises UserError if agents differ.
    """
    number = f"{algorithm}.num_agents"
    budget = f"{algorithm}.max_new_tokens"
    if run["environment"] != NAME:
        return entries
    if run["centralized.team"] is not None:
        run[number] = run[number] or len(entries or (None,))
        return entries
    team = count_agents(entries, run[number], algorithm)
    tokens = 0
    alike: list[dict[str, Any]] = []
    for entry in entries or [{}] * team:
        common = {key: value for key, value in entry.items() if key not in PER_AGENT}
        alike.append(common)
        if common != alike[0]:
            raise UserError(
                "environment centralized trains one policy, and the entries of agents differ: leave them out"
            )
        tokens += convert(entry.get("max_new_tokens", run[budget]), PositiveInt, budget)
    run |= {budget: tokens, "centralized.team": team, number: 1}
    if entries is None:
        return None
    return alike[:1]
