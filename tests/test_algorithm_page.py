"""docs/explanation/algorithm.md: its settings exist, and its formulas are the ones of the code."""

from __future__ import annotations

import re

import pytest
import torch

from marl_ray.config import from_tree
from marl_ray.config.budget import training_budget
from marl_ray.config.keys import settings
from marl_ray.config.validation import MAX_SAMPLES
from marl_ray.core.errors import UserError
from tests.credit.trees import advantages_of
from tests.factories import ROOT

PAGE = (ROOT / "docs" / "explanation" / "algorithm.md").read_text(encoding="utf-8")


def test_every_setting_on_the_page_exists() -> None:
    named = set(re.findall(r"`((?:magrpo|model|reward_processor)\.[a-z_0-9]+)`", PAGE))
    assert len(named) > 30
    assert named - settings("magrpo").keys() == set()


def test_every_choice_of_the_objective_is_on_the_page() -> None:
    for name in ("estimator", "loss", "critic", "joint_mode", "handoff", "importance", "loss_aggregation"):
        assert f"`magrpo.{name}`" in PAGE


def test_the_advantage_estimates_the_gradient_up_to_the_stated_factor() -> None:
    """Compare E[A(g) * score(g)] with the exact gradient of the expected reward for a policy of three answers."""
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    rewards, group = torch.tensor([1.0, 0.0, 3.0], dtype=torch.float64), 3
    probabilities = logits.softmax(0)
    (exact,) = torch.autograd.grad((probabilities * rewards).sum(), logits, retain_graph=True)
    scores = torch.eye(3, dtype=torch.float64) - probabilities.detach()  # rows: gradient of log pi of each answer
    estimate = torch.zeros(3, dtype=torch.float64)
    for answers in torch.cartesian_prod(*[torch.arange(3)] * group):
        chance = probabilities.detach()[answers].prod()
        estimate += chance * (advantages_of("magrpo", rewards[answers])[:, None] * scores[answers]).mean(0)
    assert torch.allclose(estimate, exact * (group - 1) / group)


def samples_per_step(agents: int, group: int | None, mode: str) -> int:
    """Return the joint samples of a step, of the default number of tasks. Raises UserError if there are too many."""
    section = {"num_agents": agents, "joint_mode": mode} | ({"num_generations": group} if group else {})
    tree = {"model": {"name": "bundled:toy-base"}, "dataset": {"name": "bundled:toy"}, "magrpo": section}
    return training_budget(from_tree(tree, "magrpo"), 100).joint_samples_per_step


def test_cross_stops_at_the_stated_numbers_of_agents() -> None:
    assert f"more than {MAX_SAMPLES:,} per step" in PAGE
    assert f"computes {samples_per_step(8, None, 'cross'):,} rewards per step" in PAGE
    assert f"`aligned` computes {samples_per_step(8, None, 'aligned')}" in PAGE
    assert f"would need {8 * 4**9:,}" in PAGE
    assert f"five agents ({samples_per_step(5, 8, 'cross'):,} rewards per step)" in PAGE
    for agents, group in ((9, None), (6, 8)):
        with pytest.raises(UserError, match=f"more than {MAX_SAMPLES:,} joint samples"):
            samples_per_step(agents, group, "cross")
