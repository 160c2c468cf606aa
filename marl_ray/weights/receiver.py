"""The receiving side of a weight update, in a generator: what is done to the engine, on the engine's own thread.

An update has vLLM's four stages, here and everywhere under vLLM's names, and then the commit. Between the first stage
and the last the engine has no weights, and a step would end it: where one message brings all weights (the object
store), all stages are one command. NCCL and CUDA IPC are driven stage by stage by vLLM's engines in the learner, and
the engine's thread makes no step until the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from marl_ray.core.episode import WeightVersion
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId

TransferStage = Literal[
    "shutdown_weight_transfer_engine",
    "init_weight_transfer_engine",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
]
"""The first two leave and join a rendezvous; the others are an update."""


class StaleSenderError(UserError):
    """The sender is an earlier life of a learner that has been replaced."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What a generator serves from now on. `checksum` is that of the weights it received (`Checksum`)."""

    generator: ActorId
    version: WeightVersion
    checksum: int


@dataclass(frozen=True, slots=True)
class WeightSyncResult:
    """What became of a publication. `failed` are the generators that were lost in it, and why; `sent_bytes` the size of
    what was sent of the weights, which leaves the learner once, 0 where generators were only told a version; `changed`
    the share of values that differ from those sent before, None where nobody looked."""

    version: WeightVersion
    checksum: int
    failed: Mapping[ActorId, str]
    sent_bytes: int
    changed: float | None = None


def run_stage(engine: Any, stage: TransferStage, info: dict[str, Any] | None = None) -> None:
    """One stage, on all of the engine's workers."""
    if stage in ("shutdown_weight_transfer_engine", "start_weight_update"):
        engine.collective_rpc("abandon_weight_update")
    engine.collective_rpc(stage, args=() if info is None else (info,))


def apply_update(engine: Any, generator: ActorId, version: WeightVersion, weights: Any) -> Acknowledgement:
    """A whole update, from a `WeightUpdate`. Raises as `commit`."""
    run_stage(engine, "start_weight_update")
    run_stage(engine, "update_weights", {"weights": weights})
    run_stage(engine, "finish_weight_update")
    return set_version(engine, generator, version)


def set_version(engine: Any, generator: ActorId, version: WeightVersion) -> Acknowledgement:
    """What was received last is `version`. Raises RuntimeError when the engine's workers received different weights."""
    engine.set_weight_version(str(version))
    checksums = engine.collective_rpc("weight_checksum")
    if len(set(checksums)) > 1:
        raise RuntimeError(f"{generator}: its workers loaded different weights ({checksums})")
    return Acknowledgement(generator, int(engine.get_weight_version()), checksums[0])
