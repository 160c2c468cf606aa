"""The arithmetic of a run in one unit, joint samples: what a config amounts to before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.config.schema import Config
from marl_ray.core.text import pluralize
from marl_ray.credit import BEYOND_SIBLINGS


@dataclass(frozen=True, slots=True)
class TrainingBudget:
    """Upper bounds: an episode that ends early has fewer turns."""

    steps_per_epoch: int
    total_steps: int
    groups_per_step: int
    """Groups each agent has."""
    joint_samples_per_step: int
    """Those that are sampled, learned from or not."""
    optimizer_steps_per_step: int

    @property
    def optimizer_steps(self) -> int:
        """Of one policy over the whole run."""
        return self.total_steps * self.optimizer_steps_per_step


def joint_actions_per_node(config: Config) -> int:
    """At one node: every combination of the agents' completions where joint_mode is cross."""
    rollout = config.rollout
    return rollout.num_generations ** (config.num_agents if rollout.joint_mode == "cross" else 1)


def max_prompts_per_step(config: Config, tasks: int) -> int:
    """Of one step that is to learn from so many: with dynamic_sampling some are skipped, up to a bound."""
    if not config.rollout.dynamic_sampling:
        return tasks
    extra = config.rollout.max_extra_draws
    return tasks + (3 * config.rollout.rollout_buffer_size if extra is None else extra)


def samples_greedily(config: Config) -> bool:
    """Whether there is a greedy joint sample at every node."""
    return any(BEYOND_SIBLINGS.get(agent.estimator) == "greedy" for agent in config.agents)


def nodes_per_episode(config: Config) -> int:
    """Of one episode: one a turn, or a tree of them where handoff is all."""
    children = joint_actions_per_node(config) if config.rollout.handoff == "all" else 1
    return sum(children**turn for turn in range(config.rollout.num_turns))


def training_budget(config: Config, num_tasks: int) -> TrainingBudget:
    """For a training set of `num_tasks`."""
    rollout, loop = config.rollout, config.loop
    tasks = min(rollout.rollout_buffer_size, num_tasks)
    steps_per_epoch = -(-num_tasks // rollout.rollout_buffer_size)
    total = steps_per_epoch * loop.num_train_epochs
    if loop.max_steps is not None:
        total = min(total, loop.max_steps)
    groups = tasks * nodes_per_episode(config)
    return TrainingBudget(
        steps_per_epoch=steps_per_epoch,
        total_steps=total,
        groups_per_step=groups,
        joint_samples_per_step=max_prompts_per_step(config, tasks)
        * nodes_per_episode(config)
        * (joint_actions_per_node(config) + samples_greedily(config)),
        optimizer_steps_per_step=-(-groups // (config.optimizer.train_batch_size or groups)),
    )


def describe_budget(config: Config, num_tasks: int | None) -> str:
    """For people. Without a number of tasks (nothing has been downloaded) a step is described alone."""
    rollout = config.rollout
    known = training_budget(config, num_tasks if num_tasks is not None else rollout.rollout_buffer_size)
    tasks = rollout.rollout_buffer_size if num_tasks is None else min(rollout.rollout_buffer_size, num_tasks)
    cross, tree = rollout.joint_mode == "cross", rollout.handoff == "all"
    times = pluralize(nodes_per_episode(config), "node") if tree else pluralize(rollout.num_turns, "turn")
    each = (
        pluralize(joint_actions_per_node(config), "joint action")
        if cross
        else pluralize(rollout.num_generations, "generation")
    )
    shared = [policy for policy in config.policies if len(policy.agents) > 1]
    learned = known.groups_per_step * joint_actions_per_node(config)
    lines = [
        f"one step: {pluralize(tasks, 'task')} x {times} = "
        f"{pluralize(known.groups_per_step, 'group')} an agent; x {each} = "
        f"{pluralize(learned, 'joint sample')} ({pluralize(config.num_agents, 'completion')} each); "
        f"{pluralize(known.optimizer_steps_per_step, 'optimizer step')} {'a policy' if shared else 'an agent'}",
        *(f"{policy.introduction}: one learner, one update from the groups of all" for policy in shared),
    ]
    if samples_greedily(config):
        lines.append("estimator remax: and a greedy joint sample at every node, which nobody learns from")
    if rollout.dynamic_sampling:
        lines.append(
            f"dynamic_sampling: a step takes up to {pluralize(max_prompts_per_step(config, tasks), 'task')}, and learns from the "
            f"first {tasks} in which rewards differ"
        )
    if num_tasks is None:
        lines.append(
            f"steps: one for every {pluralize(tasks, 'task')} of {config.dataset.name}, not counted in a dry run"
        )
    else:
        lines.append(
            f"run: {pluralize(num_tasks, 'task')}, {pluralize(known.steps_per_epoch, 'step')} an epoch, "
            f"{pluralize(known.total_steps, 'step')}, at most "
            f"{pluralize(known.total_steps * known.joint_samples_per_step, 'joint sample')}"
        )
    return "\n".join(lines)
