"""Gradients that several ranks reduce once per mini-batch equal gradients reduced in every micro-batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_ray.learning import gradient_accumulator
from marl_ray.learning.gradient_accumulator import GradientAccumulator
from marl_ray.learning.micro_batches import trainable_rows
from marl_ray.learning.ranks import RankGroup
from marl_ray.learning.sharding import full_tensor, reduces_once
from tests.learning.builders import some_groups, tiny_learner, weigh
from tests.learning.rank_processes import run_ranks


def gradients(ranks: RankGroup, folder: str, once: bool) -> tuple[list[torch.Tensor], int, bool]:
    """Return the gradient of a mini-batch, the number of reductions of the first layer, and whether FSDP is asked to
    reduce. With `once` an interrupted mini-batch comes before."""
    learner = tiny_learner(Path(folder), ranks=ranks, microbatch_tokens=24)
    assert not reduces_once(learner.policy, torch.device("cpu"))
    assert reduces_once(learner.policy, torch.device("cuda"))
    gradient_accumulator.reduces_once = lambda *_: once
    mini_batch = weigh(some_groups(7, 3), [1.0, 1.0], "magrpo", "sequence_sum")
    rows = trainable_rows(mini_batch.groups)

    def accumulator() -> GradientAccumulator:
        return GradientAccumulator(learner.logprob_model, replace(learner.settings, importance="none"))

    if once:
        accumulator().add(rows, 7)
    reductions = 0
    layer: Any = learner.policy.model.layers[0]
    group = layer._get_fsdp_state()._fsdp_param_groups[0]
    post_backward = group.post_backward

    def counted(*arguments: Any) -> None:
        nonlocal reductions
        reductions += group.reduce_grads
        post_backward(*arguments)

    group.post_backward = counted
    gradient = accumulator()
    for row in rows:
        gradient.add([row], 1)
    gradient.close(mini_batch.normalizer)
    parameters = learner.policy.parameters()
    return [full_tensor(parameter.grad) for parameter in parameters], reductions, group.reduce_grads


@pytest.mark.slow
def test_one_reduction_per_mini_batch_gives_the_same_gradient(tiny_policy: Path) -> None:
    each, once = (run_ranks(2, gradients, str(tiny_policy), once)[0] for once in (False, True))
    assert each[1] > 3
    assert once[1] == 1
    assert once[2], "later backward passes, as a critic's, reduce"
    for found, expected in zip(once[0], each[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
