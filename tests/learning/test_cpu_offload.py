"""CPU offload: no state stays on the device, and training is unchanged."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.core.ids import ActorId, PolicyId
from marl_ray.learning.cpu_offload import CpuOffload, HostBuffers, _state, memory_in_use, release_cached_memory
from marl_ray.learning.ranks import RankGroup
from marl_ray.learning.sharding import WeightGatherer, local_tensor, refresh_shards
from tests.actors.helpers import learner_arguments
from tests.learning.builders import assert_same_state, tiny_learner
from tests.learning.critic_builders import KINDS, Kind, batch, learner_of
from tests.learning.critic_builders import some_groups as with_experience
from tests.learning.rank_processes import run_ranks

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
    assert all(tensor.untyped_storage().data_ptr() in known for tensor in reachable(learner))
    states = [state for optimizer in learner.optimizers() for state in optimizer.state.values()]
    assert states
    assert all(set(state) == {"step", "exp_avg", "exp_avg_sq"} for state in states)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_step_counts_move_where_the_optimizer_reads_them(tiny_policy: Path, tmp_path: Path, optimizer: str) -> None:
    """Compare with torch's rule for a checkpoint that is loaded onto a device; the meta device stands in for CUDA."""
    trained, resumed = (tiny_learner(tiny_policy, optimizer=optimizer) for _ in range(2))
    trained.update(batch(0, with_experience(4), 4))
    trained.save(str(tmp_path / "saved"))
    CpuOffload(resumed)
    resumed.load(str(tmp_path / "saved"), 1)
    moved, own = {id(tensor) for tensor in _state(resumed)}, resumed.optimizer
    groups = own.state_dict()["param_groups"]
    for number, parameter in enumerate(own.param_groups[0]["params"]):
        for key, value in own.state[parameter].items():
            loaded = own._process_value_according_to_param_policy(parameter.to("meta"), value, number, groups, key)
            assert (id(value) in moved) == loaded.is_meta, key
    assert any("step" in state for state in own.state.values())


@pytest.mark.parametrize(("method", "arguments"), [("load", ("folder", 1)), ("update", (None,)), ("finish", (None, 0))])
def test_state_is_replaced_only_on_the_device(method: str, arguments: tuple[Any, ...]) -> None:
    """Check that no state is made outside of `on_device`.

    A parameter whose shard is offloaded still has the GPU as its device, and `load_state_dict` puts the optimizer's
    state there. The state would stay on the GPU while the engines run.
    """
    is_on_device = []

    class Offload:
        inside = False

        @contextmanager
        def on_device(self) -> Iterator[None]:
            self.inside = True
            yield
            self.inside = False

    actor = LearnerActor(ActorId("learner", PolicyId((0,))), learner_arguments(), residency="turns")
    actor.cpu_offload = offload = Offload()  # type: ignore[assignment]
    actor.learner = Mock(**{f"{method}.side_effect": lambda *_: is_on_device.append(offload.inside)})
    getattr(actor, method)(*arguments)
    assert is_on_device == [True]


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


def test_host_buffers_are_allocated_once_and_hold_the_exact_values() -> None:
    tied = torch.nn.Parameter(torch.randn(4, 3).t())
    half = torch.randn(5).to(torch.bfloat16)
    expected = [tied.detach().clone(), half.clone()]
    host = HostBuffers(pinned=False)
    places = []
    for _ in range(2):
        for tensor in (tied, tied, half):
            host.offload(tensor)
        places.append([tensor.data_ptr() for tensor in (tied, half)])
        for tensor, value in zip((tied, half), expected, strict=True):
            assert torch.equal(tensor.detach(), value)
            tensor.data = tensor.data.clone().add_(1)  # on the device, where the state is trained
            value.add_(1)
    assert places[0] == places[1]
    assert len(host._buffers) == 2
    del tied, tensor
    assert len(host._buffers) == 1, "buffers of replaced optimizer state are freed"


def test_constant_tensors_are_copied_to_the_host_once() -> None:
    frozen = torch.nn.Parameter(torch.randn(5), requires_grad=False)
    expected = frozen.detach().clone()
    host = HostBuffers(pinned=False)
    for _ in range(3):
        host.offload(frozen, is_constant=True)
        assert torch.equal(frozen, expected)
        frozen.data = torch.full_like(frozen, torch.nan)  # a device whose copy back would be seen
    assert len(host._buffers) == 1


def offloaded_shards(ranks: RankGroup, folder: str) -> bool:
    """Move the shards of a learner to buffers and back; return whether its weights and the next update are the same."""
    moved, kept = (tiny_learner(Path(folder), ranks=ranks) for _ in range(2))
    host = HostBuffers(pinned=False)
    for step in range(2):
        for tensor in map(local_tensor, _state(moved)):
            host.offload(tensor)
        refresh_shards(moved.policy)
        whole = WeightGatherer(moved.policy, ranks, torch.float32, CPU)
        same = whole.run_on_rank_zero(lambda source=whole: [t.clone() for _, t in source])
        plain = WeightGatherer(kept.policy, ranks)
        expected = plain.run_on_rank_zero(lambda source=plain: [t.clone() for _, t in source])
        if not all(map(torch.equal, same or (), expected or ())):
            return False
        for tensor in map(local_tensor, _state(moved)):
            tensor.data = tensor.data.clone()
        refresh_shards(moved.policy)
        groups = batch(step, with_experience(4, step), 4)
        if moved.update(groups) != kept.update(groups):
            return False
    return True


@pytest.mark.slow
def test_shards_of_several_ranks_move_too(tiny_policy: Path) -> None:
    assert run_ranks(2, offloaded_shards, str(tiny_policy)) == [True, True]


def test_released_memory_is_not_counted() -> None:
    before = memory_in_use(CPU)
    blocks = [bytearray(b"x") * 2**16 for _ in range(1024)]
    assert memory_in_use(CPU) > before + 60 * 2**20
    del blocks
    release_cached_memory(CPU)
    assert memory_in_use(CPU) < before + 8 * 2**20
