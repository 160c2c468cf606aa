"""What memory the actors of a run will need, by part. Plain arithmetic on sizes; no torch, nothing started.

A learner's peak is the sum of what it always has (its process, weights, gradients, the optimizer's numbers, a reference
policy, a critic) and the larger of what a micro-batch and what an optimizer step need beside. An engine's is its
process, weights, keys and values, and the largest batch that it may compute.

Numbers that no arithmetic gives are constants below, with what they were measured by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marl_ray.cluster.machines import GIB, MIB
from marl_ray.config.schema import AgentConfig, Config

FLOAT = 4
"""Bytes of a learner's numbers."""
ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an engine's."""
LEARNER_PROCESS = 500e6
"""A learner's process with all that it imports, and no model: `python -m benchmarks.memory` measures it."""
GENERATOR_PROCESS = 760e6
"""A generator's, likewise."""
SANDBOX_PROCESS = 150e6
"""A sandbox worker's."""
CUDA_CONTEXT = 0.6 * GIB
"""What a process has on a GPU before its first tensor, kernels included: an assumption."""
CUDA_HOST = 2.5 * GIB
"""What a process with CUDA has in the host's memory beyond one without: an assumption."""
NCCL_BUFFERS = 2 * GIB
"""Two of 1 GiB each, which vLLM's transfer packs weights into, on both sides."""
SAMPLER_COPIES = 3
"""Of the logits of all sequences in flight, float32: as computed, processed, and as log-probabilities."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of an engine's model: of all weights, of a token's keys and values, and of what is computed of it."""

    parameters: int
    kv: int
    hidden: int
    intermediate: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class LearnerSize:
    """What a learner's model comes to: see `marl_ray.learning.rehearsal.Rehearsal`, whose fields these are; parameters
    without adapters; activations and logits in bytes."""

    parameters: int
    trained: int
    rows: int
    largest: int
    shared: int
    """Numbers that a rank gathers at a time, of a model that ranks share out."""
    activations: int
    logits: int


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes by part, in the host's memory and on a GPU of the actor's own; the order is that of the table."""

    host: Mapping[str, float]
    device: Mapping[str, float]

    @property
    def host_total(self) -> float:
        return sum(self.host.values())

    @property
    def device_total(self) -> float:
        return sum(self.device.values())


def learner_need(size: LearnerSize, config: Config, agent: AgentConfig, on_gpu: bool, wire: str, nccl: bool) -> Need:
    """Of one rank of a learner; `wire` is the type in which weights travel, with buffers of `nccl`."""
    ranks = agent.learner.ranks
    state = optimizer_state(config.optimizer.optimizer, size.trained, size.rows)
    parts = {
        "weights": FLOAT * (size.parameters + (size.trained if config.lora.rank else 0)) / ranks,
        "gradients": FLOAT * size.trained / ranks,
        "optimizer": state / ranks,
        "activations": float(size.activations),
        "logits": float(size.logits),
    }
    if ranks > 1:
        parts["gathered"] = FLOAT * float(size.shared)
    reference = FLOAT * size.parameters / ranks if agent.reference_kl_coef and not config.lora.rank else 0.0
    if config.credit.critic == "maac":
        parts["critic"] = parts["weights"] + parts["gradients"] + parts["optimizer"]
    offloaded = on_gpu and agent.learner.offload_reference
    if reference:
        parts["reference"] = reference
    if not on_gpu:
        published = {"published": ITEM[wire] * float(size.parameters)}
        return Need({"process": LEARNER_PROCESS, **parts, **published, **_copy(agent, wire, size.parameters)}, {})
    host = {"process": LEARNER_PROCESS + CUDA_HOST} | ({"reference": reference} if offloaded and reference else {})
    if agent.learner.cpu_offload:
        host |= {name: parts.pop(name) for name in ("weights", "gradients", "optimizer")}
    return Need(host, {"CUDA": CUDA_CONTEXT, **parts} | ({"buffers": NCCL_BUFFERS} if nccl else {}))


def _copy(agent: AgentConfig, wire: str, parameters: int) -> dict[str, float]:
    """What learner and engine keep of the weights as they were sent, where only what has changed is sent."""
    sparse = agent.learner.sparse_push
    keeps = ITEM[wire] == 2 if sparse is None else sparse
    return {"sent before": ITEM[wire] * float(parameters)} if keeps else {}


def optimizer_state(name: str, trained: int, rows: int) -> float:
    """Bytes of the optimizer's numbers."""
    return FLOAT * float(rows) if name == "adafactor" else 2 * FLOAT * float(trained)


def generator_need(size: ModelSize, agent: AgentConfig, max_length: int, on_gpu: float, wire: str, nccl: bool) -> Need:
    """Of one engine; on GPUs, of each of those that its weights are split over, `on_gpu` their memory. There it takes
    its share of the device whatever it needs, and what it needs no more than that for is room for keys and values."""
    settings, item = agent.generator, ITEM[wire]
    weights = item * float(size.parameters)
    batched = max(8192, max_length)
    batch = batched * (2 * size.intermediate + 4 * size.hidden) * item
    sampling = SAMPLER_COPIES * FLOAT * float(settings.max_num_seqs * size.vocabulary)
    if not on_gpu:
        cache = settings.kv_cache_mb * float(MIB)
        return Need(
            {
                "process": GENERATOR_PROCESS,
                "weights": weights,
                "KV cache": cache,
                "activations": float(batch),
                "logits": sampling,
                "published": weights,
                **_copy(agent, wire, size.parameters),
            },
            {},
        )
    share = settings.gpu_memory_utilization * on_gpu
    own = {"weights": weights / settings.tensor_parallel, "activations": float(batch), "logits": sampling}
    cache = share - CUDA_CONTEXT - sum(own.values())
    device = {"CUDA": CUDA_CONTEXT, **own, "KV cache": cache} | ({"buffers": NCCL_BUFFERS} if nccl else {})
    return Need({"process": GENERATOR_PROCESS + CUDA_HOST}, device)
