"""What must hold between the actors before the first rollout."""

from __future__ import annotations

from pathlib import Path

from marl_ray.cluster.launch import Fleet
from marl_ray.cluster.plan import generator_name, learner_name
from marl_ray.config.schema import Config
from marl_ray.core.messages import Task
from marl_ray.rollout.player import Environment
from marl_ray.telemetry.console import say
from marl_ray.core.waiting import together, within

PROBE_TEXTS = 64


class PreflightError(RuntimeError):
    """The actors are up but cannot work together; the text is one line."""


async def check_fleet(config: Config, fleet: Fleet, environment: Environment, tasks: list[Task], run_dir: Path) -> None:
    """Every learner sees the run folder; an agent's learner and generators load one tokenizer; prompts fit.

    Prompts that are too long are counted and will be skipped. Raises PreflightError, also when all are.
    """
    await _check_run_dir(config, fleet, run_dir)
    prompts = [environment.first_prompts(task) for task in tasks]
    too_long: set[int] = set()
    room = config.model.max_length - config.algorithm.max_new_tokens
    for agent in range(config.num_agents):
        texts = [of_task[agent] for of_task in prompts]
        await _check_tokenizers(config, fleet, agent, texts[:PROBE_TEXTS])
        lengths = await within(
            config.resources.deadlines.start_s,
            f"the prompt lengths of agent {agent}",
            "start_s",
            fleet.generators[agent][0].prompt_lengths.remote(texts),
        )
        too_long |= {i for i, length in enumerate(lengths) if length > room}
    if len(too_long) == len(tasks):
        raise PreflightError(
            f"all {len(tasks)} prompts are longer than the {room} tokens that model.max_length "
            f"{config.model.max_length} leaves beside max_new_tokens: raise model.max_length"
        )
    if too_long:
        say(
            f"warning: {len(too_long)} of {len(tasks)} training prompts are longer than {room} tokens and will be "
            "skipped (model.max_length)"
        )


async def _check_run_dir(config: Config, fleet: Fleet, run_dir: Path) -> None:
    seen = await within(
        config.resources.deadlines.start_s,
        "the learners to look at the run folder",
        "start_s",
        together(*(learner.sees.remote(str(run_dir)) for learner in fleet.learners)),
    )
    for agent, sees in enumerate(seen):
        if not sees:
            raise PreflightError(
                f"{learner_name(agent)} does not see {run_dir}: output.base_dir should be on a file system that "
                "every node shares"
            )


async def _check_tokenizers(config: Config, fleet: Fleet, agent: int, texts: list[str]) -> None:
    actors = (fleet.learners[agent], *fleet.generators[agent])
    ours, *theirs = await within(
        config.resources.deadlines.start_s,
        f"the tokenizers of agent {agent}",
        "start_s",
        together(*(actor.tokenizer_fingerprint.remote(texts) for actor in actors)),
    )
    for replica, other in enumerate(theirs):
        if other != ours:
            raise PreflightError(
                f"{learner_name(agent)} and {generator_name(agent, replica)} load different tokenizers for "
                f"{config.model_names[agent]}: their ids of the same text differ"
            )
