"""The setting `compat`: defaults of another program for settings that the file omits."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.config import Config, from_tree, to_tree
from marl_ray.config.descriptions import explain
from marl_ray.core.errors import UserError


def config(algorithm: str = "magrpo", model: dict[str, Any] | None = None, top: Any = None, **section: Any) -> Config:
    tree = {"compat": "comlrl", "model": {"name": "m"} | (model or {}), "dataset": {"name": "toy"}, algorithm: section}
    return from_tree(tree | (top or {}), algorithm)


@pytest.mark.parametrize("algorithm", ["magrpo", "grpo"])
def test_comlrl_sets_the_defaults_of_comlrl(algorithm: str) -> None:
    found = config(algorithm)
    for agent in found.agents:
        assert (agent.temperature, agent.top_p) == (0.6, 0.6)
    assert found.model.top_k == 50
    assert (found.training.handoff, found.training.early_termination_threshold) == ("all", -0.2)
    assert found.training.normalize_advantages
    assert found.importance == "none"
    assert (found.training.weight_decay, found.training.max_grad_norm) == (0.01, None)
    assert found.training.reference_kl == "k1_in_reward", "without a reference policy"


@pytest.mark.parametrize("critic", ["iac", "maac"])
def test_comlrl_critics_have_other_defaults(critic: str) -> None:
    found = config(critic=critic, num_turns=2)
    assert (found.training.normalize_advantages, found.training.handoff) == (True, "all")
    assert (found.model.top_k, found.training.early_termination_threshold) == (None, -0.2)
    assert config(critic="none", num_turns=2).model.top_k == 50


def test_given_settings_take_precedence() -> None:
    given = {"handoff": "random", "weight_decay": 0.0, "max_grad_norm": 1.0, "importance": "truncate"}
    found = config(model={"temperature": 1.0, "top_k": None}, **given, early_termination_threshold=None)
    assert (found.training.handoff, found.importance, found.model.top_k) == ("random", "truncate", None)
    assert (found.training.weight_decay, found.training.max_grad_norm) == (0.0, 1.0)
    assert found.training.early_termination_threshold is None
    assert [agent.temperature for agent in found.agents] == [1.0, 1.0]
    assert from_tree(to_tree(found), "magrpo") == found, "a saved config loads unchanged"
    own = config(top={"agents": [{"temperature": 0.9}, {}]})
    assert [agent.temperature for agent in own.agents] == [0.9, 0.6]


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"reference_kl_coef": 0.1}, "k3_in_reward"),
        ({"reference_kl_enabled": True}, "k3_in_reward"),
        ({"reference_kl_coef": 0.1, "reference_kl": "k3_in_loss"}, "k3_in_loss"),
    ],
)
def test_the_kl_term_has_the_form_of_comlrl(given: dict[str, Any], place: str) -> None:
    assert config(**given).training.reference_kl == place
    assert config(top={"agents": [{"reference_kl_coef": 0.1}, {}]}).training.reference_kl == "k3_in_reward"


def test_compat_null_changes_nothing() -> None:
    tree = {"model": {"name": "m"}, "dataset": {"name": "toy"}}
    assert from_tree(tree | {"compat": None}, "magrpo") == from_tree(tree, "magrpo")
    with pytest.raises(UserError, match="unknown compat 'trl': known: none, comlrl"):
        from_tree(tree | {"compat": "trl"}, "magrpo")


def test_explain_lists_the_defaults_of_comlrl() -> None:
    first, text, *values = explain("compat", "grpo")
    assert first == "compat: none, comlrl, or module:Attr of a plug-in, or null; default none"
    assert "docs/explanation/estimators.md" in text
    assert "comlrl: grpo.handoff all" in values
    assert "comlrl: grpo.max_grad_norm null" in values
    assert "comlrl: grpo.reference_kl k3_in_reward" in values
    assert "comlrl: model.top_k 50" in values
