"""Actors that select the GPUs of their bundle themselves, on a Ray that is told of GPUs which this machine lacks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
import ray

from marl_ray.cluster.placement_group import BundleGpus, PlacementGroups, reserve
from marl_ray.cluster.ray_connection import disconnect
from marl_ray.cluster.ray_private import init_on_localhost
from marl_ray.core.ids import ActorId, PolicyId
from tests.factories import make_config, plan_of

FIRST, SECOND = PolicyId((0,)), PolicyId((1,))


@pytest.fixture(scope="module")
def ray_with_gpus() -> Iterator[None]:
    init_on_localhost(num_cpus=16, num_gpus=4, include_dashboard=False)
    yield
    disconnect()


class _Probe:
    def visible(self, gpus: BundleGpus) -> str:
        gpus.make_visible()
        return os.environ["CUDA_VISIBLE_DEVICES"]


def _visible(placement: PlacementGroups, ids: list[ActorId]) -> dict[ActorId, set[str]]:
    probes = {id: ray.remote(_Probe).options(num_cpus=0, scheduling_strategy=placement.strategy(id)) for id in ids}
    actors = {id: probe.remote() for id, probe in probes.items()}
    results = {id: actors[id].visible.remote(placement.shared_gpus(id)) for id in ids}
    return {id: set(ray.get(result, timeout=60).split(",")) for id, result in results.items()}


@pytest.mark.slow
def test_engines_and_ranks_in_turns_see_the_gpus_of_their_bundle(ray_with_gpus: None) -> None:
    resources = {
        "colocate": True,
        "generator": {"tensor_parallel": 2, "cpus": 0.5},
        "learner": {"ranks": 4, "cpus": 0.1},
        "sandbox": {"workers": 1},
    }
    plan = plan_of(make_config(sections={"resources": resources}), cluster_has_gpus=True)
    placement = asyncio.run(reserve(plan, 60))
    engines = [ActorId("generator", FIRST), ActorId("generator", SECOND)]
    ranks = [ActorId("learner", SECOND, rank) for rank in range(4)]
    seen = _visible(placement, [*engines, *ranks])
    placement.release()
    assert seen[engines[0]] | seen[engines[1]] == {"0", "1", "2", "3"}
    assert [len(seen[engine]) for engine in engines] == [2, 2]
    assert [seen[rank] for rank in ranks[:2]] == [{gpu} for gpu in sorted(seen[engines[0]])]
    assert [seen[rank] for rank in ranks[2:]] == [{gpu} for gpu in sorted(seen[engines[1]])]
