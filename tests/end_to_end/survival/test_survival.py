"""A short version of the trials of loss: one cluster of three nodes, and one undisturbed run to compare with."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.survival import ends, trials
from tests.end_to_end.survival.cluster import Nodes, nodes
from tests.end_to_end.survival.ends import End
from tests.end_to_end.survival.trials import Left, Trial

PLACES_LEFT = """
import sys, time, ray
ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)
until = time.monotonic() + 60
while time.monotonic() < until:
    groups = [group["state"] for group in ray.util.placement_group_table().values()]
    if set(groups) <= {"REMOVED"} and ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"]:
        print("all free")
        break
    time.sleep(0.2)
"""
"""A driver of its own: it waits until the cluster has nothing reserved."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with nodes(3) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(cluster: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """What the run leaves, with max_staleness 0."""
    folder = tmp_path_factory.mktemp("survival") / "undisturbed"
    return trials.run(folder, cluster, 0, None, random.Random(0))[0]


@pytest.mark.parametrize(("victim", "staleness"), [("learner", 0), ("generator", 2)])
def test_a_run_survives(victim: str, staleness: int, cluster: Nodes, undisturbed: Left, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    found, struck = trials.run(folder, cluster, staleness, Trial(victim, 3, 0.3), random.Random(0))
    assert struck.startswith(victim)
    assert re.search(rf"{victim}( \d)? serves in its life number 2", found.said), found.said
    trials.check(found, folder, undisturbed, staleness)


def test_a_driver_is_killed_and_the_run_goes_on(undisturbed: Left, tmp_path: Path) -> None:
    """On a Ray of its own, of which nothing is left."""
    ends.trial(End("driver", "rollout", 3, 0.3), tmp_path / "run", undisturbed, "local")


def test_a_driver_is_killed_on_a_cluster(cluster: Nodes, tmp_path: Path) -> None:
    """Its actors end, and their places are free for the next."""
    process = trials.start(tmp_path / "run", cluster.address, 0)
    try:
        assert trials.wait(process, tmp_path / "run", 1)
        of_run = ends.family(process, cluster)
        process.kill()
        ends.check_end(End("driver", "rollout", 1, 0.0), process, tmp_path / "run", of_run)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(30)
    assert len(of_run) > 6, "two generators, two learners, two sandbox workers and their zygotes"
    ask = [sys.executable, "-c", PLACES_LEFT, cluster.address]
    assert subprocess.run(ask, capture_output=True, text=True, timeout=120).stdout.split() == ["all", "free"]
