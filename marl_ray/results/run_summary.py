"""The closing summary of a run: the lines it prints, its plot, and its sample episodes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marl_ray.config import Config
from marl_ray.cooperation.run_sentences import cooperation_summary
from marl_ray.core.chat import describe_prompt
from marl_ray.core.episode import Episode, Node
from marl_ray.core.ids import PolicyId
from marl_ray.core.state import TrainingResult
from marl_ray.core.text import pluralize
from marl_ray.registry import commands
from marl_ray.results.diagnostics import describe_device_memory, describe_wait_times
from marl_ray.results.returns_plot import plot_run
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.sinks import read_rows

MAX_SAMPLE_EPISODES = 8


def write_run_summary(config: Config, folder: RunFolder, result: TrainingResult, seconds: float) -> list[str]:
    """Write the plot and the sample episodes; return the lines that summarise the run."""
    rows = read_metrics(folder)
    plot_run(rows, folder.plot, plot_title(config))
    files = [folder.metrics.name, folder.plot.name]
    method: str = config.training.critic
    if method == "none":
        # A dict keeps the agents' order, and each estimator once.
        method = ", ".join(dict.fromkeys(agent.estimator for agent in config.agents))
    samples = pluralize(result.env_steps, "joint sample")
    if result.first_step:
        samples += f", from step {result.first_step}"
    trained = f"Trained {describe_agents(config.policies)} with {method} to step {result.step}"
    lines = [f"{trained} ({samples}) in {seconds / 60:.1f} min."]
    if result.last_evaluation is not None:
        texts = map(episode_text, result.evaluation_episodes[:MAX_SAMPLE_EPISODES])
        title = f"Episodes of the last evaluation, {plot_title(config)}"
        folder.samples.write_text(f"{title}\n\n" + "\n".join(texts), encoding="utf-8")
        files.append(folder.samples.name)
        rewards = ", ".join(_held_out_rewards(rows, result.last_evaluation, config.training.num_turns))
        lines.append(f"Mean reward on held-out tasks: {rewards}.")
    # Rows up to the first step are of an earlier part of a resumed run, on other machines perhaps.
    own_rows = [row for row in rows if row["step"] > result.first_step]
    lines += cooperation_summary(own_rows)
    lines += describe_wait_times(config, own_rows)
    lines += describe_device_memory(own_rows)
    files.append(f"{folder.checkpoints.folder.name}/")
    if config.output.save_final_model:
        files.append(f"{folder.models.name}/")
    text = f"Results in {folder}: {', '.join(files)}."
    report = report_command(folder)
    if report:
        text += f" A page with curves and episodes: {report}"
    lines.append(text)
    return lines


def report_command(folder: RunFolder) -> str:
    """Return the command that writes the page of a run, or an empty text if no plug-in has the command."""
    if "report" not in commands():
        return ""
    return f"marl-ray report {shlex.quote(str(folder))}"


def _held_out_rewards(rows: Sequence[Mapping[str, Any]], after: Mapping[str, Any], num_turns: int) -> Iterator[str]:
    """Yield each turn's mean reward, after that of the evaluation before training if it had as many tasks."""
    before: Mapping[str, Any] = {}
    for row in rows:
        if row["step"] == 0 and row.get("eval/episodes") == after["eval/episodes"]:
            before = row
            break
    for turn in range(1, num_turns + 1):
        key = f"eval/turn_{turn}/reward_mean"
        reward = f"{after.get(key, float('nan')):z.2f}"
        if key in before:
            reward = f"{before[key]:z.2f} -> {reward}"
        yield f"turn {turn} {reward}"


def plot_title(config: Config) -> str:
    """Return algorithm, dataset type and agents."""
    return f"{config.algorithm} on {config.dataset.type}: {describe_agents(config.policies)}"


def describe_agents(policies: Sequence[PolicyId]) -> str:
    """Return the number of agents of all policies, and the agents that share a policy."""
    text = pluralize(sum(len(policy.agents) for policy in policies), "agent")
    for policy in policies:
        if len(policy.agents) > 1:
            text += f", {', '.join(map(str, policy.agents))} sharing one policy"
    return text


def reward_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line per evaluation, and one for the last step: the mean reward of each turn."""
    last = max((row["step"] for row in rows), default=0)
    for row in rows:
        place = f"step {row['step']:>5}  {row['env_steps']:>8} joint samples"
        for prefix, kind in (("eval/", "held-out"), ("", "training")):
            rewards = []
            for key, value in row.items():
                is_reward = key.startswith(f"{prefix}turn_") and key.endswith("/reward_mean")
                if is_reward and value is not None:
                    rewards.append(f"{value:z.2f}")
            if rewards and (prefix or row["step"] == last):
                yield f"{place}  {kind} reward {' '.join(rewards)}"


def read_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """Return all metric rows of a run. Raises UserError if the folder has no metrics.jsonl."""
    folder.require(folder.metrics)
    return list(read_rows(folder.metrics))


def episode_text(episode: Episode) -> str:
    """Return an episode as plain text: the nodes along the first expanded joint actions, each with that joint action.

    The last node shows its first joint action. Other nodes of a tree are only counted.
    """
    stops = []
    for reason, count in Counter(stop.reason for stop in episode.stops).items():
        stops.append(reason if count == 1 else f"{count} x {reason}")
    title = f"{episode.task.id}   {', '.join(stops)}".rstrip()
    lines = ["=" * 100, title, "=" * 100]
    node = episode.root
    hidden = len(list(episode.nodes()))
    while node is not None:
        # A joint action whose next prompt was too long has a transition without a child.
        index = min(node.children, default=min(node.transitions, default=0))
        lines += _turn_lines(node, index, episode.roles)
        node = node.children.get(index)
        hidden -= 1
    if hidden:
        lines.append(f"--- and {pluralize(hidden, 'other node')} of the tree")
    return "\n".join(lines) + "\n"


def _turn_lines(node: Node, index: int, roles: Sequence[str]) -> list[str]:
    action = node.joint_actions[index]
    levels = [f"{name} {value:+z.2f}" for name, value in action.outcome.levels.items()]
    title = f"--- turn {node.turn + 1}: reward {action.reward:z.2f}"
    if levels:
        title += f"   ({'  '.join(levels)})"
    lines = [title]
    if any(reward != action.reward for reward in action.rewards):
        rewards = [f"{reward:z.2f}" for reward in action.rewards]
        lines.append(f"rewards of the agents: {' '.join(rewards)}")
    for agent in range(len(node.calls)):
        name = f"agent {agent}"
        if agent < len(roles):
            name += f", {roles[agent]}:"
        for call in node.calls_of(agent, action):
            lines.append(f"[{name} prompt]")
            lines.append(_indent(describe_prompt(call.prompt)))
            lines.append(f"[{name} response]")
            lines.append(_indent(call.completion.text))
    if action.outcome.evidence is not None:
        lines += action.outcome.evidence.lines()
    return lines


def _indent(text: str) -> str:
    lines = text.strip("\n").splitlines() or [""]
    return "\n".join(f"    | {line}" for line in lines)
