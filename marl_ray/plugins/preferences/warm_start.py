"""A warm start of every policy, by the learner of a run and without Ray: supervised, or from joint preferences.

Supervised fine-tuning is the policy gradient with advantage 1: MAREINFORCE, whose advantage is the return, on groups of
one demonstration with return 1. The loss of a step is then the mean negative log-probability per token, at the agent's
sampling temperature.

The result has the layout of a run folder, so that every command that reads the models of a run reads it too:

| file | contents |
|---|---|
| models/agent_*/ | one model per policy, complete also if the config has LoRA adapters |
| config.yaml | the config of a run that starts from these models |
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from marl_ray.config import Config, from_tree, to_tree, to_yaml
from marl_ray.core.batch import Group
from marl_ray.core.errors import UserError
from marl_ray.core.files import complete_folder, output_folder
from marl_ray.core.ids import PolicyId
from marl_ray.core.text import pluralize
from marl_ray.credit.groups import build_batch, weight_group
from marl_ray.learning.arguments import learner_arguments
from marl_ray.learning.learner import Learner
from marl_ray.learning.micro_batches import unweighted_row
from marl_ray.models.names import check_model
from marl_ray.plugins.preferences.command import PAIRS, WarmStartRequest
from marl_ray.plugins.preferences.epochs import HeldOutFit, change, train_epochs
from marl_ray.plugins.preferences.preference_file import PreferencesFile, WrittenPreference
from marl_ray.plugins.preferences.preference_training import PreferenceTrainer
from marl_ray.plugins.preferences.selection import AnswerSelection, demonstrations, hold_out, merged_by_prompt
from marl_ray.plugins.preferences.supervised import supervised
from marl_ray.plugins.preferences.written_answers import AnswersFile
from marl_ray.storage.run_folder import RunFolder

PROBES = 64
"""Number of prompts on which the saved tokenizer is compared with the model's."""


def warm_start(config: Config, request: WarmStartRequest) -> str:
    """Train and write all policies, and return a summary. The folder is complete or absent. Raises UserError."""
    target = output_folder(request.to)
    templates: dict[str, bool] = {}
    for agent in config.agents:
        if agent.name not in templates:
            has_template, _ = check_model(agent.name, config.model)
            templates[agent.name] = has_template
    fit_models = _fit_preferences if request.preferences else _fit_demonstrations
    with complete_folder(target) as path:
        hidden = RunFolder(path)
        hidden.models.mkdir(parents=True)
        result = fit_models(config, request, templates, hidden)
        # The config names the models where they will be, not in the hidden folder.
        config_of_models = _config_of_models(config, RunFolder(target), templates)
        hidden.config.write_text(to_yaml(config_of_models), encoding="utf-8")
    command = f"marl-ray train {config.algorithm} --config {shlex.quote(str(RunFolder(target).config))}"
    return f"{pluralize(len(config.policies), 'model')} in {target}; {result}; next: {command}"


def _fit_demonstrations(
    config: Config, request: WarmStartRequest, templates: Mapping[str, bool], folder: RunFolder
) -> str:
    """Train every policy on its demonstrations, and return the result as text."""
    losses = []
    for policy, groups in _demonstrations(config, request, templates).items():
        prompts = [group.prompt_ids for group in groups]
        parts = hold_out(groups, prompts, request.held_out, config.seed, policy.key)
        fits = _train(config, policy, request, parts, folder.model(policy))
        losses.append(f"{policy.key} {change(fits)}")
    return f"held-out loss: {', '.join(losses)} nats per token"


def _fit_preferences(
    config: Config, request: WarmStartRequest, templates: Mapping[str, bool], folder: RunFolder
) -> str:
    """Train all policies together on joint preferences, and return the result as text."""
    preferences: list[WrittenPreference] = []
    for path in request.preferences:
        file = PreferencesFile(path, config, templates)
        preferences += file.preferences(request.pairs or PAIRS)
    prompts = [preference.chosen[0].prompt_ids for preference in preferences]
    parts = hold_out(preferences, prompts, request.held_out, config.seed, "preferences")
    if request.learning_rate is not None:
        agents = [replace(agent, learning_rate=request.learning_rate) for agent in config.agents]
        config = replace(config, agents=tuple(agents))
    steps = request.epochs * math.ceil(len(parts[0]) / request.batch_size)
    trainer = PreferenceTrainer(config, steps, not request.no_reference)
    trainer.set_reference(preferences)
    fits = train_epochs(
        "policies",
        "preference",
        parts,
        request.epochs,
        request.batch_size,
        config.seed,
        ["preferences"],
        trainer.step,
        trainer.fit,
    )
    folders = {policy.key: folder.model(policy) for policy in config.policies}
    trainer.export(folders, preferences[:PROBES])
    return f"held-out loss of preferences: {change(fits)}"


def _demonstrations(
    config: Config, request: WarmStartRequest, templates: Mapping[str, bool]
) -> dict[PolicyId, list[Group]]:
    """Return the demonstrations of every policy, from all of its agents."""
    selection = AnswerSelection(request.min_return, request.best)
    is_given = selection != AnswerSelection(None, None)
    if request.run is not None:
        candidates = logged_groups(RunFolder(request.run), config.num_agents)
        has_rewards = True
    else:
        assert request.answers is not None
        answers, has_rewards = AnswersFile(request.answers, config, templates).groups()
        candidates = [merged_by_prompt(groups) for groups in answers]
        if is_given and not has_rewards:
            raise UserError(f"{request.answers} has no rewards: leave out --min-return and --best")
    if has_rewards and not is_given:
        selection = AnswerSelection(None, 1)
    accepted: dict[PolicyId, list[Group]] = {}
    for policy in config.policies:
        accepted[policy] = []
        for agent in policy.agents:
            accepted[policy] += demonstrations(candidates[agent], selection, f"agent {agent}")
    return accepted


def logged_groups(folder: RunFolder, agents: int) -> list[list[Group]]:
    """Return the groups of each agent in the batch log of a run. Raises UserError."""
    steps = folder.log.steps()
    if not steps:
        raise UserError(f"{folder} has no logged batch: a run with output.keep_batches: true keeps all of its batches")
    groups: list[list[Group]] = [[] for _ in range(agents)]
    for step in steps:
        batches = folder.log.read(step, agents).batches
        for agent in range(agents):
            for mini_batch in batches[agent].mini_batches:
                groups[agent] += mini_batch.groups
    return groups


def _train(
    config: Config,
    policy: PolicyId,
    request: WarmStartRequest,
    parts: tuple[Sequence[Group], Sequence[Group]],
    folder: Path,
) -> list[HeldOutFit]:
    """Train one policy and write its model to `folder`. Return the held-out loss before training and after each epoch,
    in nats per token."""
    config = supervised(config, request.learning_rate)
    steps = request.epochs * math.ceil(len(parts[0]) / request.batch_size)
    learner = Learner(*learner_arguments(config, policy, steps))
    settings = config.agents[policy.first_agent]

    def step(groups: Sequence[Group]) -> float:
        weighted = [weight_group(group, settings, config.training) for group in groups]
        stats = learner.update(build_batch(weighted, learner.step, config.training))
        if stats.skipped_steps:
            raise UserError(f"{policy}: the loss is not finite in step {learner.step}: lower --learning-rate")
        return stats.loss

    def fit(groups: Sequence[Group]) -> HeldOutFit:
        return HeldOutFit(mean_loss(learner, groups))

    stream: list[str | int] = ["warmstart", policy.first_agent]
    fits = train_epochs(
        policy.key,
        "demonstration",
        parts,
        request.epochs,
        request.batch_size,
        config.seed,
        stream,
        step,
        fit,
    )
    trained, held_out = parts
    probes = [*held_out, *trained][:PROBES]
    texts = [learner.tokenizer.decode(group.prompt_ids) for group in probes]
    learner.export(str(folder), texts)
    return fits


def mean_loss(learner: Learner, groups: Sequence[Group]) -> float:
    """Return the mean negative log-probability of the answers' tokens, in nats."""
    rows = [unweighted_row(group) for group in groups]
    logprobs = learner.logprob_model.logprobs(rows, learner.settings.tokens_per_microbatch)
    total = 0.0
    tokens = 0
    for of_answer in logprobs:
        total += float(of_answer.double().sum())
        tokens += len(of_answer)
    return -total / tokens


def _config_of_models(config: Config, folder: RunFolder, templates: Mapping[str, bool]) -> Config:
    """Return the config with the models of `folder`, and prompts in the format of the models before.

    A folder's name does not tell whether its model is a chat model, so use_chat_template becomes explicit.
    """
    changes: dict[str, object] = {"output.run_name": None}
    for agent in range(config.num_agents):
        model = folder.model(config.policy_of(agent))
        changes[f"agents.{agent}.name"] = str(model)
    formats = set(templates.values())
    if config.model.use_chat_template is None and len(formats) == 1:
        (changes["model.use_chat_template"],) = formats
    return from_tree(to_tree(config), config.algorithm, changes)
