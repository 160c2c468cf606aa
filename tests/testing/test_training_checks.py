"""Checks of plug-ins of training: bundled plug-ins conform, and each violation is found."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_ray import testing
from marl_ray.core.episode import Task
from marl_ray.credit import CRITICS, ESTIMATORS
from marl_ray.credit.requirements import requires
from marl_ray.data import SAMPLERS
from marl_ray.learning import LOSSES, OPTIMIZERS
from marl_ray.learning.losses.policy_gradient import PolicyGradient
from marl_ray.learning.losses.policy_loss import PolicyLoss
from marl_ray.rollout import HANDOFFS, JOINT_MODES
from marl_ray.telemetry.sinks import Sink
from marl_ray.telemetry.trackers import TensorBoardSink
from marl_ray.testing import (
    check_critic,
    check_estimator,
    check_handoff,
    check_joint_mode,
    check_loss,
    check_optimizer,
    check_sampler,
    check_sink,
)

TASKS = [Task(str(number), "x" * number, {}) for number in range(6)]


def test_bundled_plugins_conform() -> None:
    for name in JOINT_MODES.entries:
        check_joint_mode(JOINT_MODES.get(name))
    for name in ("random", "best"):
        check_handoff(HANDOFFS.get(name))
    for name in SAMPLERS.entries:
        check_sampler(SAMPLERS.get(name), TASKS)
    for name in LOSSES.entries:
        check_loss(LOSSES.get(name))
    for name in ("adamw", "adafactor"):
        check_optimizer(OPTIMIZERS.get(name))


def test_the_bundled_sink_conforms() -> None:
    pytest.importorskip("tensorboard")
    check_sink(TensorBoardSink)


@pytest.mark.slow
def test_bundled_critics_conform() -> None:
    for name in ("iac", "maac"):
        check_critic(CRITICS.get(name))
    with pytest.raises(AssertionError, match="must return a critic, not None"):
        check_critic(CRITICS.get("none"))


def test_every_check_is_exported() -> None:
    assert {name for name in dir(testing) if name.startswith("check_")} == set(testing.__all__)


def test_the_former_module_warns() -> None:
    sys.modules.pop("marl_ray.contracts", None)
    with pytest.warns(DeprecationWarning, match=r"marl_ray\.testing: import from there"):
        contracts = importlib.import_module("marl_ray.contracts")
    assert contracts.check_loss is check_loss


@requires(greedy_sample=True)
def above_greedy(returns: torch.Tensor, greedy: torch.Tensor) -> torch.Tensor:
    return returns - greedy


def test_an_estimator_that_looks_beyond_siblings_conforms() -> None:
    check_estimator(above_greedy)
    check_estimator(ESTIMATORS.get("reinforce_pp"))
    with pytest.raises(TypeError):
        check_estimator(lambda returns, greedy: returns)  # without `requires` it gets no baselines


class Constant(PolicyLoss):
    def token_loss(self, tokens: Any) -> Any:
        return tokens.weights.sum(), None


class Reversed(PolicyGradient):
    def token_loss(self, tokens: Any) -> Any:
        return -super().token_loss(tokens)[0], None


class Mean(PolicyLoss):
    def token_loss(self, tokens: Any) -> Any:
        return -(tokens.weights * tokens.logprobs).mean(), None


class Unweighted(PolicyLoss):
    def token_loss(self, tokens: Any) -> Any:
        return -tokens.logprobs.sum(), None


class Silent(Sink):
    sent_step: Any = "none"


def sgd(groups: Any, settings: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([{**group, "lr": 0.1} for group in groups])


VIOLATIONS: list[tuple[Callable[..., None], tuple[Any, ...], str]] = [
    (check_joint_mode, (lambda sizes: [(0,) * len(sizes)],), "is in no joint action and would earn nothing"),
    (check_joint_mode, (lambda sizes: [(9,) * len(sizes)],), "has an index outside the groups"),
    (check_joint_mode, (lambda sizes: [[0] * len(sizes)],), "must be a tuple of 1 indices"),
    (check_joint_mode, (lambda sizes: [(0,) * len(sizes)] * 2,), "two joint actions are the same"),
    (check_handoff, (lambda rewards, rng: [0, 1],), "a list of one index"),
    (check_handoff, (lambda rewards, rng: [random.randrange(len(rewards))],), "random stream only"),
    (check_handoff, (lambda rewards, rng: [rewards.sort() or 0],), "must not modify the rewards"),
    (check_sampler, (lambda tasks, epoch, rng: [0] * len(tasks), TASKS), "must have each index below 6 once"),
    (check_sampler, (lambda tasks, epoch, rng: random.sample(range(6), 6), TASKS), "depend on its arguments only"),
    (check_loss, (Constant,), "must have a gradient in tokens.logprobs"),
    (check_loss, (Reversed,), "must not make a token with a positive weight less likely"),
    (check_loss, (Mean,), "must be the sum of their losses"),
    (check_loss, (Unweighted,), "a token of weight 0 must have no gradient"),
    (check_optimizer, (sgd,), "each group must keep its own lr"),
    (check_sink, (lambda config, run_dir: object(),), r"must be a marl_ray.telemetry.sinks.Sink"),
    (check_sink, (lambda config, run_dir: Silent(),), "sent_step must be None or a whole number"),
]


@pytest.mark.parametrize(("check", "arguments", "message"), VIOLATIONS, ids=[case[2][:40] for case in VIOLATIONS])
def test_violations_are_found(check: Callable[..., None], arguments: tuple[Any, ...], message: str) -> None:
    random.seed(0)
    with pytest.raises(AssertionError, match=message):
        check(*arguments)


def test_the_run_folder_of_a_checked_sink_is_deleted() -> None:
    seen: list[Path] = []

    class Watching(Sink):
        def __init__(self, config: Any, run_dir: Path) -> None:
            seen.append(run_dir)

    check_sink(Watching)
    assert len(seen) == 2
    assert not seen[0].exists()
