"""Time estimates of a training step: a roofline model (Williams, Waterman and Patterson, 2009) of device data sheets.

Decoding reads all weights and the KV cache per token of each running sequence, so it is bound by memory bandwidth until
there are enough sequences to be bound by FLOP/s. Prefill and training are bound by FLOP/s. The achieved fractions of the
data-sheet values (DECODE, PREFILL, TRAIN) are assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.cluster.capacity_plan import CapacityPlan, ModelInfos
from marl_ray.cluster.hardware import CPU_CORE, DeviceSpec
from marl_ray.cluster.memory_estimate import DTYPE_BYTES, ModelSize, ProfilingFailed
from marl_ray.config import Config
from marl_ray.config.budget import nodes_per_episode
from marl_ray.core.ids import PolicyId
from marl_ray.learning.arguments import wire_dtype

DECODE = 0.6
"""Achieved fraction of memory bandwidth while decoding."""
PREFILL = 0.5
"""Achieved fraction of FLOP/s in prefill."""
TRAIN = 0.4
"""Achieved fraction of FLOP/s in forward and backward passes."""
WEIGHT_SYNC = 5e9
"""Bytes per second of a weight transfer."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The work of one policy in one step: the number of groups, the number of turns they are spread over, the prompt
    tokens and completions per group, and the maximum new tokens per completion."""

    groups: int
    turns: int
    prompt: int
    completions: int
    new: int

    @property
    def sampled(self) -> int:
        """Sampled tokens."""
        return self.groups * self.completions * self.new


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


def estimate_throughput(
    model: ModelSize,
    work: Workload,
    device: DeviceSpec,
    engines: float,
    learners: float,
    item: int,
    max_sequences: int,
    flops_per_token: float,
) -> Throughput:
    """Return the throughput of one policy.

    `engines` and `learners` are numbers of devices over all replicas and ranks, `item` is bytes per engine parameter,
    `max_sequences` is the limit of running sequences over all engines, and `flops_per_token` covers forward and
    backward pass.
    """
    per_turn = work.groups * work.completions // work.turns
    sequences = max(1, min(max_sequences, per_turn))
    waves = -(-work.groups * work.completions // work.turns // sequences)
    context = work.prompt + work.new / 2
    bytes_per_token = model.parameters * item + sequences * context * model.kv * item
    compute_s = 2.0 * model.parameters * sequences / (device.flops * PREFILL * engines)
    token_s = max(bytes_per_token / (device.bandwidth * DECODE * engines), compute_s)
    decode_s = work.turns * waves * work.new * token_s
    prefill_s = 2.0 * model.parameters * work.groups * work.prompt / (device.flops * PREFILL * engines)
    trained = work.groups * (work.prompt + work.completions * work.new)
    learn_s = flops_per_token * trained / (device.flops * TRAIN * learners)
    return Throughput(
        rollout_s=decode_s + prefill_s,
        learn_s=learn_s,
        sync_s=model.parameters * item / WEIGHT_SYNC,
        sampled_per_s=work.sampled / (decode_s + prefill_s),
        learned_per_s=work.sampled / learn_s if learn_s else 0.0,
    )


def estimate_throughputs(config: Config, models: ModelInfos, plan: CapacityPlan) -> dict[PolicyId, Throughput]:
    """Return the throughput of each policy whose model and devices are known."""
    estimates = {}
    for policy in config.policies if plan.placed else ():
        agent, gpus = config.agents[policy.number], plan.plan.agents[policy.number]
        model, on_gpu = models.get(agent.name), gpus.generator_gpus > 0
        node = next(actor.node for actor in plan.placed or () if actor.id.policy == policy)
        device = plan.nodes[node].device if on_gpu else CPU_CORE
        if model is None or device is None:
            continue
        try:
            _, flops = model.learner(config, agent, on_gpu)
        except ProfilingFailed:
            continue
        groups = config.rollout.rollout_buffer_size * nodes_per_episode(config)
        completions = config.rollout.num_generations
        engine, learner = agent.generator, agent.learner
        per_engine = gpus.generator_gpus if on_gpu else max(1, round(engine.cpus))
        per_rank = gpus.learner_gpus if on_gpu else max(1, round(learner.cpus))
        estimates[policy] = estimate_throughput(
            model.engine(),
            Workload(groups, config.rollout.num_turns, model.prompt, completions, agent.max_new_tokens),
            device,
            engines=engine.replicas * per_engine,
            learners=learner.ranks * per_rank / len(config.learner_policies(policy)),
            item=DTYPE_BYTES[wire_dtype(agent, on_gpu)],
            max_sequences=engine.max_num_seqs * engine.replicas,
            flops_per_token=flops,
        )
    return estimates
