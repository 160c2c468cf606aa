"""Size of the batches of engines."""

from __future__ import annotations

from marl_ray.config import Config
from marl_ray.config.budget import max_prompts_per_step, nodes_by_turn, samples_greedily
from marl_ray.core.ids import PolicyId
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.program_environment import ProgramEnvironment

MIN_SEQUENCES = 64
"""Sequences that an engine can sample at once at least, for evaluations of runs with small steps."""


def sequences_in_flight(config: Config, policy: PolicyId) -> int | None:
    """Return the maximum number of completions that one engine of a policy samples at once in training, for all
    policies that use it, at least MIN_SEQUENCES and a multiple of 8; None if programs decide it."""
    environment = ENVIRONMENTS.get(config.environment)
    if isinstance(environment, type) and issubclass(environment, ProgramEnvironment):
        return None
    run = config.training
    greedy = int(samples_greedily(config))
    largest_turn = 0
    for nodes, size in zip(nodes_by_turn(config), run.group_sizes, strict=True):
        largest_turn = max(largest_turn, nodes * (size + greedy))
    agents = sum(len(member.agents) for member in config.generator_policies(policy))
    # Episodes of the next steps begin before a step is learned.
    episodes = (1 + run.max_staleness) * max_prompts_per_step(config, run.rollout_buffer_size)
    sequences = agents * episodes * largest_turn
    per_engine = -(-sequences // config.agents[policy.first_agent].generator.replicas)
    return max(MIN_SEQUENCES, -(-per_engine // 8) * 8)
