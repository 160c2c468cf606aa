"""What checks of a config say, and of which key."""

from __future__ import annotations

from marl_ray.config.keys import agent_keys
from marl_ray.config.schema import Config
from marl_ray.core.errors import UserError


def require(ok: bool, message: str) -> None:
    """Raise UserError with the message unless it is `ok`."""
    if not ok:
        raise UserError(message)


def where(config: Config, number: int, field: str) -> str:
    """The key that an agent's value is from: its own, or the run's."""
    key = f"resources.{field}" if "." in field else field
    return f"agents.{number}.{key}" if key in config.agents[number].given else agent_keys(config.algorithm)[key]
