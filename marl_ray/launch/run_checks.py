"""Checks before a run or a dry run starts anything, and checks of the actors before the first rollout."""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_ray.actors.sandbox_settings import check_local_machine, check_sandbox
from marl_ray.cluster.resource_text import describe_demands
from marl_ray.config import Config
from marl_ray.config.keys import key_of
from marl_ray.config.learning_rules import unequal_returns, unused_discount
from marl_ray.config.resource_sections import takes_turns
from marl_ray.config.validation import plugins_of_run
from marl_ray.core.batch import Group
from marl_ray.core.chat import as_text, with_system_prompt
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import SamplingSpec, Task, sibling_calls
from marl_ray.core.errors import UserError
from marl_ray.core.extras import missing_module
from marl_ray.core.ids import ActorId
from marl_ray.core.random_streams import stream_seed
from marl_ray.core.text import pluralize
from marl_ray.credit import ESTIMATORS
from marl_ray.credit.requirements import critic_requirements, estimator_requirements
from marl_ray.data.loading import check_dataset_name, load_tasks, needs_download
from marl_ray.environments import ENVIRONMENTS, abilities
from marl_ray.environments.base import BaseEnvironment
from marl_ray.external.transition import transition_of
from marl_ray.launch.prompt_checks import check_prompts_of_agents
from marl_ray.learning.arguments import require_optimizer
from marl_ray.models.json_schemas import check_json_schema
from marl_ray.models.lora import require_peft
from marl_ray.models.names import check_model, check_reference, describe_prompts, resolve_model
from marl_ray.models.tokenization import load_tokenizer
from marl_ray.models.weight_files import has_model_files
from marl_ray.storage.resume import SavedRun, check_resume
from marl_ray.storage.run_folder import RunFolder, new_folder
from marl_ray.storage.task_digests import check_same_tasks
from marl_ray.telemetry.trackers import require_trackers
from marl_ray.trainer.context import RunInputs

if TYPE_CHECKING:
    from marl_ray.actors.run_actors import RunActors
    from marl_ray.actors.weight_update_client import AgreementProbe  # these import Ray, which a dry run does without

logger = logging.getLogger(__name__)

COMPARED_PROMPTS = 4
"""Prompts per agent in the log-probability check, and at least one per generator."""
COMPARED_TOKENS = 32
"""Tokens per completion in the log-probability check."""


def check(config: Config, saved: SavedRun | None = None, dry: bool = False) -> RunInputs:
    """Check everything outside the config that the config names, and return the inputs of the run.

    `saved` is the run to resume. A dry run downloads nothing and does not check this machine. Raises UserError.
    """
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    transition = transition_of(config.external, environment)
    choices = [(ESTIMATORS, agent.estimator) for agent in config.agents]
    choices += plugins_of_run(config)
    for registry, name in choices:
        if name not in registry.entries:  # bundled ones exist, and importing some of them imports torch
            registry.get(name)
    require_trackers(config.output, config.plugin_sections)
    require_peft(config.lora)
    require_optimizer(config.training)
    check_sandbox(config.sandbox)
    describe_demands(config.agents, config.lora, config.resources)
    _check_schemas(config)
    templates = _check_models(config, dry)
    train_tasks, eval_tasks = _load_tasks(config, dry)
    tasks = [*train_tasks, *eval_tasks]
    for task in tasks:
        environment.check_task(task)
    _check_order(config, environment, tasks)
    rendered = check_prompts_of_agents(config, environment, train_tasks, templates, dry)
    if critic_requirements(config.training.critic).joint_prompts and train_tasks and not dry:
        first_prompts = environment.first_prompts(train_tasks[0])
        _check_central_critic(config, list(map(as_text, first_prompts)))
    if transition is not None and transition.note:
        logger.info(transition.note)
    for warning in (unused_discount(config.training, config.algorithm), unequal_returns(config)):
        if warning:
            logger.warning(warning)
    _warn_of_overlap(config, train_tasks, eval_tasks)
    # Everything from here on concerns this machine or the run folder.
    if not dry:
        _check_engine()
        check_local_machine(config.agents, config.lora, config.resources, config.sandbox)
    if saved is None:
        check_new_folder(folder_of(config))
    else:
        check_resume(config, saved, len(train_tasks))
        check_same_tasks(saved.folder.tasks, config.dataset.name, tasks_by_split(config, train_tasks, eval_tasks))
    notes = tuple(describe_prompts(config.agents, config.model.use_chat_template, templates))
    return RunInputs(environment, transition, train_tasks, eval_tasks, notes, rendered)


def tasks_by_split(config: Config, train_tasks: list[Task], eval_tasks: list[Task]) -> dict[str, list[Task]]:
    """Return the loaded tasks by their splits; without the splits that a dry run does not load."""
    splits = {}
    if train_tasks:
        splits[config.dataset.train_split] = train_tasks
    if eval_tasks and config.dataset.eval_split is not None:
        splits[config.dataset.eval_split] = eval_tasks
    return splits


def _check_engine() -> None:
    """Raise UserError if the run uses a local Ray instance and this Python has no vLLM."""
    from marl_ray.cluster.ray_connection import cluster_address  # imports Ray, which a dry run does without

    if cluster_address() is None and importlib.util.find_spec("vllm") is None:
        raise missing_module("vllm")


def folder_of(config: Config) -> RunFolder:
    """Return the folder of a new run. Without a run_name, every call returns another folder."""
    output = config.output
    return new_folder(output.base_dir, output.run_name, f"{config.algorithm}-{config.dataset.type}")


def existing_run(config: Config) -> SavedRun | None:
    """Return the run in the config's folder, if there is one. Raises UserError if it cannot be read."""
    folder = folder_of(config)
    if not folder.config.exists():
        return None
    return SavedRun.read(folder.path)


def _check_order(config: Config, environment: BaseEnvironment, tasks: Sequence[Task]) -> None:
    """Raise UserError for settings that need all agents to answer at the same time, if the environment has an order."""
    rounds = max((len(abilities.order(environment, task)) for task in tasks), default=1)
    if rounds == 1:
        return
    for key in ("handoff", "eval_handoff"):
        if getattr(config.training, key) == "all":
            raise UserError(
                f"{config.algorithm}.{key} all needs agents that answer at the same time, but in environment "
                f"{config.environment} agents answer one after another: set it to random or best"
            )
    if critic_requirements(config.training.critic).parallel_agents:
        raise UserError(
            f"{config.algorithm}.critic {config.training.critic} reads all agents' prompts before any agent answers, "
            f"but in environment {config.environment} agents answer one after another: set it to iac"
        )
    for agent in config.agents:
        if estimator_requirements(agent.estimator).parallel_agents:
            raise UserError(
                f"estimator {agent.estimator} replaces completions, but in environment {config.environment} agents "
                "answer one after another and have read the original completions: use another estimator, or difference "
                f"with environment gateway and gateway.judge {config.environment}, which asks later agents again"
            )
    logger.info(
        f"agents answer one after another, in {rounds} rounds: a node has up to {pluralize(rounds, 'time')} the joint "
        "actions that the plan counts, because every earlier completion is continued by later agents"
    )


def _check_models(config: Config, dry: bool) -> dict[str, tuple[bool, str]]:
    """Return by model name whether prompts use the chat template, and why. A dry run skips models on a hub, folders
    with nothing but a config.json, and all models without transformers."""
    if dry and importlib.util.find_spec("transformers") is None:
        return {}

    @cache
    def can_check(name: str) -> bool:
        return not dry or has_model_files(Path(resolve_model(name, fetch=False)))

    pairs = dict.fromkeys((agent.reference_model, agent.name) for agent in config.agents)
    for reference, name in pairs:
        if reference is not None and can_check(reference) and can_check(name):
            check_reference(reference, name, config.model)
    templates = {}
    for name in dict.fromkeys(agent.name for agent in config.agents):
        if can_check(name):
            templates[name] = check_model(name, config.model)
    return templates


def _check_schemas(config: Config) -> None:
    """Raise UserError for a JSON schema of an agent that engines cannot enforce."""
    for number, agent in enumerate(config.agents):
        try:
            check_json_schema(agent.json_schema)
        except UserError as error:
            raise UserError(f"{key_of(config, number, 'json_schema')}: {error}") from None


def _check_central_critic(config: Config, texts: list[str]) -> None:
    """Raise UserError if models have different tokenizers: a central critic reads the token ids of all agents."""
    ids_of = {}
    for name in dict.fromkeys(agent.name for agent in config.agents):
        ids_of[name] = load_tokenizer(resolve_model(name), config.model)(texts).input_ids
    first = config.agents[0].name
    for name, ids in ids_of.items():
        if ids != ids_of[first]:
            raise UserError(
                f"{config.algorithm}.critic maac reads the prompts of all agents, and {first} and {name} have "
                "different tokenizers: use iac, or models with one tokenizer"
            )


def _load_tasks(config: Config, dry: bool) -> tuple[list[Task], list[Task]]:
    """Return training and evaluation tasks; none in a dry run with a data set on a hub."""
    dataset = config.dataset
    splits = list(filter(None, (dataset.train_split, dataset.eval_split)))
    check_dataset_name(dataset.name, splits)
    if dry and needs_download(dataset.name):
        return [], []
    tasks = {}  # both splits may be the same
    for split in splits:
        tasks[split] = load_tasks(dataset.name, split, dataset.type, dataset.on_bad_row)
    return tasks.get(dataset.train_split, []), tasks.get(dataset.eval_split or "", [])


def _warn_of_overlap(config: Config, train_tasks: list[Task], eval_tasks: list[Task]) -> None:
    dataset = config.dataset
    shared = set(map(_content, train_tasks)) & set(map(_content, eval_tasks))
    if shared:
        verb = "is" if len(shared) == 1 else "are"
        logger.warning(
            f"{pluralize(len(shared), 'task')} of {dataset.eval_split} {verb} also in {dataset.train_split}, so the "
            "evaluation is not on held-out tasks: set dataset.train_split and dataset.eval_split apart"
        )


def _content(task: Task) -> tuple[Any, ...]:
    """Return everything of a task but its name."""
    return (task.prompt, *sorted(task.fields.items()))


def check_new_folder(folder: RunFolder) -> None:
    """Raise UserError if the folder contains a run or cannot be a folder.

    Missing permissions are only a warning, because the run may start on another machine.
    """
    if folder.config.exists():
        hint = f"resume it with --resume {shlex.quote(str(folder))}, or set another output.run_name"
        raise UserError(f"{folder} already contains a run: {hint}")
    existing = next(parent for parent in (folder.path, *folder.path.parents) if parent.exists())
    if not existing.is_dir():
        raise UserError(f"output folder {folder} cannot be made ({existing} is not a folder): set output.base_dir")
    if not os.access(existing, os.W_OK | os.X_OK):
        reason = f"no right to write to {existing}"
        logger.warning(f"output folder {folder} cannot be made here ({reason}): set output.base_dir")


async def check_actors(config: Config, actors: RunActors, inputs: RunInputs, folder: Path) -> None:
    """Check that learners see the run folder, that a policy's actors load one tokenizer, and that prompts fit.

    Warns of prompts that are too long, which will be skipped. Raises UserError, also if a prompt is empty or if all
    prompts are too long.
    """
    sees_folder = await gather(*(learner.sees_path(str(folder)) for learner in actors.learners))
    for learner, sees in zip(actors.learners, sees_folder, strict=True):
        if not sees:
            blind = f"{ActorId('learner', learner.policy)} does not see {folder}"
            raise UserError(f"{blind}: output.base_dir should be on a file system that every node shares")
    prompts_of_tasks = list(map(inputs.environment.first_prompts, inputs.train_tasks))
    max_length = config.model.max_length
    too_long: set[int] = set()
    """Indices of the tasks with a prompt that is too long for one of the agents."""
    for agent, settings in enumerate(config.agents):
        await _check_tokenizers(config, actors, agent, inputs.probe_texts(agent))
        prompts = []
        for task_prompts in prompts_of_tasks:
            prompts.append(with_system_prompt(task_prompts[agent], settings.system_prompt))
        lengths = await actors.generators[agent].prompt_lengths(prompts, settings.chat_template_kwargs)
        for index, length in enumerate(lengths):
            if length == 0:
                task = inputs.train_tasks[index]
                raise UserError(f"task {task.id}: the first prompt of agent {agent} is empty, and a model needs a text")
            if length + settings.max_new_tokens > max_length:
                too_long.add(index)
    limit = max_length - max(agent.max_new_tokens for agent in config.agents)
    count = len(prompts_of_tasks)
    if len(too_long) == count:
        raise UserError(
            f"all {count} prompts are longer than the {limit} tokens that model.max_length {max_length} leaves beside "
            "max_new_tokens: raise model.max_length"
        )
    if too_long:
        number = f"{len(too_long)} of {count} training prompts"
        logger.warning(f"{number} are longer than {limit} tokens and will be skipped (model.max_length)")


async def check_logprob_agreement(config: Config, actors: RunActors, inputs: RunInputs) -> None:
    """Compare the log-probabilities of generators and learners on the same tokens with the same weights.

    Completions are sampled without top_p and top_k, so that truncation neither hides a difference nor causes one.
    Raises UserError if an agent's mean absolute difference exceeds max_logprob_gap (nats per token).
    """
    bound = config.training.max_logprob_gap
    if bound is None:
        return
    sampled = await gather(*(_sample(config, actors, inputs, agent) for agent in range(config.num_agents)))
    # Sampling is over for all agents: engines that share a device with learners may sleep now.
    gaps = await gather(*(_logprob_gap(actors, agent, groups) for agent, groups in enumerate(sampled)))
    for agent, gap in enumerate(gaps):
        if not gap <= bound:  # also if the gap is NaN
            raise UserError(
                f"agent {agent}: generator and learner differ by {gap:.3g} nats per token on the same tokens, more "
                f"than {config.algorithm}.max_logprob_gap {bound:g}: the trained policy would not be the sampled one. "
                f"{_likely_causes(config, agent)}"
            )


def agreement_probe(config: Config, inputs: RunInputs, agent: int) -> AgreementProbe | None:
    """Return the comparison for generators that start during a run. None for GPUs used in turns, which do not hold
    engine and learner at once, and without a bound."""
    from marl_ray.actors.weight_update_client import AgreementProbe

    bound = config.training.max_logprob_gap
    if bound is None or takes_turns(config.resources.residency):
        return None
    return AgreementProbe(inputs.probe_texts(agent)[0], _sampling(config, agent), bound)


def _sampling(config: Config, agent: int) -> SamplingSpec:
    settings = config.agents[agent]
    return SamplingSpec(
        num_generations=1,
        max_new_tokens=min(settings.max_new_tokens, COMPARED_TOKENS),
        temperature=settings.temperature,
        top_p=1.0,
        top_k=None,
        seed=stream_seed(config.seed, "agreement", agent),
    )


async def _sample(config: Config, actors: RunActors, inputs: RunInputs, agent: int) -> list[Group]:
    """Return a few short completions; none if no prompt leaves space for one."""
    generators = actors.generators[agent]
    sampling = _sampling(config, agent)
    # Requests go to the replica with the fewest of them, so each replica is compared.
    prompts = inputs.probe_texts(agent)[: max(COMPARED_PROMPTS, generators.size)]
    generations = await gather(*(generators.generate(prompt, sampling) for prompt in prompts))
    groups = []
    for generation in generations:
        if generation.completions:
            # Rewards and returns do not matter for a comparison of log-probabilities.
            calls = sibling_calls(generation.prompt_ids, generation.completions)
            groups.append(Group(0, calls, (0.0,), (0.0,)))
    return groups


async def _logprob_gap(actors: RunActors, agent: int, groups: Sequence[Group]) -> float:
    if not groups:
        return 0.0
    return await actors.learner_of(agent).logprob_gap(groups)


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
            pair = f"{ActorId('learner', learner.policy)} and {ActorId('generator', learner.policy, replica)}"
            name = config.agents[agent].name
            raise UserError(f"{pair} load different tokenizers for {name}: their ids of the same text differ")
