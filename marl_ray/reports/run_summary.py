"""The closing summary of a run: the lines it prints, its plot, and its sample episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marl_ray.config import Config
from marl_ray.core.errors import UserError
from marl_ray.core.state import TrainingResult
from marl_ray.core.text import pluralize
from marl_ray.reports.diagnostics import describe_device_memory, describe_wait_times
from marl_ray.reports.episode_text import write_episode_texts
from marl_ray.reports.returns_plot import plot_run
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
        title = f"Episodes of the last evaluation, {plot_title(config)}"
        write_episode_texts(folder.samples, title, result.evaluation_episodes[:MAX_SAMPLE_EPISODES])
        files.append(folder.samples.name)
        rewards = ", ".join(_held_out_rewards(rows, result.last_evaluation, config.rollout.num_turns))
        lines.append(f"Mean reward on held-out tasks: {rewards}.")
    own_rows = [row for row in rows if row["step"] > result.first_step]
    lines += [*describe_wait_times(config, own_rows), *describe_device_memory(own_rows)]
    files.append(f"{folder.checkpoints.folder.name}/")
    if config.output.save_final_model:
        files.append(f"{folder.models.name}/")
    lines.append(f"Results in {folder}: {', '.join(files)}.")
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
    """Return algorithm, dataset type and agents in one line."""
    return f"{config.algorithm} on {config.dataset.type}: {describe_agents(config)}"


def describe_agents(config: Config) -> str:
    """Return the number of agents, and the agents that share a policy."""
    shared = (policy.agents for policy in config.policies if len(policy.agents) > 1)
    return pluralize(config.num_agents, "agent") + "".join(
        f", {', '.join(map(str, agents))} sharing one policy" for agents in shared
    )


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
    if not folder.metrics.exists():
        raise UserError(f"{folder} is not a run folder: {folder.metrics.name} is missing")
    return list(read_rows(folder.metrics))
