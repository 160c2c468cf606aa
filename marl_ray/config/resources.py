"""Sections of a config: the resources that a run requests from the cluster, and its deadlines."""

from __future__ import annotations

from dataclasses import dataclass, field

from marl_ray.config.values import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorResources(Section):
    """Resources of one generation actor. Every policy has `replicas` of them."""

    cpus: PositiveFloat = 0.5
    """CPU cores that Ray reserves per actor. Rounded, this is also its number of threads (at least 1)."""
    gpus: NonNegativeFloat | None = None
    """GPUs per engine. null: tensor_parallel if the cluster has GPUs, else 0. A fraction shares one GPU with the
    policy's learner."""
    replicas: PositiveInt = 1
    """Engines per policy. Each prompt goes to the engine with the fewest sequences in flight."""
    tensor_parallel: PositiveInt = 1
    """GPUs over which the weights of one engine are sharded."""
    gpu_memory_utilization: Fraction = 0.85
    """Fraction of the GPU's memory for vLLM."""
    kv_cache_mb: PositiveInt = 256
    """KV cache of a CPU engine in MiB."""
    max_num_seqs: PositiveInt = 256
    """Maximum number of sequences in flight per engine."""
    max_restarts: NonNegativeInt = 10
    """Maximum number of restarts of a lost actor per hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerResources(Section):
    """Resources of one learner per policy, consisting of one or several actors (ranks)."""

    ranks: PositiveInt = 1
    """Actors that shard a policy's weights, gradients, optimizer state and training tokens. Each rank has the cpus and
    gpus below and may be on any node."""
    cpus: PositiveFloat = 0.25
    """CPU cores that Ray reserves per rank. Rounded, this is also its number of threads (at least 1)."""
    gpus: NonNegativeFloat | None = None
    """GPUs per rank. null: 1 if the cluster has GPUs, else 0. A fraction shares one GPU with the policy's generator and
    requires ranks 1."""
    cpu_offload: bool = False
    """Keep weights, gradients and optimizer state in host memory, update them there and load one layer at a time onto
    the GPU. This is slower. Requires ranks above 1; no effect without a GPU."""
    offload_reference: bool = False
    """Keep the reference policy in host memory and load it onto the GPU on demand, which uses less GPU memory and more
    time. No effect without a reference policy or without a GPU."""
    sparse_push: bool | None = None
    """Send generators only the changed weights where this is less data. The learner and every engine then keep a copy
    of the sent weights in host memory. null: enabled if weights are sent as messages (without GPUs) and have 16 bits.
    Between GPUs, all weights are sent."""
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
    per hour; after that the run fails with an error that names the actor."""

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
    """Maximum time without a heartbeat from a busy actor, independent of the duration of its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesConfig(Section):
    """Resources requested from the cluster. Besides `model` and paths, only these settings differ between machines."""

    colocate: bool = False
    """Let a policy's generator and learner alternate on one device: the engine sleeps during the update, and the
    learner's state is in host memory during generation. Requires max_staleness 0. resources.generator.gpus is then the
    share of a GPU for both together (null: 1); agents whose shares add up to one GPU are placed on one. Without GPUs,
    all actors share the memory of one node."""
    generator: GeneratorResources = field(default_factory=GeneratorResources)
    """Default generator resources of the agents."""
    learner: LearnerResources = field(default_factory=LearnerResources)
    """Default learner resources of the agents."""
    sandbox: SandboxResources = field(default_factory=SandboxResources)
    """Pool of sandbox workers."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    """Timeouts of remote operations."""
