"""The size of a run in words, which a run and a dry run print."""

from __future__ import annotations

from collections.abc import Iterator

from marl_ray.config.budget import (
    joint_actions_by_turn,
    joint_samples_per_episode,
    max_prompts_per_step,
    nodes_per_episode,
    samples_greedily,
    training_budget,
)
from marl_ray.config.schema import Config
from marl_ray.core.text import pluralize
from marl_ray.credit.requirements import estimator_requirements


def describe_budget(config: Config, num_tasks: int | None) -> str:
    """Return the budget in words. Without `num_tasks` (the dataset is not downloaded) only a step is described."""
    return "\n".join([_step(config, num_tasks), *_additions(config, num_tasks), _run(config, num_tasks)])


def _tasks_per_step(config: Config, num_tasks: int | None) -> int:
    size = config.training.rollout_buffer_size
    if num_tasks is None:
        return size
    return min(size, num_tasks)


def _step(config: Config, num_tasks: int | None) -> str:
    """Return the size of one step: tasks, groups, joint samples and optimizer steps."""
    tasks = _tasks_per_step(config, num_tasks)
    # Without the number of tasks a step has as many as it may.
    budget = training_budget(config, tasks if num_tasks is None else num_tasks)
    nodes = pluralize(config.training.num_turns, "turn")
    if config.training.handoff == "all":
        nodes = pluralize(nodes_per_episode(config), "node")
    owner = "agent"
    if _shared_policies(config):
        owner = "policy"
    samples = tasks * joint_samples_per_episode(config)
    return (
        f"one step: {pluralize(tasks, 'task')} x {nodes} = {pluralize(budget.groups_per_step, 'group')} per agent; "
        f"x {_per_group(config)} = {pluralize(samples, 'joint sample')} "
        f"({pluralize(config.num_agents, 'completion')} each); "
        f"{pluralize(budget.optimizer_steps_per_step, 'optimizer step')} per {owner}"
    )


def _per_group(config: Config) -> str:
    noun = "generation"
    counts = list(config.training.group_sizes)
    if config.training.joint_mode == "cross":
        noun = "joint action"
        counts = joint_actions_by_turn(config)
    if len(set(counts)) > 1:
        return f"{', '.join(map(str, counts))} {noun}s by turn"
    return pluralize(counts[0], noun)


def _shared_policies(config: Config) -> list[str]:
    """Return a line for each policy of several agents."""
    lines: list[str] = []
    for policy in config.policies:
        if len(policy.agents) > 1:
            lines.append(f"{policy.introduction}: one learner, one update from the groups of all its agents")
    return lines


def _additions(config: Config, num_tasks: int | None) -> Iterator[str]:
    """Yield a line for each setting that makes a step larger or an update rarer than the first line says."""
    yield from _shared_policies(config)
    if samples_greedily(config):
        names: list[str] = []
        for agent in config.agents:
            if estimator_requirements(agent.estimator).greedy_sample and agent.estimator not in names:
                names.append(agent.estimator)
        yield f"estimator {', '.join(names)}: one more greedy joint sample per node, as baseline only"
    if config.training.learn_in_turns:
        steps = pluralize(config.training.learn_in_turns, "step")
        yield f"learn_in_turns: {len(config.learning_policies)} policies learn alternately, {steps} each"
    if config.training.dynamic_sampling:
        tasks = _tasks_per_step(config, num_tasks)
        yield (
            f"dynamic_sampling: a step samples up to {pluralize(max_prompts_per_step(config, tasks), 'task')} and "
            f"learns from the first {tasks} in which rewards differ"
        )


def _run(config: Config, num_tasks: int | None) -> str:
    if num_tasks is None:
        tasks = pluralize(config.training.rollout_buffer_size, "task")
        return f"steps: one per {tasks} of {config.dataset.name}, not counted in a dry run"
    budget = training_budget(config, num_tasks)
    samples = budget.total_steps * budget.joint_samples_per_step
    return (
        f"run: {pluralize(num_tasks, 'task')}, {pluralize(budget.steps_per_epoch, 'step')} per epoch, "
        f"{pluralize(budget.total_steps, 'step')}, at most {pluralize(samples, 'joint sample')}"
    )
