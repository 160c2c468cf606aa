"""Checks of the actors before the first rollout: run folder, tokenizers, prompt lengths, log-probabilities."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from marl_ray.actors.run_actors import RunActors
from marl_ray.config import Config
from marl_ray.core.batch import Group
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import SamplingSpec
from marl_ray.core.errors import UserError
from marl_ray.core.ids import ActorId
from marl_ray.core.random_streams import stream_seed
from marl_ray.trainer.context import PROBE_TEXTS, RunInputs

logger = logging.getLogger(__name__)

COMPARED_PROMPTS, COMPARED_TOKENS = 4, 32
"""Prompts per agent (at least one per generator) and tokens per completion in the log-probability check."""


async def check_actors(config: Config, actors: RunActors, inputs: RunInputs, folder: Path) -> None:
    """Check that learners see the run folder, that a policy's actors load one tokenizer, and that prompts fit.

    Prompts that are too long are counted and will be skipped. Raises UserError, also if all prompts are too long.
    """
    sees_folder = await gather(*(learner.sees_path(str(folder)) for learner in actors.learners))
    for learner, sees in zip(actors.learners, sees_folder, strict=True):
        if not sees:
            raise UserError(
                f"{ActorId('learner', learner.policy)} does not see {folder}: output.base_dir should be on a file "
                "system that every node shares"
            )
    prompts = [inputs.environment.first_prompts(task) for task in inputs.train_tasks]
    too_long: set[int] = set()
    for agent, settings in enumerate(config.agents):
        texts = [of_task[agent] for of_task in prompts]
        await _check_tokenizers(config, actors, agent, texts[:PROBE_TEXTS])
        limit = config.model.max_length - settings.max_new_tokens
        lengths = await actors.generators[agent].prompt_lengths(texts)
        too_long |= {i for i, length in enumerate(lengths) if length > limit}
    limit = config.model.max_length - max(agent.max_new_tokens for agent in config.agents)
    if len(too_long) == len(prompts):
        raise UserError(
            f"all {len(prompts)} prompts are longer than the {limit} tokens that model.max_length "
            f"{config.model.max_length} leaves beside max_new_tokens: raise model.max_length"
        )
    if too_long:
        logger.warning(
            f"{len(too_long)} of {len(prompts)} training prompts are longer than {limit} tokens and will be "
            "skipped (model.max_length)"
        )


async def check_logprob_agreement(config: Config, actors: RunActors, inputs: RunInputs) -> None:
    """Compare the log-probabilities of generators and learners on the same tokens with the same weights.

    The policy gradient is only correct as far as both agree. Completions are sampled without top_p and top_k, for which
    `importance` corrects, so that truncation neither hides a difference nor causes one. Raises UserError if an agent's
    mean absolute difference exceeds max_logprob_gap (nats per token).
    """
    bound = config.loop.max_logprob_gap
    if bound is None:
        return
    agents = range(config.num_agents)
    sampled = await gather(*(_sample(config, actors, inputs, agent) for agent in agents))
    # Sampling is over for all agents: engines that share a device with learners may sleep now.
    gaps = await gather(*(_logprob_gap(actors, agent, groups) for agent, groups in zip(agents, sampled, strict=True)))
    for agent, gap in enumerate(gaps):
        if not gap <= bound:  # also if the gap is NaN
            raise UserError(
                f"agent {agent}: generator and learner differ by {gap:.3g} nats per token on the same tokens, more "
                f"than {config.algorithm}.max_logprob_gap {bound:g}: the trained policy would not be the sampled one. "
                f"{_likely_causes(config, agent)}"
            )


async def _sample(config: Config, actors: RunActors, inputs: RunInputs, agent: int) -> list[Group]:
    """Return a few short completions; none if no prompt leaves space for one."""
    settings = config.agents[agent]
    sampling = SamplingSpec(
        num_generations=1,
        max_new_tokens=min(settings.max_new_tokens, COMPARED_TOKENS),
        temperature=settings.temperature,
        top_p=1.0,
        top_k=None,
        seed=stream_seed(config.seed, "agreement", agent),
    )
    prompts = inputs.probe_texts(agent)[: max(COMPARED_PROMPTS, actors.generators[agent].size)]
    generations = await gather(*(actors.generators[agent].generate(prompt, sampling) for prompt in prompts))
    return [Group(0, g.prompt_ids, g.completions, (0.0,), (0.0,)) for g in generations if g.completions]


async def _logprob_gap(actors: RunActors, agent: int, groups: Sequence[Group]) -> float:
    return await actors.learner_of(agent).logprob_gap(groups) if groups else 0.0


def _likely_causes(config: Config, agent: int) -> str:
    """Return the likely causes of a gap. Chat templates are not among them: both sides read the same token ids."""
    settings = config.agents[agent]
    return (
        f"Likely: other weights (did {settings.name} change while the run started?); a temperature other than "
        f"{settings.temperature:g} or a penalty in the model's generation_config.json; rounding, which float32 in "
        f"model.model_kwargs.torch_dtype (now {settings.dtype}) rules out; an architecture that vLLM computes in "
        "another way than transformers. To train all the same, raise the bound and set importance to truncate"
    )


async def _check_tokenizers(config: Config, actors: RunActors, agent: int, texts: list[str]) -> None:
    learner = actors.learner_of(agent)
    ours = await learner.fingerprint(texts)
    for replica, other in enumerate(await actors.generators[agent].fingerprints(texts)):
        if other != ours:
            raise UserError(
                f"{ActorId('learner', learner.policy)} and {ActorId('generator', learner.policy, replica)} load "
                "different tokenizers for "
                f"{config.agents[agent].name}: their ids of the same text differ"
            )
