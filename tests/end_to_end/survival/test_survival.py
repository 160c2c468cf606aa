"""A short version of the trials of loss: one cluster of three nodes, and one undisturbed run to compare with."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.survival import trials
from tests.end_to_end.survival.cluster import Nodes, nodes
from tests.end_to_end.survival.trials import Left, Trial


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
    assert re.search(rf"{victim}( \d)? serves in its incarnation number 2", found.said), found.said
    trials.check(found, folder, undisturbed, staleness)
