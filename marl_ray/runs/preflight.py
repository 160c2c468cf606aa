"""What must hold between the actors before the first rollout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marl_ray.actors.team import Team
from marl_ray.config.schema import Config
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId
from marl_ray.core.tree import Task
from marl_ray.core.waiting import together
from marl_ray.environments.base import Environment
from marl_ray.telemetry.console import say

PROBE_TEXTS = 64


def probe_texts(environment: Environment, tasks: Sequence[Task], agent: int) -> list[str]:
    """The texts that an agent's tokenizers are compared on: its first prompts of the first tasks."""
    return [environment.first_prompts(task)[agent] for task in tasks[:PROBE_TEXTS]]


async def check_team(config: Config, team: Team, environment: Environment, tasks: Sequence[Task], folder: Path) -> None:
    """Every learner sees the run folder; an agent's learner and generators load one tokenizer; prompts fit.

    Prompts that are too long are counted and will be skipped. Raises UserError, also when all are.
    """
    seen = await together(*(learner.sees(str(folder)) for learner in team.learners))
    for agent, sees in enumerate(seen):
        if not sees:
            raise UserError(
                f"{ActorId('learner', agent)} does not see {folder}: output.base_dir should be on a file system that "
                "every node shares"
            )
    prompts = [environment.first_prompts(task) for task in tasks]
    too_long: set[int] = set()
    for agent, settings in enumerate(config.agents):
        texts = [of_task[agent] for of_task in prompts]
        await _check_tokenizers(config, team, agent, texts[:PROBE_TEXTS])
        room = config.model.max_length - settings.max_new_tokens
        lengths = await team.generators[agent].prompt_lengths(texts)
        too_long |= {i for i, length in enumerate(lengths) if length > room}
    room = config.model.max_length - max(agent.max_new_tokens for agent in config.agents)
    if len(too_long) == len(tasks):
        raise UserError(
            f"all {len(tasks)} prompts are longer than the {room} tokens that model.max_length "
            f"{config.model.max_length} leaves beside max_new_tokens: raise model.max_length"
        )
    if too_long:
        say(
            f"warning: {len(too_long)} of {len(tasks)} training prompts are longer than {room} tokens and will be "
            "skipped (model.max_length)"
        )


async def _check_tokenizers(config: Config, team: Team, agent: int, texts: list[str]) -> None:
    ours = await team.learners[agent].fingerprint(texts)
    for replica, other in enumerate(await team.generators[agent].fingerprints(texts)):
        if other != ours:
            raise UserError(
                f"{ActorId('learner', agent)} and {ActorId('generator', agent, replica)} load different tokenizers for "
                f"{config.agents[agent].name}: their ids of the same text differ"
            )
