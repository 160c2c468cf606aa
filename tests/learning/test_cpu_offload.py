"""A learner that leaves its device between two turns: it leaves nothing there, and learns the same."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

from marl_ray.learning.cpu_offload import CpuOffload, _state, memory_in_use, release_cached_memory
from tests.learning.builders import tiny_learner
from tests.learning.test_critic import KINDS, Kind, batch, learner_of
from tests.learning.test_critic import some_groups as with_experience
from tests.learning.test_streaming import assert_same_state

CPU = torch.device("cpu")


def reachable(start: Any) -> Iterator[torch.Tensor]:
    """Every tensor that an object holds, gradients included."""
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
def test_all_that_it_keeps_goes_and_comes(tiny_policy: Path, kind: Kind) -> None:
    learner = learner_of(tiny_policy, kind, "td")
    parking = CpuOffload(learner)
    with parking.on_device():
        learner.update(batch(0, with_experience(4, kind=kind), 4))
    known = {tensor.untyped_storage().data_ptr() for tensor in _state(learner)}
    scalars = 0
    for tensor in reachable(learner):
        if tensor.untyped_storage().data_ptr() not in known:
            assert tensor.dim() == 0, "only the optimizers' clocks may stay where they are"
            scalars += 1
    assert scalars > 0
    moments = [t for optimizer in learner.optimizers() for s in optimizer.state.values() for t in s.values()]
    assert sum(tensor.dim() > 0 for tensor in moments) == 2 * scalars, "AdamW's two of each weight"


def test_a_reference_that_is_off_loaded_stays_so(tiny_policy: Path) -> None:
    learner = tiny_learner(tiny_policy, kl=0.1)
    assert learner.reference is not None
    assert len(learner.modules()) == 2
    learner.reference._offloaded = True
    assert learner.modules() == [learner.policy]


def test_turns_change_nothing_that_is_learned(tiny_policy: Path) -> None:
    always, by_turns = (learner_of(tiny_policy, "maac", "td") for _ in range(2))
    parking = CpuOffload(by_turns)
    for seed in range(3):
        groups = batch(seed, with_experience(4, seed, "maac"), 4)
        with parking.on_device():
            stats = by_turns.update(groups)
        assert stats == always.update(groups)
        assert all(parameter.grad is None for parameter in by_turns.policy.parameters())
    assert_same_state(by_turns, always)


def test_memory_that_was_given_back_is_not_counted() -> None:
    before = memory_in_use(CPU)
    blocks = [bytearray(b"x") * 2**16 for _ in range(1024)]
    assert memory_in_use(CPU) > before + 60 * 2**20
    del blocks
    release_cached_memory(CPU)
    assert memory_in_use(CPU) < before + 8 * 2**20
