"""Time estimates of a training step: a roofline model (Williams, Waterman and Patterson, 2009) of device data sheets.

Decoding reads all weights and the KV cache per token of each running sequence, so it is bound by memory bandwidth until
there are enough sequences to be bound by FLOP/s. Prefill and training are bound by FLOP/s.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from marl_ray.cluster.capacity_plan import CapacityPlan, ModelInfos
from marl_ray.cluster.hardware import CPU_CORE, DeviceSpec
from marl_ray.cluster.memory_estimate import DTYPE_BYTES, ModelInfo, ProfilingFailed
from marl_ray.cluster.placement_plan import AgentPlacement
from marl_ray.config import Config
from marl_ray.config.budget import nodes_per_episode
from marl_ray.core.ids import PolicyId
from marl_ray.learning.arguments import wire_dtype

DECODE, PREFILL, TRAIN = 0.6, 0.5, 0.4
"""Achieved fractions of the data-sheet values: of the memory bandwidth in decoding, of the FLOP/s in prefill and in
forward and backward passes. Assumptions."""
WEIGHT_SYNC = 5e9
"""Bytes per second of a weight transfer."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """Seconds of each phase of a step for one policy, and tokens per second of rollout and training."""

    rollout_s: float
    learn_s: float
    sync_s: float
    sampled_per_s: float
    learned_per_s: float

    @property
    def step_s(self) -> float:
        """Seconds of the whole step if its phases do not overlap."""
        return self.rollout_s + self.learn_s + self.sync_s


def estimate_throughputs(config: Config, models: ModelInfos, plan: CapacityPlan) -> dict[PolicyId, Throughput]:
    """Return the throughput of each policy whose model and devices are known."""
    estimates = {}
    for policy in config.policies if plan.placed else ():
        on_gpu, model = (
            plan.plan.agents[policy.number].generator_gpus > 0,
            models.get(config.agents[policy.number].name),
        )
        node = next(actor.node for actor in plan.placed or () if actor.id.policy == policy)
        device = plan.nodes[node].device if on_gpu else CPU_CORE
        if model is not None and device is not None:
            with suppress(ProfilingFailed):
                estimates[policy] = _estimate(config, policy, model, device, plan.plan.agents[policy.number])
    return estimates


def _estimate(
    config: Config, policy: PolicyId, model: ModelInfo, device: DeviceSpec, placement: AgentPlacement
) -> Throughput:
    """Return the throughput of one policy. Raises ProfilingFailed."""
    agent, on_gpu, turns = config.agents[policy.number], placement.generator_gpus > 0, config.rollout.num_turns
    engine, learner, size = agent.generator, agent.learner, model.engine()
    flops_per_token = model.learner(config, agent, on_gpu).flops_per_token
    # Numbers of devices over all replicas and ranks. On a CPU, a device is a core.
    engines = engine.replicas * (placement.generator_gpus if on_gpu else max(1, round(engine.cpus)))
    ranks = learner.ranks * (placement.learner_gpus if on_gpu else max(1, round(learner.cpus)))
    learners = ranks / len(config.learner_policies(policy))

    groups = config.rollout.rollout_buffer_size * nodes_per_episode(config)
    completions, new = config.rollout.num_generations, agent.max_new_tokens
    item = DTYPE_BYTES[wire_dtype(agent, on_gpu)]
    sequences = max(1, min(engine.max_num_seqs * engine.replicas, groups * completions // turns))
    waves = -(-groups * completions // turns // sequences)
    context = model.prompt + new / 2
    bytes_per_token = size.parameters * item + sequences * context * size.kv * item
    compute_s = 2.0 * size.parameters * sequences / (device.flops * PREFILL * engines)
    token_s = max(bytes_per_token / (device.bandwidth * DECODE * engines), compute_s)
    decode_s = turns * waves * new * token_s
    prefill_s = 2.0 * size.parameters * groups * model.prompt / (device.flops * PREFILL * engines)
    learn_s = flops_per_token * (groups * (model.prompt + completions * new)) / (device.flops * TRAIN * learners)
    sampled = groups * completions * new
    return Throughput(
        rollout_s=decode_s + prefill_s,
        learn_s=learn_s,
        sync_s=size.parameters * item / WEIGHT_SYNC,
        sampled_per_s=sampled / (decode_s + prefill_s),
        learned_per_s=sampled / learn_s if learn_s else 0.0,
    )
