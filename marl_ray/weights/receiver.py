"""The receiving side of a weight update in a generation actor: commands to the engine, on the engine's own thread.

An update has vLLM's stages, under vLLM's names, followed by a new version. With the object store all stages are one
command. NCCL and CUDA IPC are driven stage by stage by vLLM's trainer-side engines in the learner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from marl_ray.core.episode import WeightVersion
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId
from marl_ray.weights.version_labels import version_of, with_version

TransferStage = Literal[
    "shutdown_weight_transfer_engine",
    "init_weight_transfer_engine",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
]
"""The first two stages leave and join a rendezvous; the other three are an update."""


class StaleSenderError(UserError):
    """An update from an earlier incarnation of a learner that has been replaced."""


class ReceiverLostError(RuntimeError):
    """A generator was lost during an update, so the transfer must be repeated for the others."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The version that a generator serves from now on, and the checksum of the weights that it received."""

    generator: ActorId
    version: WeightVersion
    checksum: int


@dataclass(frozen=True, slots=True)
class WeightSyncResult:
    """The result of a weight update, or of a new version number for unchanged weights. `changed` is the fraction of
    values that differ from the previous update; None if they were not compared."""

    version: WeightVersion
    checksum: int
    failed: Mapping[ActorId, str]
    """Lost generators and the reason."""
    sent_bytes: int
    changed: float | None = None
    logprob_gap: float | None = None
    """Mean absolute difference of generators and learner in nats per token; None if they were not compared."""


def run_stage(engine: Any, stage: TransferStage, info: dict[str, Any] | None = None) -> bool:
    """Run one stage on all workers of the engine. Return False if it was aborted because another process is lost."""
    if stage in ("shutdown_weight_transfer_engine", "start_weight_update"):
        # The previous sender may have been lost during an update.
        engine.collective_rpc("abandon_weight_update")
    if info is None:
        engine.collective_rpc(stage)
        return True
    engine.collective_rpc(stage, args=(info,))
    return not any(engine.collective_rpc("transfer_aborted"))  # of each worker


def update_weights(
    engine: Any, generator: ActorId, version: WeightVersion, update: Any, adapter: int = 0
) -> Acknowledgement:
    """Load a `WeightUpdate`, unless it is None, and label the weights received last as `version`. `adapter` is the
    number of the policy's adapter in the engine. Raises RuntimeError if the engine's workers differ."""
    if update is not None and update.adapter_scale is not None:
        engine.collective_rpc("load_adapter", args=(adapter, update))
    elif update is not None:
        run_stage(engine, "start_weight_update")
        run_stage(engine, "update_weights", {"weights": update})
        run_stage(engine, "finish_weight_update")
    label = with_version(engine.get_weight_version(), adapter, version)
    engine.set_weight_version(label)  # of all tokens that are sampled from now on
    checksums = engine.collective_rpc("weight_checksum", args=(adapter,))
    if len(set(checksums)) > 1:
        raise RuntimeError(f"{generator}: its workers loaded different weights ({checksums})")
    return Acknowledgement(generator, version_of(engine.get_weight_version(), adapter), checksums[0])
