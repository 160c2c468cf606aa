"""Engines with a fraction of a GPU start alone, because vLLM measures the memory of the whole GPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import ray

from marl_ray.actors import run_actors
from marl_ray.actors.handle import Deadline
from marl_ray.actors.learner_actor import LearnerActor
from marl_ray.actors.learner_group import LearnerGroup
from marl_ray.actors.make_groups import make_devices
from marl_ray.actors.run_actors import EvaluationActors
from marl_ray.actors.shared_device import DEDICATED, DividedGpus, SharedDevice
from marl_ray.config import Config, Deadlines
from marl_ray.core.ids import PolicyId
from tests.factories import make_config, plan_of

HALVES = {"generator": {"gpus": 0.5, "gpu_memory_utilization": 0.4}}
SOON = Deadline(5.0, "sync_s", "to release its device")


class Rank:
    """A serving rank whose calls take a moment."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def call(self, method: Any, *args: Any) -> Rank:
        self.name = method.__name__
        return self

    async def within(self, deadline: Deadline) -> None:
        await working(self.log, self.name)


class Ranks:
    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def serving(self) -> list[Rank]:
        return [self.rank]

    async def wait_ready(self, all_members: bool) -> list[Rank]:
        return self.serving()


async def working(log: list[str], name: str) -> None:
    log.append(f"{name} begins")
    await asyncio.sleep(0.01)
    log.append(f"{name} ends")


async def start(log: list[str], name: str, lock: Callable[[], AbstractAsyncContextManager[None]]) -> None:
    async with lock():
        await working(log, name)


def test_engines_start_one_at_a_time_while_learners_neither_start_nor_compute() -> None:
    async def scenario() -> list[str]:
        log: list[str] = []
        gpus = DividedGpus(SOON)
        ranks: Any = Ranks(Rank(log))
        learner = LearnerGroup(PolicyId((0,)), lambda _: ranks, 1, "ipc", Deadlines(), gpus)
        await asyncio.gather(
            learner.sees_path("/runs"),
            start(log, "learner", gpus.lock_for_learner_start),
            start(log, "engine 0", gpus.lock_for_engine_start),
            start(log, "engine 1", gpus.lock_for_engine_start),
            start(log, "late learner", gpus.lock_for_learner_start),
            learner.save("/runs"),
        )
        return log

    log = asyncio.run(scenario())
    assert log.index("learner begins") < log.index("sees_path ends"), "learners do not wait for each other"
    for engine in ("engine 0", "engine 1"):
        begin = log.index(f"{engine} begins")
        assert log[begin - 2 : begin + 2] == [
            *(f"{LearnerActor.release_memory.__name__} {part}" for part in ("begins", "ends")),
            f"{engine} begins",
            f"{engine} ends",
        ]
    assert log.index("engine 0 ends") < min(log.index(f"{name} begins") for name in ("late learner", "begin_save"))


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"generator": {"gpus": 0.25}, "learner": {"gpus": 0.25}}, DividedGpus),
        ({"generator": {"gpus": 1}, "learner": {"gpus": 1}}, type(DEDICATED)),
        ({"colocate": "turns", **HALVES}, SharedDevice),
        ({"colocate": "resident", **HALVES}, DividedGpus),
    ],
)
def test_policies_on_parts_of_one_gpu_share_its_lock(resources: dict[str, Any], expected: type) -> None:
    config = make_config("magrpo", {"resources": resources})
    plan = plan_of(config, cluster_has_gpus=True)
    devices = make_devices(config.policies, config.resources.deadlines, plan)
    assert [type(device) for device in devices.values()] == [expected, expected]
    assert len(set(devices.values())) == 1


@pytest.mark.parametrize(
    "resources",
    [
        {"colocate": "resident", **HALVES},
        {"colocate": "kv", **HALVES},
        {"generator": {"gpus": 0.25}, "learner": {"gpus": 0.25}},
    ],
)
def test_engines_with_caches_of_known_size_start_together(resources: dict[str, Any]) -> None:
    config = make_config("magrpo", {"resources": resources})
    sizes = dict.fromkeys(config.policies, 2**30)
    device = next(
        iter(
            make_devices(
                config.policies, config.resources.deadlines, plan_of(config, cluster_has_gpus=True), sizes
            ).values()
        )
    )
    log: list[str] = []

    async def scenario() -> None:
        await asyncio.gather(*(start(log, f"engine {number}", device.lock_for_engine_start) for number in range(2)))

    asyncio.run(scenario())
    assert [line.split()[-1] for line in log] == ["begins", "begins", "ends", "ends"]


@pytest.mark.parametrize(("gpus", "expected"), [(0.5, 1), (1.0, 2)])
def test_engines_of_an_evaluation_start_one_at_a_time_on_one_gpu(
    gpus: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting, most = 0, 0

    class Group:
        """A generator group that holds its lock while it starts."""

        def __init__(self, config: Config, agent: int, *others: Any) -> None:
            *_, devices, _ = others
            self.device = devices.get(config.policy_of(agent), DEDICATED)

        async def start(self) -> list[str]:
            nonlocal starting, most
            async with self.device.lock_for_engine_start():
                starting += 1
                most = max(most, starting)
                await asyncio.sleep(0)
                starting -= 1
            return []

    async def place(*_: Any) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(run_actors, "make_generator_group", Group)
    monkeypatch.setattr(run_actors, "reserve", place)
    monkeypatch.setattr(run_actors, "cluster_nodes", list)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 2.0})
    resources = {"generator": {"gpus": gpus}, "learner": {"gpus": 0.5 if gpus < 1 else 1}}
    config = make_config("magrpo", {"resources": resources, "agents": [{}, {"name": "bundled:other"}]})
    asyncio.run(EvaluationActors(config.resources, config.sandbox).start_generators([config, config]))
    assert most == expected


@pytest.mark.slow
def test_vllm_takes_memory_of_other_processes_for_the_engines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run vLLM's measurement: a learner that loads 12 GiB meanwhile costs the engine as much of its KV cache."""
    import torch
    from vllm.utils import mem_utils

    free, gib = [70], 2**30

    def measure(self: Any) -> None:
        self.free_memory, self.total_memory = free[0] * gib, 80 * gib

    monkeypatch.setattr(mem_utils.MemorySnapshot, "measure", measure)
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.accelerator, name, lambda *_: None)
    consumed = []
    for by_learner in (0, 12):
        free[0] = 70
        with mem_utils.memory_profiling(mem_utils.MemorySnapshot(device="cpu")) as result:
            free[0] -= 5 + by_learner
        consumed.append(result.non_kv_cache_memory / gib)
    assert consumed == [5, 17]
