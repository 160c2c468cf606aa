"""What memory the actors of a run will need, by part. Plain arithmetic on sizes; no torch, nothing started.

A learner's peak is the sum of what it always has (its process, weights, gradients, the optimizer's numbers, a reference
policy, a critic) and the larger of what a micro-batch and what an optimizer step need beside. An engine's is its
process, weights, keys and values, and the largest batch that it may compute.

Numbers that no arithmetic gives are constants below, with what they were measured by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marl_ray.cluster.hardware import GIB, MIB
from marl_ray.config import AgentConfig, Config

FLOAT = 4
"""Bytes of a learner's numbers."""
ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an engine's."""
LEARNER_PROCESS = 535e6
"""A learner's process with all that it imports, and no model: `python -m benchmarks.memory_accuracy` measures it."""
KEPT, KEPT_MOST = 0.5, 500e6
"""What the C library's allocator holds beside a learner's activations on a CPU, as a part of them and in bytes:
gradients lie where activations were, and those of the next micro-batch do not fit between them. Measured likewise, 0.48
and 0.55 of 570 and 330 MB; the bound is a guess. Of ranks it holds as much as the weights besides, as layers are
gathered and freed again: measured 0.4, 1.1 to 2.0 and 0.3 of 84, 204 and 540 MB, of two ranks."""
GENERATOR_PROCESS = 980e6
"""A generator's, likewise."""
RELOAD = 1.7
"""Of an engine's weights on a CPU: what a reload has beside them, and the allocator keeps after it; measured."""
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
    """What a learner's model comes to: see `marl_ray.learning.memory_profile.MemoryProfile`, whose fields these are; parameters
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
class MemoryEstimate:
    """Bytes by part, in the host's memory and on a GPU of the actor's own; the order is that of the table."""

    host: Mapping[str, float]
    device: Mapping[str, float]

    @property
    def host_total(self) -> float:
        return sum(self.host.values())

    @property
    def device_total(self) -> float:
        return sum(self.device.values())


def estimate_learner_memory(
    size: LearnerSize, config: Config, agent: AgentConfig, on_gpu: bool, wire: str, nccl: bool, policies: int = 1
) -> MemoryEstimate:
    """Of each of a learner's ranks, which share out weights, gradients and the optimizer's numbers; `wire` is the
    type in which weights travel, with buffers of `nccl`. `policies` learn in one process, on one model that is frozen,
    and have adapters of their own."""
    ranks, trained = agent.learner.ranks, size.trained * policies
    state = optimizer_state_bytes(config.optimizer.optimizer, trained, size.rows * policies)
    parts = {
        "weights": FLOAT * (size.parameters + (trained if config.lora.rank else 0)) / ranks,
        "gradients": FLOAT * trained / ranks,
        "optimizer": state / ranks,
        "activations": float(size.activations),
        "logits": float(size.logits),
    }
    if ranks > 1:
        parts["gathered"] = 2 * FLOAT * float(size.shared)  # weights, and gradients before they are shared out
    reference = FLOAT * size.parameters / ranks if agent.reference_kl_coef and not config.lora.rank else 0.0
    if config.credit.critic == "maac":
        parts["critic"] = parts["weights"] + parts["gradients"] + parts["optimizer"]
    offloaded = on_gpu and agent.learner.offload_reference
    if reference and not offloaded:
        parts["reference"] = reference
    if not on_gpu:
        gathered = FLOAT * float(size.parameters) if ranks > 1 else 0.0
        parts["allocator"] = min(KEPT * (size.activations + size.logits), KEPT_MOST) + min(gathered, KEPT_MOST)
        parts["published"] = ITEM[wire] * float(size.parameters)
        return MemoryEstimate(
            {"process": LEARNER_PROCESS, **parts, **_copy(agent, wire, size.parameters * policies)}, {}
        )
    host = {"process": LEARNER_PROCESS + CUDA_HOST} | ({"reference": reference} if reference and offloaded else {})
    if config.resources.colocate:  # all that stays from one batch to the next, while the engine has the device
        models = 2 if "critic" in parts else 1
        host["parked"] = models * (parts["weights"] + parts["optimizer"]) + parts.get("reference", 0.0)
    if agent.learner.cpu_offload:
        host |= {name: parts.pop(name) for name in ("weights", "gradients", "optimizer")}
    return MemoryEstimate(host, {"CUDA": CUDA_CONTEXT, **parts} | ({"buffers": NCCL_BUFFERS} if nccl else {}))


def _copy(agent: AgentConfig, wire: str, parameters: int) -> dict[str, float]:
    """What learner and engine keep of the weights as they were sent, where only what has changed is sent."""
    sparse = agent.learner.sparse_push
    keeps = ITEM[wire] == 2 if sparse is None else sparse
    return {"sent before": ITEM[wire] * float(parameters)} if keeps else {}


def optimizer_state_bytes(name: str, trained: int, rows: int) -> float:
    """Bytes of the optimizer's numbers."""
    if name == "adafactor":
        return FLOAT * float(rows)
    if name == "adamw_8bit":
        return 2 * (1 + FLOAT / 256) * float(trained)  # a scale for every 256
    return 2 * FLOAT * float(trained)


def estimate_generator_memory(
    size: ModelSize, agent: AgentConfig, max_length: int, on_gpu: float, wire: str, nccl: bool
) -> MemoryEstimate:
    """Of one engine; on GPUs, of each of those that its weights are split over, `on_gpu` their memory. There it takes
    its share of the device whatever it needs, and what it needs no more than that for is room for keys and values."""
    settings, item = agent.generator, ITEM[wire]
    weights = item * float(size.parameters)
    room = settings.kv_cache_mb * float(MIB)
    batched = max(8192, max_length)
    if not on_gpu:  # keys and values for more there are not
        batched = min(batched, int(room / (item * size.kv)))
    batch = float(batched * (3 * size.intermediate + 6 * size.hidden) * item)
    sampling = SAMPLER_COPIES * FLOAT * float(settings.max_num_seqs * size.vocabulary)
    if not on_gpu:
        parts = {"process": GENERATOR_PROCESS, "weights": weights, "reload": RELOAD * weights, "KV cache": room}
        parts |= {"activations": batch, "logits": sampling, "published": weights}
        return MemoryEstimate({**parts, **_copy(agent, wire, size.parameters)}, {})
    share = settings.gpu_memory_utilization * on_gpu
    own = {"weights": weights / settings.tensor_parallel, "activations": batch, "logits": sampling}
    cache = share - CUDA_CONTEXT - sum(own.values())
    device = {"CUDA": CUDA_CONTEXT, **own, "KV cache": cache} | ({"buffers": NCCL_BUFFERS} if nccl else {})
    return MemoryEstimate({"process": GENERATOR_PROCESS + CUDA_HOST}, device)
