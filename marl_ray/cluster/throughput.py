"""How long a step may take, from sizes and data sheets: a roofline (Williams, Waterman and Patterson, 2009).

Decoding reads all weights, and the keys and values so far, once for a token of each sequence in flight, so that the
device's bandwidth bounds it, until there are so many sequences that FLOP/s do. Prompts and training are bound by
FLOP/s. What is reached of a data sheet's numbers is assumed: see DECODE, PREFILL and TRAIN.
"""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.cluster.hardware import DeviceSpec
from marl_ray.cluster.memory_estimate import ModelSize

DECODE = 0.6
"""Of the bandwidth, while engines decode."""
PREFILL = 0.5
"""Of the FLOP/s, while they read prompts."""
TRAIN = 0.4
"""Of the FLOP/s, in a learner's forward and backward passes."""
PUBLISH = 5e9
"""Bytes a second on the way to the engines."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What one step asks of one policy: groups in all and of the turns that follow one another, prompt tokens and
    completions of each group, new tokens of each completion at most."""

    groups: int
    turns: int
    prompt: int
    completions: int
    new: int

    @property
    def sampled(self) -> int:
        """Tokens."""
        return self.groups * self.completions * self.new


@dataclass(frozen=True, slots=True)
class Throughput:
    """Seconds of a step's parts for one policy, and tokens a second of each."""

    rollout_s: float
    learn_s: float
    publish_s: float
    sampled_per_s: float
    learned_per_s: float

    @property
    def step_s(self) -> float:
        """One after the other, as if nothing overlapped."""
        return self.rollout_s + self.learn_s + self.publish_s


def estimate_throughput(
    model: ModelSize,
    load: Workload,
    engine: DeviceSpec,
    engines: float,
    item: int,
    in_flight: int,
    learner: DeviceSpec,
    learners: float,
    flops_per_token: float,
) -> Throughput:
    """`engines` and `learners`: how many devices there are of each, all replicas and ranks together; `in_flight`:
    sequences in all engines at most; `item`: bytes of an engine's numbers; `flops_per_token`: of forward and backward
    pass."""
    sequences = max(1, min(in_flight, load.groups * load.completions // load.turns))
    waves = -(-load.groups * load.completions // load.turns // sequences)
    seen = load.prompt + load.new / 2
    per_token = model.parameters * item + sequences * seen * model.kv * item
    compute = 2.0 * model.parameters * sequences / (engine.flops * PREFILL * engines)
    decode = load.turns * waves * load.new * max(per_token / (engine.bandwidth * DECODE * engines), compute)
    prefill = 2.0 * model.parameters * load.groups * load.prompt / (engine.flops * PREFILL * engines)
    learned = load.groups * (load.prompt + load.completions * load.new)
    learn = flops_per_token * learned / (learner.flops * TRAIN * learners)
    return Throughput(
        rollout_s=decode + prefill,
        learn_s=learn,
        publish_s=model.parameters * item / PUBLISH,
        sampled_per_s=load.sampled / (decode + prefill),
        learned_per_s=load.sampled / learn if learn else 0.0,
    )
