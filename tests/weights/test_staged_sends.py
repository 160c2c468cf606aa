"""Sends through vLLM's trainer-side engines: one pass over the weights, in the wire dtype, after the optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning import sharding
from marl_ray.learning.policy_model import load_policy
from marl_ray.learning.ranks import RankGroup
from marl_ray.learning.sharding import WeightGatherer
from marl_ray.toy import BASE_PATH
from marl_ray.weights import sender
from marl_ray.weights.deltas import Checksum
from marl_ray.weights.receiver import Acknowledgement, ReceiverLostError
from marl_ray.weights.sender import CastSource, WeightSender
from tests.learning.builders import save_tiny_policy, tiny_learner
from tests.learning.rank_processes import run_ranks

GENERATOR = ActorId("generator", PolicyId((0,)))


class Receivers:
    """A generator that adds up the checksum of the received weights."""

    members = ((GENERATOR, 1),)

    def __init__(self) -> None:
        self.failed: dict[ActorId, str] = {}
        self.received: list[tuple[str, torch.Tensor]] = []

    def run_stage(self, stage: str, info: dict[str, Any] | None = None) -> None:
        pass

    def update_weights(self, version: int, update: None) -> list[Acknowledgement]:
        checksum = Checksum()
        list(checksum.watch(self.received))
        return [Acknowledgement(GENERATOR, version, checksum.value)]


class TrainerEngine:
    """The part of vLLM's engines that iterates the source. The first send may lose a receiver after some tensors."""

    def __init__(self, source: Any, receivers: Receivers, events: list[str], lost_after: int | None) -> None:
        self._source, self._receivers, self._events, self._lost_after = source, receivers, events, lost_after

    def send_weights(self) -> None:
        self._receivers.received = []
        for name, tensor in self._source:
            self._events.append("tensor")
            self._receivers.received.append((name, tensor))
            if len(self._receivers.received) == self._lost_after:
                raise ReceiverLostError("lost")

    def shutdown(self) -> None:
        self._events.append("shutdown")


@pytest.mark.parametrize("lost_after", [None, 3])
def test_weights_are_read_once_after_the_device_has_finished(
    monkeypatch: pytest.MonkeyPatch, lost_after: int | None
) -> None:
    events: list[str] = []
    receivers: Any = Receivers()
    losses: Iterator[int | None] = iter([lost_after, None])
    monkeypatch.setattr(sender, "wait_for_device", lambda device: events.append(f"wait for {device}"))
    monkeypatch.setattr(
        WeightSender,
        "_make_trainer_engine",
        lambda self, session: TrainerEngine(self._summed, receivers, events, next(losses)),
    )
    model = load_policy(str(BASE_PATH), False, torch.device("cpu"))
    weight_sender = WeightSender(CastSource(model, torch.bfloat16, device=torch.device("cpu")), "nccl")
    count = len(weight_sender.source.shapes)
    result = weight_sender.update_weights(0, receivers)
    attempts = [] if lost_after is None else ["tensor"] * lost_after + ["shutdown"]
    assert events == ["wait for cpu", *attempts, *["tensor"] * count]
    assert {tensor.dtype for _, tensor in receivers.received} == {torch.bfloat16}
    assert result.sent_bytes == 2 * sum(parameter.numel() for parameter in model.parameters())


def test_a_deferred_checksum_equals_the_checksum_of_the_receiver() -> None:
    weights = [(f"w{i}", torch.randn(i, 3).to(torch.bfloat16)) for i in range(4)]
    weights.append(("low", torch.full((5,), -(2**62))))
    now, later = Checksum(), Checksum(deferred=True)
    list(now.watch(weights))
    list(later.watch(weights))
    assert now.value == later.value
    assert later.value == now.value


def gathered(ranks: RankGroup, folder: str) -> tuple[bool, set[torch.dtype]]:
    """Return whether casting before gathering gives the same bits as afterwards, and the dtypes that were gathered."""
    learner = tiny_learner(Path(folder), ranks=ranks)
    dtypes: set[torch.dtype] = set()
    full_tensor: Callable[[torch.Tensor], torch.Tensor] = sharding.full_tensor

    def recorded(tensor: torch.Tensor) -> torch.Tensor:
        dtypes.add(tensor.dtype)
        return full_tensor(tensor)

    whole = WeightGatherer(learner.policy, ranks)
    expected = whole.run_on_rank_zero(lambda: [(name, tensor.to(torch.bfloat16)) for name, tensor in whole])
    sharding.full_tensor = recorded
    narrow = WeightGatherer(learner.policy, ranks, torch.bfloat16, torch.device("cpu"))
    found = narrow.run_on_rank_zero(lambda: list(narrow))
    pairs = zip(found or (), expected or (), strict=True)
    return all(name == other and torch.equal(one, two) for (name, one), (other, two) in pairs), dtypes


@pytest.mark.slow
def test_shards_are_cast_before_they_are_gathered(tmp_path: Path) -> None:
    save_tiny_policy(tmp_path)
    assert run_ranks(2, gathered, str(tmp_path)) == [(True, {torch.bfloat16})] * 2
