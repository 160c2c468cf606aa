"""A short version of the fault trials: one cluster of three nodes, and one reference run."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.faults import actor_faults
from tests.end_to_end.faults.actor_faults import Fault, RunResult
from tests.end_to_end.faults.ray_cluster import RayCluster, ray_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def reference(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Results of a run without faults, with max_staleness 0."""
    folder = tmp_path_factory.mktemp("faults") / "reference"
    return actor_faults.run(folder, cluster, 0, None, random.Random(0))[0]


@pytest.mark.parametrize(("victim", "staleness"), [("learner", 0), ("generator", 2)])
def test_a_run_survives_the_loss_of_an_actor(
    victim: str, staleness: int, cluster: RayCluster, reference: RunResult, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    result, killed = actor_faults.run(folder, cluster, staleness, Fault(victim, 3, 0.3), random.Random(0))
    assert killed.startswith(victim)
    assert re.search(rf"{victim}( \d)? serves in its incarnation number 2", result.console), result.console
    actor_faults.check_result(result, folder, reference, staleness)
