"""Learners of the bundled toy policy, and groups for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from marl_ray.config import from_tree
from marl_ray.core.batch import Group, UpdateStats
from marl_ray.core.episode import Completion
from marl_ray.learning.learner import Learner
from marl_ray.toy import BASE_PATH
from tests.learning.builders import build_batch, unweighted_group


def learner(agents: Any = None, **settings: Any) -> Learner:
    """Return a learner of the toy policy; `settings` are settings of the algorithm."""
    tree = {
        "agents": agents,
        "model": {"name": str(BASE_PATH)},
        "dataset": {"name": "bundled:toy"},
        "magrpo": {"learning_rate": 1e-3, "weight_decay": 0.1, "lr_scheduler": "linear"} | settings,
    }
    config = from_tree(tree, "magrpo")
    optimizer = replace(config.training, importance="none")
    return Learner(str(BASE_PATH), config.agents[0], config.model, config.training, optimizer, "float32", 10, 1)


def update(of: Learner, *groups: Group, size: int = 9) -> UpdateStats:
    """Train on the groups in mini-batches of `size`."""
    return of.update(replace(build_batch(groups, size), step=of.step))


def group(*returns: float) -> Group:
    """Return a group with these returns."""
    completions = tuple(
        Completion((5 + i, 6, 0), "", (-1.0, -1.0, -1.0), "stop", ((0, 3),)) for i in range(len(returns))
    )
    return unweighted_group(0, (10, 11, 12), completions, returns)


def state(of: Learner) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in of.policy.parameters()]


def same(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
