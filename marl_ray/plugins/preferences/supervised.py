"""The config of learners that fit written answers in place of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from marl_ray.config import Config, CreditConfig
from marl_ray.core.errors import UserError


def supervised(
    config: Config,
    learning_rate: float | None = None,
    loss_aggregation: Literal["sequence_sum", "token_mean"] = "token_mean",
) -> Config:
    """Return the config whose learners fit demonstrations: return 1 is advantage 1, and every token weighs the same.

    With `sequence_sum` a completion has the weight that its return gives it, whatever its length. Without
    `learning_rate` each agent has its own. Raises UserError for an agent that does not learn.
    """
    agents = []
    for number, agent in enumerate(config.agents):
        rate = agent.learning_rate
        if learning_rate is not None:
            rate = learning_rate
        if rate == 0:
            raise UserError(f"agent {number} has learning_rate 0: give --learning-rate")
        agents.append(replace(agent, estimator="mareinforce", reference_kl_coef=0.0, learning_rate=rate))
    changes = vars(CreditConfig(loss_aggregation=loss_aggregation)) | {
        "loss": "policy_gradient",
        "importance": "none",
        "entropy_coef": 0.0,
        "train_batch_size": None,
    }
    training = replace(config.training, **changes)
    lora = replace(config.lora, export="merged")
    return replace(config, agents=tuple(agents), training=training, lora=lora)
