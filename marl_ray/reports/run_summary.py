"""What is said of a run when it is over, and what is drawn and written then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marl_ray.config import Config
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize
from marl_ray.reports.episode_text import write_episode_texts
from marl_ray.reports.memory import memory
from marl_ray.reports.returns_plot import plot_run
from marl_ray.reports.waiting import waiting
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.jsonl_sink import read_rows

if TYPE_CHECKING:
    from marl_ray.trainer.loop import TrainingResult

SAMPLES = 8


def write_run_summary(config: Config, folder: RunFolder, result: TrainingResult, seconds: float) -> list[str]:
    """Draw the plot, write episodes to read, and say in a few lines what happened."""
    agents, title = describe_agents(config), plot_title(config)
    rows = read_metrics(folder)
    plot_run(rows, folder.plot, title)
    estimators = ", ".join(dict.fromkeys(agent.estimator for agent in config.agents))
    method = estimators if config.credit.critic == "none" else config.credit.critic
    since = f", from step {result.first_step}" if result.first_step else ""
    lines = [
        f"Trained {agents} with {method} to step {result.step} "
        f"({pluralize(result.env_steps, 'joint sample')}{since}) in {seconds / 60:.1f} min."
    ]
    files = [folder.metrics.name, folder.plot.name]
    if result.after is not None:
        write_episode_texts(folder.samples, f"Episodes of the last evaluation, {title}", result.eval_episodes[:SAMPLES])
        size = result.after["eval/episodes"]  # fewer tasks, after an override, would compare other things
        before = next((row for row in rows if row["step"] == 0 and row.get("eval/episodes") == size), {})
        parts = []
        for turn in range(1, config.rollout.num_turns + 1):
            key = f"eval/turn_{turn}/reward_mean"
            old = f"{before[key]:.2f} -> " if key in before else ""
            parts.append(f"turn {turn} {old}{result.after.get(key, float('nan')):.2f}")
        lines.append(f"Mean reward on held-out tasks: {', '.join(parts)}.")
        files.append(folder.samples.name)
    since_then = [row for row in rows if row["step"] > result.first_step]
    lines += [*waiting(config, since_then), *memory(since_then)]
    files.append(f"{folder.checkpoints.folder.name}/")
    if config.output.save_final_model:
        files.append(f"{folder.models.name}/")
    lines.append(f"Results in {folder}: {', '.join(files)}.")
    return lines


def plot_title(config: Config) -> str:
    """What a run is, over its plot."""
    return f"{config.algorithm} on {config.dataset.type}: {describe_agents(config)}"


def describe_agents(config: Config) -> str:
    """How many there are, and which of them play with one policy."""
    shared = (policy.agents for policy in config.policies if len(policy.agents) > 1)
    return pluralize(config.num_agents, "agent") + "".join(
        f", {', '.join(map(str, agents))} with one policy" for agents in shared
    )


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each evaluation and for the last step: mean reward of each turn."""
    last = max((row["step"] for row in rows), default=0)
    for row in rows:
        for prefix, what in (("eval/", "held-out"), ("", "training")):
            turns = [
                f"{value:.2f}"
                for key, value in row.items()
                if key.startswith(f"{prefix}turn_") and key.endswith("/reward_mean") and value is not None
            ]
            if turns and (prefix or row["step"] == last):
                yield f"step {row['step']:>5}  {row['env_steps']:>8} joint samples  {what} reward {' '.join(turns)}"


def read_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """All rows of a run. Raises UserError when the folder has none."""
    if not folder.metrics.exists():
        raise UserError(f"{folder} is no run folder: it has no {folder.metrics.name}")
    return list(read_rows(folder.metrics))
