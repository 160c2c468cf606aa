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
    number, budget = f"{algorithm}.num_agents", f"{algorithm}.max_new_tokens"
    if run["environment"] != NAME:
        return entries
    if run["centralized.team"] is not None:
        run[number] = run[number] or len(entries or (None,))
        return entries
    team = count_agents(entries, run[number], algorithm)
    own = entries or [{}] * team
    alike = [{key: value for key, value in entry.items() if key not in PER_AGENT} for entry in own]
    if any(entry != alike[0] for entry in alike):
        raise UserError("environment centralized trains one policy, and the entries of agents differ: leave them out")
    tokens = (entry.get("max_new_tokens", run[budget]) for entry in own)
    run[budget] = sum(convert(value, PositiveInt, budget) for value in tokens)
    run |= {"centralized.team": team, number: 1}
    return None if entries is None else alike[:1]
