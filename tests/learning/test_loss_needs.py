"""Needs and options of losses: bundled ones, and plug-ins that declare them with `requires`."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from marl_ray.config import from_tree
from marl_ray.config.learning_rules import learning_problems
from marl_ray.credit.requirements import requires
from marl_ray.learning.losses import loss_class
from marl_ray.learning.losses.policy_gradient import PolicyGradient
from marl_ray.learning.losses.policy_loss import ClipOptions, PolicyLoss
from marl_ray.registry import in_memory
from tests.config.helpers import config_tree


@requires(old_logprobs=True, off_policy_tokens=True, own_importance_ratio=True, clip_range=(0.1, 0.3))
class Declared(PolicyGradient):
    """A plug-in of an earlier version."""


@requires(loss_aggregation="token_mean", siblings=True)
class OfOneAggregation(PolicyLoss):
    """A plug-in that needs something else than losses of the package do."""


def problems(loss: type[PolicyLoss], **settings: object) -> list[str]:
    """Return the problems of a run with a loss in memory."""
    name = "in_memory:loss"
    with in_memory({name: loss}):
        config = from_tree(config_tree(magrpo={"loss": "policy_gradient", **settings}), "magrpo")
        return list(learning_problems(replace(config, training=replace(config.training, loss=name))))


def test_no_loss_imports_torch() -> None:
    code = (
        "import sys; from marl_ray.learning import LOSSES; from marl_ray.learning.losses import loss_class; "
        "[loss_class(name) for name in LOSSES.entries]; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_plug_in_declares_needs_by_name() -> None:
    found = problems(Declared)
    assert len(found) == 1
    assert "is for stale tokens" in found[0]
    assert Declared.default_options() == ClipOptions(clip_low=0.1, clip_high=0.3)
    assert "is for stale tokens" in problems(Declared, importance="mask")[0]
    assert "would apply the ratio of loss in_memory:loss a second time" in problems(Declared, importance="mask")[1]


def test_a_plug_in_may_need_an_aggregation_and_siblings() -> None:
    found = problems(OfOneAggregation, num_generations=1, estimator="mareinforce")
    assert "set magrpo.loss_aggregation to token_mean, not sequence_sum" in " ".join(found[1].split())
    assert "num_generations is 1" in found[0]


def test_a_plug_in_that_cannot_be_imported_needs_nothing() -> None:
    assert loss_class("no.such.module:Loss") is PolicyLoss
