"""Size of the batches of engines."""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.config import AgentConfig, AlgorithmConfig
from marl_ray.config.budget import max_prompts_per_step, nodes_by_turn, samples_greedily
from marl_ray.core.ids import PolicyId
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.program_environment import ProgramEnvironment

MIN_SEQUENCES = 64
"""Sequences that an engine can sample at once at least, for evaluations of runs with small steps."""


def sequences_in_flight(
    training: AlgorithmConfig, environment: str, agents: Sequence[AgentConfig], policies: Sequence[PolicyId]
) -> int | None:
    """Return the maximum number of completions that one engine samples at once in training for all `policies` that use
    it, at least MIN_SEQUENCES and a multiple of 8; None if programs of the environment decide it."""
    kind = ENVIRONMENTS.get(environment)
    if isinstance(kind, type) and issubclass(kind, ProgramEnvironment):
        return None
    greedy = int(samples_greedily(agents))
    largest_turn = 0
    for nodes, size in zip(nodes_by_turn(training, len(agents)), training.group_sizes, strict=True):
        largest_turn = max(largest_turn, nodes * (size + greedy))
    # Episodes of the next steps begin before a step is learned.
    episodes = (1 + training.max_staleness) * max_prompts_per_step(training, training.rollout_buffer_size)
    sequences = sum(len(policy.agents) for policy in policies) * episodes * largest_turn
    per_engine = -(-sequences // agents[policies[0].first_agent].generator.replicas)
    return max(MIN_SEQUENCES, -(-per_engine // 8) * 8)
