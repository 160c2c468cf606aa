"""Memory estimates of a run's actors, by part, from model configurations. No weights are read or created.

A learner's peak is its permanent state (process, weights, gradients, optimizer state, reference policy, critic) plus
its largest micro-batch. An engine's peak is its process, weights, KV cache and largest batch.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_ray.cluster.hardware import GIB, MIB
from marl_ray.config import AgentConfig, AlgorithmConfig
from marl_ray.core.errors import UserError
from marl_ray.core.extras import missing_module
from marl_ray.core.text import excerpt
from marl_ray.learning.arguments import (
    FLOAT_BYTES,
    MAX_UNREDUCED_BYTES,
    STREAM_CHUNK_BYTES,
    microbatch_tokens,
    narrows_frozen_matrices,
    wire_dtype,
)
from marl_ray.models.names import resolve_model

if TYPE_CHECKING:
    from marl_ray.cluster.placement_plan import AgentPlacement
    from marl_ray.config import LoraConfig
    from marl_ray.config.resource_sections import GeneratorResources, Residency
    from marl_ray.learning.memory_profile import MemoryProfile, MicroBatchShape

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes per parameter of an engine."""
LEARNER_PROCESS = 535e6
GENERATOR_PROCESS = 980e6
SANDBOX_PROCESS = 150e6
"""Memory of processes without a model. The first two are measured by `python -m benchmarks.memory_accuracy`."""
ALLOCATOR_SHARE = 0.5
ALLOCATOR_LIMIT = 500e6
"""CPU memory that the C allocator retains beside a learner's activations, as a share of the activations and in bytes.
Gradients occupy freed activation memory, so the next micro-batch needs new memory. Measured with
`benchmarks.memory_accuracy`: 0.48 and 0.55 of 570 and 330 MB; the limit is a guess. Ranks retain additional memory as
layers are gathered and freed: 0.4, 1.1 to 2.0 and 0.3 of 84, 204 and 540 MB of weights with two ranks."""
RELOAD_SHARE = 1.7
"""CPU memory of a weight reload, which the allocator retains, as a multiple of the engine's weights; measured."""
CUDA_CONTEXT = 0.6 * GIB
"""GPU memory of a process before its first tensor, including kernels; an assumption."""
CUDA_HOST = 2.5 * GIB
"""Additional host memory of a process with a GPU; an assumption."""
CUDA_GRAPHS = 1.0 * GIB
"""GPU memory of an engine's CUDA graphs, which a sleeping engine keeps as it keeps its CUDA context; an assumption."""
CHUNK = 1.0 * GIB
"""Least size of the chunks into which weights are packed for a transfer. A larger tensor is a chunk. Over NCCL it is
sent after it exceeds this size."""
KV_BLOCK = 16
"""Tokens in a block of an engine's KV cache on a GPU."""
SAMPLER_COPIES = 3
"""Float32 copies of the logits of all running sequences: raw, processed, and log-probabilities."""
HUB_TIMEOUT_S = 5.0
TYPICAL_PROMPT = 128
"""Assumed prompt length in tokens if no tasks or tokenizer are available."""


@dataclass(frozen=True, slots=True)
class LearnerSize:
    """Sizes of a learner's model, as in `MemoryProfile`, but `parameters` excludes adapters."""

    parameters: int
    trained: int
    rows: int
    shared: int
    """Parameters that a rank of a sharded model gathers at a time."""
    activations: int
    logits: int
    flops_per_token: float = 0.0
    """FLOPs of a training step."""
    largest: int = 0
    """Values of the largest parameter."""
    frozen_matrices: int = 0
    """Values of the matrices that LoRA freezes."""


class ProfilingFailed(UserError):
    """A model cannot be run on tensors without data."""


@dataclass(frozen=True, eq=False)
class ModelInfo:
    """One model of a run, with its transformers configuration and a typical prompt length in tokens."""

    config: Any
    trust_remote_code: bool
    prompt: int = TYPICAL_PROMPT

    @property
    def parameters(self) -> int:
        """Number of all parameters."""
        return sum(self._sizes)

    @property
    def largest(self) -> int:
        """Number of values of the largest parameter."""
        return max(self._sizes)

    @cached_property
    def _sizes(self) -> list[int]:
        from marl_ray.learning.memory_profile import parameter_sizes

        return parameter_sizes(self.config, self.trust_remote_code)

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return int(self.config.get_text_config().num_hidden_layers)

    @property
    def kv(self) -> int:
        """Number of values in the keys and values of one token."""
        text = self.config.get_text_config()
        heads = getattr(text, "num_attention_heads", 1)
        kv_heads = getattr(text, "num_key_value_heads", None) or heads
        width = getattr(text, "head_dim", None) or text.hidden_size // heads
        return 2 * text.num_hidden_layers * kv_heads * width

    def learner(self, training: AlgorithmConfig, lora: LoraConfig, agent: AgentConfig, on_gpu: bool) -> LearnerSize:
        """Return the sizes for a learner. Raises ProfilingFailed."""
        from marl_ray.learning.memory_profile import MicroBatchShape

        # The largest micro-batch has as many whole groups as fit, or a part of one group.
        new_tokens = agent.max_new_tokens
        completions = max(training.group_sizes)
        group_tokens = self.prompt + completions * new_tokens
        tokens = microbatch_tokens(training, on_gpu)
        groups_of_step = training.rollout_buffer_size * training.num_turns
        groups = min(tokens // group_tokens, groups_of_step)
        if groups == 0:
            groups = 1
            completions = max(1, (tokens - self.prompt) // new_tokens)
        shape = MicroBatchShape(groups, self.prompt, completions, new_tokens, accumulated=True)
        dtype = wire_dtype(agent, on_gpu)
        profile = _profile(self, shape, lora, training.gradient_checkpointing, dtype, on_gpu)
        base = profile.parameters
        if lora.rank:
            base -= profile.trained
        # While a layer computes, the next one is gathered.
        layer = (base - profile.embeddings) // max(1, profile.layers)
        return LearnerSize(
            parameters=base,
            trained=profile.trained,
            rows=profile.rows,
            shared=profile.embeddings + 2 * layer,
            activations=profile.activations,
            logits=profile.logits,
            flops_per_token=profile.flops / profile.tokens,
            largest=profile.largest,
            frozen_matrices=profile.frozen_matrices,
        )


def read_model_config(name: str, trust_remote_code: bool, fetch: bool) -> Any:
    """Return a model's transformers configuration from its folder, the Hub cache, or with `fetch` the Hub.

    Raises UserError.
    """
    if importlib.util.find_spec("torch") is None:  # the estimate runs the model on tensors without data
        raise missing_module("torch")
    from transformers import AutoConfig

    path = resolve_model(name, fetch=False)
    is_local = Path(path).is_dir()
    try:
        if not is_local and fetch:
            from huggingface_hub import hf_hub_download

            hf_hub_download(path, "config.json", etag_timeout=HUB_TIMEOUT_S)
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=not is_local)
    except Exception as error:  # transformers and huggingface_hub raise many types
        reason = excerpt(error, 160)
        raise UserError(f"model {name}: its config.json cannot be read: {reason}") from None


@cache
def _profile(
    model: ModelInfo, shape: MicroBatchShape, lora: LoraConfig, gradient_checkpointing: bool, dtype: str, on_gpu: bool
) -> MemoryProfile:
    from marl_ray.learning.memory_profile import profile_memory

    try:
        return profile_memory(model.config, shape, lora, gradient_checkpointing, dtype, on_gpu, model.trust_remote_code)
    except Exception as error:  # a model's own code may raise anything
        reason = excerpt(error, 160)
        raise ProfilingFailed(f"the model cannot be run on tensors without data: {reason}") from None


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by part, in host memory and on one GPU of the actor, in the order of the report's columns."""

    host: Mapping[str, float]
    device: Mapping[str, float]

    @property
    def host_total(self) -> float:
        return sum(self.host.values())


def estimate_learner_memory(
    size: LearnerSize,
    agent: AgentConfig,
    training: AlgorithmConfig,
    lora: LoraConfig,
    placement: AgentPlacement,
    residency: Residency | None,
    policies: int = 1,
    rank: int = 0,
    references: int = 0,
) -> MemoryEstimate:
    """Return the memory of one rank of a learner. Ranks share weights, gradients and optimizer state.

    `policies` is the number of policies that learn in one process: one frozen model with an adapter per policy.
    `references` is the number of parameters of all reference models.
    """
    on_gpu = placement.generator_gpus > 0
    wire = wire_dtype(agent, on_gpu)
    ranks = agent.learner.ranks
    trained = size.trained * policies
    weights = size.parameters + trained if lora.rank else size.parameters
    state = optimizer_state_bytes(training.optimizer, trained, size.rows * policies)
    parts = {
        "weights": FLOAT_BYTES * weights / ranks,
        "gradients": FLOAT_BYTES * trained / ranks,
        "optimizer": state / ranks,
        "activations": float(size.activations),
        "logits": float(size.logits),
    }
    if narrows_frozen_matrices(lora, ranks, on_gpu, DTYPE_BYTES[wire]):
        parts["weights"] -= (FLOAT_BYTES - DTYPE_BYTES[wire]) * size.frozen_matrices
    if ranks > 1:
        parts["gathered"] = 2 * FLOAT_BYTES * float(size.shared)  # weights, and gradients before the reduce-scatter
        if on_gpu and FLOAT_BYTES * trained <= MAX_UNREDUCED_BYTES:
            parts["gathered"] += FLOAT_BYTES * float(trained)
    reference = FLOAT_BYTES * references / ranks
    if training.critic == "maac" or training.critic_body == "own":
        parts["critic"] = parts["weights"] + parts["gradients"] + parts["optimizer"]
    offloaded = on_gpu and agent.learner.offload_reference
    if reference and not offloaded:
        parts["reference"] = reference
    if not on_gpu:
        gathered = FLOAT_BYTES * float(size.parameters) if ranks > 1 else 0.0
        retained = min(ALLOCATOR_SHARE * (size.activations + size.logits), ALLOCATOR_LIMIT)
        parts["allocator"] = retained + min(gathered, ALLOCATOR_LIMIT)
        parts["object store"] = DTYPE_BYTES[wire] * float(size.parameters)
        parts |= _snapshot(agent, wire, size.parameters * policies)
        return MemoryEstimate({"process": LEARNER_PROCESS, **parts}, {})
    host = {}
    if reference and offloaded:
        host["reference"] = reference
    if residency == "turns":  # the state that persists while the engine has the device
        models = 2 if "critic" in parts else 1
        host["offloaded"] = models * (parts["weights"] + parts["optimizer"]) + parts.get("reference", 0.0)
    if residency == "stream":
        host["offloaded"] = parts["optimizer"]
        largest_state = parts["optimizer"] * size.largest / max(1, size.parameters)
        parts["optimizer"] = min(parts["optimizer"], 2 * STREAM_CHUNK_BYTES + max(STREAM_CHUNK_BYTES, largest_state))
    if offloaded and ranks == 1 and reference > size.activations + size.logits:  # while groups are scored
        parts["reference"] = reference - size.activations - size.logits
    if agent.learner.cpu_offload:
        host |= {name: parts.pop(name) for name in ("weights", "gradients", "optimizer")}
    # The copy of trained weights and optimizer state while a checkpoint is written. Pinned memory is kept afterwards.
    copied = FLOAT_BYTES * trained / ranks + state / ranks
    host["checkpoint"] = 2 * copied if "critic" in parts else copied
    # Float32 values on their way from the files to the GPU, before the state above exists: a layer, or a weight.
    in_transit = FLOAT_BYTES * float(size.shared if ranks > 1 else size.largest)
    host["loading"] = max(0.0, in_transit - sum(host.values()))
    if rank == 0 or placement.transport == "ipc":  # over CUDA IPC every rank sends to the engine on its GPU
        parts["buffers"] = _send_buffers(placement.transport, DTYPE_BYTES[wire] * float(size.largest))
    return MemoryEstimate({"process": LEARNER_PROCESS + CUDA_HOST, **host}, {"CUDA": CUDA_CONTEXT, **parts})


def _send_buffers(transport: str, largest: float) -> float:
    """Return the GPU memory of a sender: over NCCL two chunks and their cast tensors, of which one chunk may have the
    largest tensor; over CUDA IPC the slab, and one tensor in float32 with its cast; for an adapter nothing."""
    if transport == "adapter":
        return 0.0
    chunk = max(CHUNK, largest)
    return 4 * chunk + 2 * largest if transport == "nccl" else chunk + 3 * largest


def _receive_buffers(transport: str, largest: float) -> float:
    """Return the GPU memory of a receiver: over NCCL the next chunk is allocated beside two earlier chunks; over CUDA
    IPC tensors are copied before they are loaded for the first time, and layers are loaded before they are copied; for
    an adapter nothing."""
    if transport == "adapter":
        return 0.0
    chunk = max(CHUNK, largest)
    return 3 * chunk + largest if transport == "nccl" else chunk + 2 * largest


def _snapshot(agent: AgentConfig, wire: str, parameters: int) -> dict[str, float]:
    """Return the copy of the last sent weights, which learner and engine keep if only changes are sent."""
    item = DTYPE_BYTES[wire]
    sends_changes = agent.learner.sparse_push
    if sends_changes is None:
        sends_changes = item == 2  # in 16 bits, most weights stay the same in a step
    return {"snapshot": item * float(parameters)} if sends_changes else {}


def optimizer_state_bytes(name: str, trained: int, rows: int) -> float:
    """Return the bytes of the optimizer state for `trained` parameters.

    Example:
        >>> optimizer_state_bytes("adamw", 1000, 70)
        8000.0
    """
    if name == "adafactor":
        return FLOAT_BYTES * float(rows)
    if name == "adamw_8bit":
        return 2 * (1 + FLOAT_BYTES / 256) * float(trained)  # one scale per block of 256
    return 2 * FLOAT_BYTES * float(trained)


def engine_batch(settings: GeneratorResources, gpu_memory: float, in_flight: int | None = None) -> tuple[int, int]:
    """Return the maximum sequences and tokens of an engine's step; on a GPU the limits are vLLM's for offline inference
    (`EngineArgs.get_batch_defaults`). `in_flight` is the number of sequences that a run samples at once."""
    limit = 256
    tokens = 8192
    if gpu_memory >= 70 * GIB:
        limit = 1024
        tokens = 16_384
    sequences = settings.max_num_seqs or min(limit, in_flight or limit)
    return sequences, tokens


def estimate_generator_memory(
    model: ModelInfo,
    agent: AgentConfig,
    max_length: int,
    gpu_memory: float,
    wire: str,
    transport: str,
    in_flight: int | None = None,
    shares_gpu: bool = False,
    adapters: float = 0.0,
) -> MemoryEstimate:
    """Return the memory of one engine, or of each GPU of a tensor-parallel engine.

    `gpu_memory` is the memory of one GPU in bytes, 0 on a CPU. On a GPU the engine uses `gpu_memory_utilization` of the
    device; the memory beside weights and batches becomes the KV cache. An engine that shares its GPU has a KV cache for
    as many sequences of `max_length` tokens as it samples at once, if this is less. `adapters` is the number of values
    of all adapters, for which vLLM reserves up to twice the memory: it rounds the rank up.
    """
    settings = agent.generator
    item = DTYPE_BYTES[wire]
    text = model.config.get_text_config()
    weights = item * (float(model.parameters) + 2 * adapters)
    cpu_cache = settings.kv_cache_mb * float(MIB)
    sequences, batched = engine_batch(settings, gpu_memory, in_flight)
    batched = max(batched, max_length)
    if not gpu_memory:  # the KV cache limits the batch
        batched = min(batched, int(cpu_cache / (item * model.kv)))
    intermediate = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    activations = float(batched * (3 * intermediate + 6 * text.hidden_size) * item)
    logits = SAMPLER_COPIES * FLOAT_BYTES * float(sequences * text.vocab_size)
    if not gpu_memory:
        host = {
            "process": GENERATOR_PROCESS,
            "weights": weights,
            "reload": RELOAD_SHARE * weights,
            "KV cache": cpu_cache,
            "activations": activations,
            "logits": logits,
            "object store": weights,
            **_snapshot(agent, wire, model.parameters),
        }
        return MemoryEstimate(host, {})
    device = {
        "CUDA": CUDA_CONTEXT,
        "graphs": CUDA_GRAPHS,
        "weights": weights / settings.tensor_parallel,
        "activations": activations,
        "logits": logits,
    }
    cache = settings.gpu_memory_utilization * gpu_memory - sum(device.values())
    if shares_gpu:
        blocks_per_sequence = math.ceil(max_length / KV_BLOCK)
        blocks = 1 + sequences * blocks_per_sequence  # vLLM leaves one empty
        cache = min(cache, blocks * KV_BLOCK * item * model.kv / settings.tensor_parallel)
    device["KV cache"] = cache
    device["buffers"] = _receive_buffers(transport, item * float(model.largest))
    return MemoryEstimate({"process": GENERATOR_PROCESS + CUDA_HOST}, device)
