"""Policies that learn in turns: the steps of each, and the configs that are rejected."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.config import Config
from marl_ray.config.budget import training_budget
from marl_ray.config.budget_text import describe_budget
from marl_ray.core.errors import UserError
from marl_ray.credit.groups import learns
from tests.factories import make_config

FROZEN = {"agents": ["m", {"name": "n", "learning_rate": 0}, "o"]}


def learns_in(config: Config, agent: int, step: int) -> bool:
    return learns(agent, step, config.training.learn_in_turns, config.learning_policies)


def test_all_policies_learn_in_every_step_by_default() -> None:
    config = make_config()
    assert all(learns_in(config, agent, step) for agent in (0, 1) for step in range(5))
    assert training_budget(config, 100).learning_steps == training_budget(config, 100).total_steps


def test_a_frozen_policy_has_no_turn() -> None:
    config = make_config(sections=FROZEN, learn_in_turns=1)
    assert [[agent for agent in range(3) if learns_in(config, agent, step)] for step in range(3)] == [[0], [2], [0]]


@pytest.mark.parametrize(("length", "steps", "expected"), [(1, 10, 5), (1, 11, 6), (4, 10, 6), (4, 13, 8), (20, 9, 9)])
def test_the_learning_rate_is_scheduled_over_the_steps_in_which_a_policy_learns(
    length: int, steps: int, expected: int
) -> None:
    config = make_config(learn_in_turns=length, max_steps=steps, num_train_epochs=None)
    assert sum(learns_in(config, 0, step) for step in range(steps)) == expected
    assert training_budget(config, 100).optimizer_steps == expected
    assert f"learn_in_turns: 2 policies learn alternately, {length} step" in describe_budget(config, 100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sections": {"agents": ["m", {"name": "n", "learning_rate": 0}]}}, "fewer than two policies learn"),
        ({"policy": 0}, "fewer than two policies learn"),
        ({"dynamic_sampling": True}, "set magrpo.dynamic_sampling to false"),
    ],
)
def test_settings_that_exclude_turns(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_config(learn_in_turns=2, **settings)
