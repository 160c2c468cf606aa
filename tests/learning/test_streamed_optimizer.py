"""Optimizer steps in chunks of state change nothing, whatever the chunks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from marl_ray.learning import streamed_optimizer
from marl_ray.learning.learner import Learner
from tests.learning.builders import assert_same_state, tiny_learner
from tests.learning.critic_builders import batch
from tests.learning.critic_builders import some_groups as with_experience


def updates(learner: Learner, first: int, count: int) -> None:
    for step in range(first, first + count):
        learner.update(batch(step, with_experience(4, step), 4))


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit", "adafactor"])
@pytest.mark.parametrize("chunk_bytes", [1, 40_000, 2**30])
def test_streamed_steps_give_the_same_weights_and_state(
    tiny_policy: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str, chunk_bytes: int
) -> None:
    monkeypatch.setattr(streamed_optimizer, "STREAM_CHUNK_BYTES", chunk_bytes)
    plain, streamed = (tiny_learner(tiny_policy, optimizer=optimizer) for _ in range(2))
    streamed.stream_optimizer_state()
    updates(plain, 0, 3)
    updates(streamed, 0, 3)
    assert_same_state(streamed, plain)


def test_chunks_cover_every_parameter_once_and_respect_their_size(
    tiny_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 40_000
    monkeypatch.setattr(streamed_optimizer, "STREAM_CHUNK_BYTES", limit)
    learner = tiny_learner(tiny_policy)
    parameters = learner.optimizer.param_groups[0]["params"]
    for parameter in parameters[1:]:  # the first has no gradient
        parameter.grad = torch.zeros_like(parameter)
    stream = streamed_optimizer.StreamedOptimizer(learner.optimizer, learner.device)
    chunks = [[parameter for _, some in chunk for parameter in some] for chunk in stream._chunks()]
    assert len(chunks) > 2
    assert [id(parameter) for chunk in chunks for parameter in chunk] == list(map(id, parameters[1:]))
    assert all(len(chunk) == 1 or sum(2 * p.nbytes for p in chunk) <= limit for chunk in chunks)


def test_a_failed_step_leaves_the_parameter_groups_as_they_were(tiny_policy: Path) -> None:
    learner = tiny_learner(tiny_policy)
    parameters = list(learner.optimizer.param_groups[0]["params"])
    learner.stream_optimizer_state()
    assert learner._streamed is not None
    parameters[0].grad = torch.zeros_like(parameters[0])

    def fail() -> None:
        raise RuntimeError("the device is lost")

    learner.optimizer.step = fail  # type: ignore[method-assign,assignment]
    with pytest.raises(RuntimeError, match="the device is lost"):
        learner._streamed.step()
    assert list(map(id, learner.optimizer.param_groups[0]["params"])) == list(map(id, parameters))


def test_streamed_state_is_saved_and_loaded(tiny_policy: Path, tmp_path: Path) -> None:
    plain, streamed = (tiny_learner(tiny_policy) for _ in range(2))
    streamed.stream_optimizer_state()
    updates(plain, 0, 2)
    updates(streamed, 0, 1)
    streamed.save(str(tmp_path / "saved"))
    resumed = tiny_learner(tiny_policy)
    resumed.stream_optimizer_state()
    resumed.load(str(tmp_path / "saved"), 1)
    updates(resumed, 1, 1)
    assert_same_state(resumed, plain)
