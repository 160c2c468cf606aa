"""Settings of what a run asks of the cluster; see `marl_ray.config.schema` for all others."""

from __future__ import annotations

from dataclasses import dataclass, field

from marl_ray.config.values import NotNegative, NotNegativeInt, Positive, PositiveInt, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorResources:
    """One generation actor; every policy has `replicas` of them."""

    cpus: Positive = 0.5
    """Cores Ray sets aside for one, and (rounded, at least 1) its threads."""
    gpus: NotNegative | None = None
    """GPUs of one engine; null: tensor_parallel if the cluster has GPUs, else 0. A fraction shares one GPU
    with the policy's learner."""
    replicas: PositiveInt = 1
    """Engines a policy has; each prompt goes to the one with the fewest sequences in flight."""
    tensor_parallel: PositiveInt = 1
    """GPUs one engine's weights are split over."""
    gpu_memory_utilization: Share = 0.85
    """Share of the GPU's memory for vLLM."""
    kv_cache_mb: PositiveInt = 256
    """KV cache of a CPU engine."""
    max_num_seqs: PositiveInt = 256
    """Sequences in flight in one engine."""
    max_restarts: NotNegativeInt = 10
    """How often within an hour one that was lost is started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerResources:
    """One learner a policy, of one actor or several."""

    ranks: PositiveInt = 1
    """Actors that share out one policy's weights, gradients and optimizer, and the tokens that are learned from; each
    has the cpus and gpus below, on any node. 1: one actor has all."""
    cpus: Positive = 0.25
    """Cores Ray sets aside for one rank, and (rounded, at least 1) its threads."""
    gpus: NotNegative | None = None
    """GPUs of one rank; null: 1 if the cluster has GPUs, else 0. A fraction shares one GPU with the policy's
    generator, and needs ranks 1."""
    cpu_offload: bool = False
    """Keep weights, gradients and the optimizer's numbers in the host's memory, where the optimizer works; the GPU has
    a layer at a time, which takes longer. Needs ranks above 1; where there is no GPU, it changes nothing."""
    offload_reference: bool = False
    """Keep the reference policy in the host's memory, and bring it to the GPU where it is asked: less of the GPU's
    memory, more time. Where there is no reference, or no GPU, it changes nothing."""
    sparse_push: bool | None = None
    """Send generators only what has changed in the weights, where that is less. For that the learner and each engine
    keep a copy of the weights as sent in the host's memory. null: where weights are sent as messages (without GPUs)
    and have 16 bits. Between GPUs everything is sent."""
    max_restarts: NotNegativeInt = 10
    """How often within an hour one that was lost is started again, from the last checkpoint and the batch log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResources:
    """The pool of sandbox workers."""

    workers: PositiveInt = 2
    """Workers, each of which runs one program at a time."""
    cpus: Positive = 0.25
    """Cores Ray sets aside for one."""
    max_restarts: NotNegativeInt = 100
    """How often within an hour one that was lost is started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds after which a wait is over. An actor that did not answer is taken for lost and replaced, as long as
    max_restarts allows; else the run ends with a line that names it."""

    placement_s: Positive = 30.0
    """For the cluster to set aside what the run asks of it."""
    start_s: Positive = 900.0
    """For an actor to start, sandbox workers included: models are loaded, engines started."""
    rollout_s: Positive = 1800.0
    """For one group of completions of a generator."""
    learn_s: Positive = 1800.0
    """For a learner's update."""
    sync_s: Positive = 300.0
    """For new weights to be in the generators."""
    checkpoint_s: Positive = 600.0
    """For a learner to write or read a checkpoint or a model."""
    heartbeat_s: Positive = 60.0
    """For a sign of life of an actor that works, however long the work takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcesConfig:
    """What the run asks of the cluster: besides `model` and paths all that differs between machines."""

    colocate: bool = False
    """One device for a policy's generator and learner, by turns: the engine sleeps while the learner learns, whose
    state is in the host's memory while the engine plays. For max_staleness 0. resources.generator.gpus is then the
    share of a GPU that both have together (null: 1); agents whose shares make up a GPU are on one. Without GPUs all
    share the memory of one node."""
    generator: GeneratorResources = field(default_factory=GeneratorResources)
    """Of agents that name none of their own."""
    learner: LearnerResources = field(default_factory=LearnerResources)
    """Of agents that name none of their own."""
    sandbox: SandboxResources = field(default_factory=SandboxResources)
    """The pool of sandbox workers."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    """Seconds after which a wait is over: who was waited for is replaced, or the run ends with a line that names it."""
