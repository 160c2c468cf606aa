"""Sections of a config for the resources of the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeGuard

from marl_ray.config.values import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorResources(Section):
    """Resources of one generation actor. Every policy has `replicas` of them."""

    cpus: PositiveFloat = 0.5
    """CPU cores that Ray reserves per actor. Rounded, this is also its number of threads (at least 1)."""
    gpus: NonNegativeFloat | None = None
    """GPUs per engine. null: tensor_parallel if the cluster has GPUs, else 0. A fraction: shared with the learner."""
    replicas: PositiveInt = 1
    """Engines per policy. Each prompt goes to the engine with the fewest sequences in flight."""
    tensor_parallel: PositiveInt = 1
    """GPUs over which the weights of one engine are sharded."""
    gpu_memory_utilization: Fraction = 0.85
    """Fraction of the GPU's memory for vLLM."""
    kv_cache_mb: PositiveInt = 256
    """KV cache of a CPU engine in MiB."""
    max_num_seqs: PositiveInt | None = None
    """Maximum number of sequences in flight per engine. null: 256 on a CPU; on a GPU vLLM's default for offline
    inference (1024 on GPUs of 70 GiB or more other than the A100, else 256)."""
    max_restarts: NonNegativeInt = 10
    """Maximum number of restarts of a lost actor per hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerResources(Section):
    """Resources of one learner per policy, consisting of one or several actors (ranks)."""

    ranks: PositiveInt = 1
    """Actors, on any nodes, that shard a policy's weights, gradients, optimizer state and training tokens."""
    cpus: PositiveFloat = 0.25
    """CPU cores that Ray reserves per rank. Rounded, this is also its number of threads (at least 1)."""
    gpus: NonNegativeFloat | None = None
    """GPUs per rank. null: 1 if the cluster has GPUs, else 0. A fraction: shared with the generator, with ranks 1."""
    cpu_offload: bool = False
    """Keep and update weights, gradients and optimizer state in host memory and load one layer at a time onto the GPU,
    which is slower. Requires ranks above 1; no effect without a GPU."""
    offload_reference: bool = False
    """Keep the reference policy in host memory and load it onto the GPU on demand, which uses less GPU memory and more
    time. No effect without a reference policy or without a GPU."""
    sparse_push: bool | None = None
    """Send generators only the changed weights where this is less data, for a copy of the sent weights in the host
    memory of the learner and every engine. null: if weights have 16 bits. No effect between GPUs: all are sent."""
    max_restarts: NonNegativeInt = 10
    """Maximum number of restarts of a lost learner per hour. It restarts from the last checkpoint and the batch log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResources(Section):
    """Pool of sandbox workers."""

    workers: PositiveInt = 2
    """Number of workers. Each runs one program at a time."""
    cpus: PositiveFloat = 0.25
    """CPU cores that Ray reserves per worker."""
    max_restarts: NonNegativeInt = 100
    """Maximum number of restarts of a lost worker per hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines(Section):
    """Timeouts in seconds. An actor that misses a deadline is treated as lost and restarted, at most max_restarts times
    per hour, and the call is repeated. The second miss of one call in a row ends the run, with an error that names the
    actor."""

    placement_s: PositiveFloat = 30.0
    """Reserving the requested resources on the cluster."""
    start_s: PositiveFloat = 900.0
    """Starting an actor or a sandbox worker, including loading the model and starting the engine."""
    rollout_s: PositiveFloat = 1800.0
    """Generating one group of completions."""
    learn_s: PositiveFloat = 1800.0
    """One update of a learner."""
    sync_s: PositiveFloat = 300.0
    """Sending new weights to the generators."""
    checkpoint_s: PositiveFloat = 600.0
    """Writing or reading a checkpoint or a model."""
    heartbeat_s: PositiveFloat = 60.0
    """Maximum time without a heartbeat from a generator, a learner or a busy sandbox worker."""


Residency = Literal["resident", "kv", "stream", "turns"]
"""How engines and learners share a device, in order of preference: the state that stays on it decreases."""


def takes_turns(residency: Residency | None) -> TypeGuard[Residency]:
    """Return whether engines release memory while a learner uses the device."""
    return residency not in (None, "resident")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesConfig(Section):
    """Resources requested from the cluster. Besides `model` and paths, only these settings differ between machines."""

    colocate: Literal["auto"] | bool | Residency = "auto"
    """Let generators and learners share GPUs. auto: if the cluster has too few GPUs for one per engine and one per
    learner rank. true: always. Both choose the first of the following that fits in memory. resident: everything stays
    on the GPU. kv: engines release their KV caches during updates, and learners update one after another. stream: as
    kv, and optimizer states are in host memory and pass through the GPU during an optimizer step. turns: engines
    release everything during updates, and learners' states are in host memory during generation. Except resident, these
    require max_staleness 0. resources.generator.gpus is then the share of a GPU for an engine (null: 1, or less with
    auto); engines whose shares add up to one are placed on one GPU. A policy has one learner rank per GPU of its
    engines, or one per GPU of the run. Without GPUs, all actors share the memory of one node."""
    generator: GeneratorResources = field(default_factory=GeneratorResources)
    learner: LearnerResources = field(default_factory=LearnerResources)
    sandbox: SandboxResources = field(default_factory=SandboxResources)
    deadlines: Deadlines = field(default_factory=Deadlines)

    @property
    def residency(self) -> Residency | None:
        """How engines and learners share devices; None if they do not, or if `auto` is not decided yet. An undecided
        `true` counts as `turns`."""
        if self.colocate is False or self.colocate == "auto":
            return None
        return "turns" if self.colocate is True else self.colocate
