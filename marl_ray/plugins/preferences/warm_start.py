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
from marl_ray.plugins.preferences.command import WarmStartRequest
from marl_ray.plugins.preferences.epochs import HeldOutFit, change, train_epochs
from marl_ray.plugins.preferences.preference_file import PAIRS, PreferencesFile
from marl_ray.plugins.preferences.preference_training import PreferenceTrainer, hold_out_preferences
from marl_ray.plugins.preferences.selection import AnswerSelection, demonstrations, hold_out, merged_by_prompt
from marl_ray.plugins.preferences.supervised import supervised
from marl_ray.plugins.preferences.written_answers import AnswersFile
from marl_ray.storage.run_folder import RunFolder

PROBES = 64
"""Number of prompts on which the saved tokenizer is compared with the model's."""


def warm_start(config: Config, request: WarmStartRequest) -> str:
    """Train and write all policies, and return a summary. The folder is complete or absent. Raises UserError."""
    target = output_folder(request.to)
    names = dict.fromkeys(agent.name for agent in config.agents)
    templates = {name: check_model(name, config.model)[0] for name in names}
    fit_models = _fit_demonstrations if not request.preferences else _fit_preferences
    with complete_folder(target) as path:
        hidden = RunFolder(path)
        hidden.models.mkdir(parents=True)
        result = fit_models(config, request, templates, hidden)
        hidden.config.write_text(to_yaml(_config_of_models(config, RunFolder(target), templates)), encoding="utf-8")
    command = f"marl-ray train {config.algorithm} --config {shlex.quote(str(RunFolder(target).config))}"
    return f"{pluralize(len(config.policies), 'model')} in {target}; {result}; next: {command}"


def _fit_demonstrations(
    config: Config, request: WarmStartRequest, templates: Mapping[str, bool], folder: RunFolder
) -> str:
    """Train every policy on its demonstrations, and return the result as text."""
    selects = request.min_return is not None or request.best is not None
    selection = AnswerSelection(request.min_return, request.best) if selects else AnswerSelection(None, 1)
    if request.run is not None:
        groups_of = logged_groups(RunFolder(request.run), config.num_agents)
    else:
        assert request.answers is not None
        groups_of, has_rewards = AnswersFile(request.answers, config, templates).groups()
        groups_of = list(map(merged_by_prompt, groups_of))
        if not has_rewards and selects:
            raise UserError(f"{request.answers} has no rewards: leave out --min-return and --best")
        if not has_rewards:
            selection = AnswerSelection(None, None)
    by_policy: dict[PolicyId, list[Group]] = {}
    for policy in config.policies:
        by_policy[policy] = []
        for agent in policy.agents:
            by_policy[policy] += demonstrations(groups_of[agent], selection, f"agent {agent}")
    losses = []
    for policy, groups in by_policy.items():
        parts = hold_out(groups, request.held_out, config.seed, policy.key)
        losses.append(f"{policy.key} {change(_train(config, policy, request, parts, folder.model(policy)))}")
    return f"held-out loss: {', '.join(losses)} nats per token"


def _fit_preferences(
    config: Config, request: WarmStartRequest, templates: Mapping[str, bool], folder: RunFolder
) -> str:
    """Train all policies together on joint preferences, and return the result as text."""
    files = [PreferencesFile(path, config, templates) for path in request.preferences]
    preferences = [one for file in files for one in file.preferences(request.pairs or PAIRS)]
    parts = hold_out_preferences(preferences, request.held_out, config.seed)
    if request.learning_rate is not None:
        agents = tuple(replace(agent, learning_rate=request.learning_rate) for agent in config.agents)
        config = replace(config, agents=agents)
    steps = request.epochs * math.ceil(len(parts[0]) / request.batch_size)
    trainer = PreferenceTrainer(config, steps, not request.no_reference)
    trainer.set_reference(preferences)
    sizes = (request.epochs, request.batch_size)
    fits = train_epochs(
        "policies", "preference", parts, *sizes, config.seed, ["preferences"], trainer.step, trainer.fit
    )
    trainer.export({policy.key: folder.model(policy) for policy in config.policies}, preferences[:PROBES])
    return f"held-out loss of preferences: {change(fits)}"


def logged_groups(folder: RunFolder, agents: int) -> list[list[Group]]:
    """Return the groups of each agent in the batch log of a run. Raises UserError."""
    steps = folder.log.steps()
    if not steps:
        raise UserError(f"{folder} has no logged batch: a run with output.keep_batches: true keeps all of its batches")
    batches = [folder.log.read(step, agents).batches for step in steps]
    return [[g for of_step in batches for part in of_step[a].mini_batches for g in part.groups] for a in range(agents)]


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
        policy.key, "demonstration", parts, request.epochs, request.batch_size, config.seed, stream, step, fit
    )
    texts = [learner.tokenizer.decode(group.prompt_ids) for group in (*parts[1], *parts[0])[:PROBES]]
    learner.export(str(folder), texts)
    return fits


def mean_loss(learner: Learner, groups: Sequence[Group]) -> float:
    """Return the mean negative log-probability of the answers' tokens, in nats."""
    rows = [unweighted_row(group) for group in groups]
    logprobs = learner.logprob_model.logprobs(rows, learner.settings.tokens_per_microbatch)
    return -sum(float(of_answer.double().sum()) for of_answer in logprobs) / sum(map(len, logprobs))


def _config_of_models(config: Config, folder: RunFolder, templates: Mapping[str, bool]) -> Config:
    """Return the config with the models of `folder`, and prompts in the format of the models before.

    A folder's name does not tell whether its model is a chat model, so use_chat_template becomes explicit.
    """
    agents = range(config.num_agents)
    changes: dict[str, object] = {
        f"agents.{agent}.name": str(folder.model(config.policy_of(agent))) for agent in agents
    }
    changes["output.run_name"] = None
    if config.model.use_chat_template is None and len(set(templates.values())) == 1:
        changes["model.use_chat_template"] = next(iter(templates.values()))
    return from_tree(to_tree(config), config.algorithm, changes)
