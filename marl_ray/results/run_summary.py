"""The closing summary of a run: the lines it prints, its plot, and its sample episodes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marl_ray.config import Config
from marl_ray.core.chat import describe_prompt
from marl_ray.core.episode import Episode, Node
from marl_ray.core.state import TrainingResult
from marl_ray.core.text import pluralize
from marl_ray.results.cooperation_summary import cooperation_summary
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
    estimators = ", ".join(dict.fromkeys(agent.estimator for agent in config.agents))
    method = estimators if config.credit.critic == "none" else config.credit.critic
    since = f", from step {result.first_step}" if result.first_step else ""
    lines = [
        f"Trained {describe_agents(config)} with {method} to step {result.step} "
        f"({pluralize(result.env_steps, 'joint sample')}{since}) in {seconds / 60:.1f} min."
    ]
    if result.last_evaluation is not None:
        texts = map(episode_text, result.evaluation_episodes[:MAX_SAMPLE_EPISODES])
        title = f"Episodes of the last evaluation, {plot_title(config)}"
        folder.samples.write_text(f"{title}\n\n" + "\n".join(texts), encoding="utf-8")
        files.append(folder.samples.name)
        rewards = ", ".join(_held_out_rewards(rows, result.last_evaluation, config.rollout.num_turns))
        lines.append(f"Mean reward on held-out tasks: {rewards}.")
    own_rows = [row for row in rows if row["step"] > result.first_step]
    lines += [*cooperation_summary(own_rows), *describe_wait_times(config, own_rows)]
    lines += [*describe_device_memory(own_rows)]
    files.append(f"{folder.checkpoints.folder.name}/")
    if config.output.save_final_model:
        files.append(f"{folder.models.name}/")
    report = f"marl-ray report {shlex.quote(str(folder))}"
    lines.append(f"Results in {folder}: {', '.join(files)}. A page with curves and episodes: {report}")
    return lines


def _held_out_rewards(rows: Sequence[Mapping[str, Any]], after: Mapping[str, Any], num_turns: int) -> Iterator[str]:
    """Yield each turn's mean reward, after that of the evaluation before training if it had as many tasks."""
    size = after["eval/episodes"]
    before = next((row for row in rows if row["step"] == 0 and row.get("eval/episodes") == size), {})
    for turn in range(1, num_turns + 1):
        key = f"eval/turn_{turn}/reward_mean"
        first = f"{before[key]:.2f} -> " if key in before else ""
        yield f"turn {turn} {first}{after.get(key, float('nan')):.2f}"


def plot_title(config: Config) -> str:
    """Return algorithm, dataset type and agents."""
    return f"{config.algorithm} on {config.dataset.type}: {describe_agents(config)}"


def describe_agents(config: Config) -> str:
    """Return the number of agents, and the agents that share a policy."""
    groups = (", ".join(map(str, policy.agents)) for policy in config.policies if len(policy.agents) > 1)
    return pluralize(config.num_agents, "agent") + "".join(f", {agents} sharing one policy" for agents in groups)


def reward_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line per evaluation, and one for the last step: the mean reward of each turn."""
    last = max((row["step"] for row in rows), default=0)
    for row in rows:
        for prefix, kind in (("eval/", "held-out"), ("", "training")):
            rewards = [
                f"{value:.2f}"
                for key, value in row.items()
                if key.startswith(f"{prefix}turn_") and key.endswith("/reward_mean") and value is not None
            ]
            if rewards and (prefix or row["step"] == last):
                yield f"step {row['step']:>5}  {row['env_steps']:>8} joint samples  {kind} reward {' '.join(rewards)}"


def read_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """Return all metric rows of a run. Raises UserError if the folder has no metrics.jsonl."""
    folder.require(folder.metrics)
    return list(read_rows(folder.metrics))


def episode_text(episode: Episode) -> str:
    """Return an episode as plain text: the nodes along the first expanded joint actions, each with that joint action.

    The last node shows its first joint action. Other nodes of a tree are only counted.
    """
    reasons = Counter(stop.reason for stop in episode.stops)
    stopped = ", ".join(reason if n == 1 else f"{n} x {reason}" for reason, n in reasons.items())
    lines = ["=" * 100, f"{episode.task.id}   {stopped}".rstrip(), "=" * 100]
    node, shown = episode.root, 0
    while node is not None:
        index = min(node.children, default=min(node.transitions, default=0))
        lines += _turn_lines(node, index)
        node = node.children.get(index)
        shown += 1
    if hidden := sum(1 for _ in episode.nodes()) - shown:
        lines.append(f"--- and {pluralize(hidden, 'other node')} of the tree")
    return "\n".join(lines) + "\n"


def _turn_lines(node: Node, index: int) -> list[str]:
    action = node.joint_actions[index]
    levels = "  ".join(f"{name} {value:+.2f}" for name, value in action.outcome.levels.items())
    lines = [f"--- turn {node.turn + 1}: reward {action.reward:.2f}   ({levels})"]
    if any(reward != action.reward for reward in action.rewards):
        lines.append("rewards of the agents: " + " ".join(f"{reward:.2f}" for reward in action.rewards))
    for agent in range(len(node.calls)):
        for call in node.calls_of(agent, action):
            lines += [f"[agent {agent} prompt]", _indent(describe_prompt(call.prompt))]
            lines += [f"[agent {agent} response]", _indent(call.completion.text)]
    if action.outcome.evidence is not None:
        lines += action.outcome.evidence.lines()
    return lines


def _indent(text: str) -> str:
    return "\n".join(f"    | {line}" for line in text.strip("\n").splitlines() or [""])
