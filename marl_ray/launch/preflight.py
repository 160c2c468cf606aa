"""What must hold between the actors before the first rollout."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from marl_ray.actors.run_actors import RunActors
from marl_ray.config import Config
from marl_ray.core.batch import Group
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId
from marl_ray.core.random_streams import stream_seed
from marl_ray.core.sampling import SamplingSpec
from marl_ray.environments.base import Environment

logger = logging.getLogger(__name__)

PROBE_TEXTS = 64
COMPARED_PROMPTS, COMPARED_TOKENS = 4, 32
"""What engine and learner are compared on: prompts, at least one a generator, and tokens of each answer."""


def probe_texts(environment: Environment, tasks: Sequence[Task], agent: int) -> list[str]:
    """The texts that an agent's tokenizers are compared on: its first prompts of the first tasks."""
    return [environment.first_prompts(task)[agent] for task in tasks[:PROBE_TEXTS]]


async def check_team(
    config: Config, team: RunActors, environment: Environment, tasks: Sequence[Task], folder: Path
) -> None:
    """Every learner sees the run folder; a policy's learner and generators load one tokenizer; prompts fit.

    Prompts that are too long are counted and will be skipped. Raises UserError, also when all are.
    """
    seen = await gather(*(learner.sees_path(str(folder)) for learner in team.learners))
    for learner, sees in zip(team.learners, seen, strict=True):
        if not sees:
            raise UserError(
                f"{ActorId('learner', learner.policy)} does not see {folder}: output.base_dir should be on a file "
                "system that every node shares"
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
        logger.warning(
            f"{len(too_long)} of {len(tasks)} training prompts are longer than {room} tokens and will be "
            "skipped (model.max_length)"
        )


async def check_logprob_agreement(
    config: Config, team: RunActors, environment: Environment, tasks: Sequence[Task]
) -> None:
    """Learners say of tokens what their generators, which serve their weights, said when they sampled them.

    A gradient is one of the sampler's policy as far as that holds. They are compared without top_p and top_k, which
    `importance` makes up for, so that these neither hide a difference nor make one. Raises UserError.
    """
    bound = config.loop.max_logprob_gap
    if bound is None:
        return
    agents = range(config.num_agents)
    sampled = await gather(*(_sampled(config, team, environment, tasks, n) for n in agents))
    # Nobody plays any more: engines may have to sleep while learners compute.
    gaps = await gather(*(_logprob_gap(team, n, groups) for n, groups in zip(agents, sampled, strict=True)))
    for number, gap in enumerate(gaps):
        if not gap <= bound:  # it may be no number
            raise UserError(
                f"agent {number}: generator and learner differ by {gap:.3g} nats a token on the same tokens, more than "
                f"{config.algorithm}.max_logprob_gap {bound:g}: what is trained would not be what is sampled. "
                f"{_likely_causes(config, number)}"
            )


async def _sampled(
    config: Config, team: RunActors, environment: Environment, tasks: Sequence[Task], agent: int
) -> list[Group]:
    """A few short completions; none where no prompt leaves room for one."""
    settings = config.agents[agent]
    sampling = SamplingSpec(
        num_generations=1,
        max_new_tokens=min(settings.max_new_tokens, COMPARED_TOKENS),
        temperature=settings.temperature,
        top_p=1.0,
        top_k=None,
        seed=stream_seed(config.seed, "agreement", agent),
    )
    prompts = probe_texts(environment, tasks, agent)[: max(COMPARED_PROMPTS, team.generators[agent].size)]
    generations = await gather(*(team.generators[agent].generate(prompt, sampling) for prompt in prompts))
    return [Group(0, g.prompt_ids, g.completions, (0.0,), (0.0,)) for g in generations if g.completions]


async def _logprob_gap(team: RunActors, agent: int, groups: Sequence[Group]) -> float:
    return await team.learner_of(agent).logprob_gap(groups) if groups else 0.0


def _likely_causes(config: Config, agent: int) -> str:
    """Of a gap. Chat templates are none: both read the same ids."""
    settings = config.agents[agent]
    return (
        f"Likely: other weights (did {settings.name} change while the run started?); a temperature other than "
        f"{settings.temperature:g} or a penalty in the model's generation_config.json; rounding, which float32 in "
        f"model.model_kwargs.torch_dtype (now {settings.dtype}) rules out; an architecture that vLLM computes in "
        "another way than transformers. To train all the same, raise the bound and set importance to truncate"
    )


async def _check_tokenizers(config: Config, team: RunActors, agent: int, texts: list[str]) -> None:
    learner = team.learner_of(agent)
    ours = await learner.fingerprint(texts)
    for replica, other in enumerate(await team.generators[agent].fingerprints(texts)):
        if other != ours:
            raise UserError(
                f"{ActorId('learner', learner.policy)} and {ActorId('generator', learner.policy, replica)} load "
                "different tokenizers for "
                f"{config.agents[agent].name}: their ids of the same text differ"
            )
