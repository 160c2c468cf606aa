"""All parts of the race, in their order, with their limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gpu_race.ceilings import ceilings
from benchmarks.gpu_race.components import engine, learner, profile
from benchmarks.gpu_race.models import models
from benchmarks.gpu_race.peer_comlrl import comlrl, comlrl_reference
from benchmarks.gpu_race.peer_trl import trl
from benchmarks.gpu_race.race import Race
from benchmarks.gpu_race.training import pair, reference, tags


@dataclass(frozen=True, slots=True)
class Peer:
    """A package that a part compares with."""

    name: str
    package: str
    requirement: str
    """The requirement that a row names if the package is not installed."""


COMLRL = Peer("CoMLRL", "comlrl", "comlrl==1.4.3")
TRL = Peer("TRL", "trl", "trl[vllm]==1.16.0")


@dataclass(frozen=True, slots=True)
class Part:
    """A part's function, its limit in seconds, and the peer that it runs, if any."""

    run: Callable[[Race], None]
    limit_s: float
    peer: Peer | None = None


FIRST_CALL = {
    "ceilings": Part(ceilings, 25.0),
    "models": Part(models, 60.0),
    "learner": Part(learner, 60.0),
    "engine": Part(engine, 85.0),
    "pair": Part(pair, 270.0),
    "comlrl": Part(comlrl, 80.0, COMLRL),
}
SECOND_CALL = {
    "reference": Part(reference, 235.0),
    "comlrl_reference": Part(comlrl_reference, 210.0, COMLRL),
    "trl": Part(trl, 95.0, TRL),
    "profile": Part(profile, 40.0),
}
FURTHER = {"tags": Part(tags, 280.0)}
"""Parts of neither call, for `--only`."""
PARTS = FIRST_CALL | SECOND_CALL | FURTHER


def run_part(race: Race, name: str) -> None:
    """Run a part in this process. If its peer is not installed, add a row which says so."""
    from importlib.metadata import PackageNotFoundError, version

    part = PARTS[name]
    if part.peer is not None:
        try:
            version(part.peer.package)
        except PackageNotFoundError:
            race.add(name, "", failed=not_installed(part.peer))
            return
    part.run(race)


def not_installed(peer: Peer) -> str:
    return (
        f"{peer.name} is not installed: pip install '{peer.requirement}' into an environment, "
        "and name its interpreter with --peers-python"
    )
