"""The size of a run in words, which a run and a dry run print."""

from __future__ import annotations

from collections.abc import Sequence

from marl_ray.config.algorithm_section import RolloutConfig
from marl_ray.config.budget import (
    TrainingBudget,
    joint_actions_by_turn,
    joint_samples_per_episode,
    max_prompts_per_step,
    nodes_per_episode,
    samples_greedily,
    training_budget,
)
from marl_ray.config.schema import Config
from marl_ray.core.ids import PolicyId
from marl_ray.core.text import pluralize
from marl_ray.credit.requirements import estimator_requirements


def describe_budget(config: Config, num_tasks: int | None) -> str:
    """Return the budget in words. Without `num_tasks` (the dataset is not downloaded) only a step is described."""
    tasks = config.training.rollout_buffer_size
    if num_tasks is not None:
        tasks = min(tasks, num_tasks)
    budget = training_budget(config, num_tasks if num_tasks is not None else tasks)
    training = config.training
    lines = [_step(training, config.policies, tasks, budget)]
    # Settings that make a step larger, or an update rarer, than the first line says.
    for policy in config.policies:
        if len(policy.agents) > 1:
            lines.append(f"{policy.introduction}: one learner, one update from the groups of all its agents")
    if samples_greedily(config.agents):
        names: list[str] = []
        for agent in config.agents:
            if estimator_requirements(agent.estimator).greedy_sample and agent.estimator not in names:
                names.append(agent.estimator)
        lines.append(f"estimator {', '.join(names)}: one more greedy joint sample per node, as baseline only")
    if training.learn_in_turns:
        steps = pluralize(training.learn_in_turns, "step")
        lines.append(f"learn_in_turns: {len(config.learning_policies)} policies learn alternately, {steps} each")
    if training.dynamic_sampling:
        most = pluralize(max_prompts_per_step(training, tasks), "task")
        lines.append(
            f"dynamic_sampling: a step samples up to {most} and learns from the first {tasks} in which rewards differ"
        )
    if num_tasks is None:
        size = pluralize(training.rollout_buffer_size, "task")
        lines.append(f"steps: one per {size} of {config.dataset.name}, not counted in a dry run")
    else:
        samples = budget.total_steps * budget.joint_samples_per_step
        lines.append(
            f"run: {pluralize(num_tasks, 'task')}, {pluralize(budget.steps_per_epoch, 'step')} per epoch, "
            f"{pluralize(budget.total_steps, 'step')}, at most {pluralize(samples, 'joint sample')}"
        )
    return "\n".join(lines)


def _step(rollout: RolloutConfig, policies: Sequence[PolicyId], tasks: int, budget: TrainingBudget) -> str:
    """Return the size of one step: tasks, groups, joint samples and optimizer steps."""
    num_agents = sum(len(policy.agents) for policy in policies)
    nodes = pluralize(rollout.num_turns, "turn")
    if rollout.handoff == "all":
        nodes = pluralize(nodes_per_episode(rollout, num_agents), "node")
    owner = "policy" if len(policies) < num_agents else "agent"
    samples = tasks * joint_samples_per_episode(rollout, num_agents)
    return (
        f"one step: {pluralize(tasks, 'task')} x {nodes} = {pluralize(budget.groups_per_step, 'group')} per agent; "
        f"x {_per_group(rollout, num_agents)} = {pluralize(samples, 'joint sample')} "
        f"({pluralize(num_agents, 'completion')} each); "
        f"{pluralize(budget.optimizer_steps_per_step, 'optimizer step')} per {owner}"
    )


def _per_group(rollout: RolloutConfig, num_agents: int) -> str:
    noun = "generation"
    counts = list(rollout.group_sizes)
    if rollout.joint_mode == "cross":
        noun = "joint action"
        counts = joint_actions_by_turn(rollout, num_agents)
    if len(set(counts)) > 1:
        return f"{', '.join(map(str, counts))} {noun}s by turn"
    return pluralize(counts[0], noun)
