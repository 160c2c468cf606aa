"""CPU offload: no state stays on the device, and training is unchanged."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

from marl_ray.learning.cpu_offload import CpuOffload, _state, memory_in_use, release_cached_memory
from tests.learning.builders import assert_same_state, tiny_learner
from tests.learning.critic_builders import KINDS, Kind, batch, learner_of
from tests.learning.critic_builders import some_groups as with_experience

CPU = torch.device("cpu")


def reachable(start: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor that an object references, gradients included."""
    seen, waiting = {id(start)}, [start]
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, torch.Tensor):
            yield thing
            waiting += [thing.grad] if thing.is_leaf and thing.grad is not None else []
        for inner in gc.get_referents(thing):
            if id(inner) not in seen and not isinstance(inner, type | ModuleType | FunctionType):
                seen.add(id(inner))
                waiting.append(inner)


@pytest.mark.parametrize("kind", KINDS)
def test_the_complete_state_moves_to_the_host_and_back(tiny_policy: Path, kind: Kind) -> None:
    learner = learner_of(tiny_policy, kind, "td")
    parking = CpuOffload(learner)
    with parking.on_device():
        learner.update(batch(0, with_experience(4, kind=kind), 4))
    known = {tensor.untyped_storage().data_ptr() for tensor in _state(learner)}
    scalars = 0
    for tensor in reachable(learner):
        if tensor.untyped_storage().data_ptr() not in known:
            assert tensor.dim() == 0, "only the optimizers' step counts stay on the CPU"
            scalars += 1
    assert scalars > 0
    moments = [t for optimizer in learner.optimizers() for s in optimizer.state.values() for t in s.values()]
    assert sum(tensor.dim() > 0 for tensor in moments) == 2 * scalars, "AdamW's two of each weight"


def test_an_offloaded_reference_policy_stays_offloaded(tiny_policy: Path) -> None:
    learner = tiny_learner(tiny_policy, kl=0.1)
    assert learner.reference is not None
    assert len(learner.modules()) == 2
    learner.reference._offloaded = True
    assert learner.modules() == [learner.policy]


def test_offloading_does_not_change_training(tiny_policy: Path) -> None:
    always, by_turns = (learner_of(tiny_policy, "maac", "td") for _ in range(2))
    parking = CpuOffload(by_turns)
    for seed in range(3):
        groups = batch(seed, with_experience(4, seed, "maac"), 4)
        with parking.on_device():
            stats = by_turns.update(groups)
        assert stats == always.update(groups)
        assert all(parameter.grad is None for parameter in by_turns.policy.parameters())
    assert_same_state(by_turns, always)


def test_released_memory_is_not_counted() -> None:
    before = memory_in_use(CPU)
    blocks = [bytearray(b"x") * 2**16 for _ in range(1024)]
    assert memory_in_use(CPU) > before + 60 * 2**20
    del blocks
    release_cached_memory(CPU)
    assert memory_in_use(CPU) < before + 8 * 2**20
