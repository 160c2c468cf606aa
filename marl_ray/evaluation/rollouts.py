"""Episodes without training, for a first look at a config: `marl-ray rollout`."""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import fmean

from marl_ray.config import Config
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Episode, Task
from marl_ray.core.errors import UserError
from marl_ray.data.loading import load_tasks
from marl_ray.evaluation.requests import RolloutRequest
from marl_ray.evaluation.running_models import RunningModel, prepare_model, run_with_model
from marl_ray.rollout.turn_player import make_player
from marl_ray.telemetry.episode_records import episode_record

OnEpisode = Callable[[str], None]
"""Receives the line of a finished episode."""


def play_rollouts(config: Config, request: RolloutRequest, on_episode: OnEpisode) -> None:
    """Play a group of training episodes of each task without learning. Raises UserError, also if all episodes fail, and
    KeyboardInterrupt when stopped."""
    prepared = prepare_model(request.model, config)
    split = request.split or config.dataset.train_split
    tasks = load_tasks(config.dataset.name, split, config.dataset.type, config.dataset.on_bad_row)[: request.tasks]
    for task in tasks:
        prepared.environment.check_task(task)
    episodes = run_with_model(prepared, lambda running: _play(running, tasks, on_episode))
    if request.output is not None:
        lines = []
        for episode in episodes:
            lines.append(json.dumps(episode_record(episode), ensure_ascii=False) + "\n")
        try:
            request.output.write_text("".join(lines), encoding="utf-8")
        except OSError as error:
            raise UserError(f"{request.output} cannot be written ({error.strerror}): give another --output") from None
    if all(episode.root is None for episode in episodes):
        stop = episodes[0].stops[0]
        raise UserError(f"no episode has a reward: {stop.detail or stop.reason}")


async def _play(running: RunningModel, tasks: list[Task], on_episode: OnEpisode) -> list[Episode]:
    config = running.config
    player = make_player(config, running.environment, running.generators, running.sandbox)

    async def play(task: Task) -> Episode:
        episode = await player.run_episode(task, config.training.group_sizes, "train", 0)
        on_episode(describe_episode(episode))
        return episode

    return list(await gather(*map(play, tasks)))


def describe_episode(episode: Episode) -> str:
    """Return the rewards of each node of an episode, the numbers of tokens, and the reasons of early ends, in one
    line."""
    parts = []
    for _, node in episode.nodes():
        rewards = [action.reward for action in node.joint_actions]
        tokens = []
        for calls in node.calls:
            tokens.append(sum(len(call.completion.token_ids) for call in calls))
        each = " ".join(f"{reward:.3g}" for reward in rewards)
        of_agents = " ".join(map(str, tokens))
        parts.append(
            f"turn {node.turn + 1}: mean {fmean(rewards):.3f}, rewards {each}, tokens of the agents {of_agents}"
        )
    for stop in episode.stops:
        detail = f" ({stop.detail})" if stop.detail else ""
        parts.append(stop.reason + detail)
    return f"{episode.task.id}: {'; '.join(parts)}"
