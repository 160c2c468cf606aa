"""What `--model` names, and the config that plays it: of a model only the weights count, all else is the config's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from marl_ray.config import Config
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.core.text import pluralize
from marl_ray.models.lora import ADAPTER_FILE
from marl_ray.models.tokenization import is_named_base
from marl_ray.models.weight_files import SHARDS
from marl_ray.storage.checkpoints import NAME, checkpoint_step, read_state
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder

BASE = "base"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as it was asked for: a label, and the weights of each agent, as names of models.

    `adapters`: folders among them that hold an adapter alone, and the name of the model that each is for.
    """

    label: str
    weights: tuple[str, ...]
    adapters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """Who is measured: a label, and a config whose agents have the weights, those of the sources `players`.

    `templates` say whether an agent's prompts go through the chat template, where its base model's name says so.
    """

    label: str
    players: tuple[str, ...]
    config: Config
    templates: tuple[bool | None, ...]


def find_model_sources(names: Sequence[str], config: Config) -> list[ModelSource]:
    """What each `--model` stands for: `base`, the config's models; a run, its trained models, or its newest checkpoint
    where there are none yet or they are of fewer steps; a checkpoint. Raises UserError."""
    found = [_source(name, config) for name in names]
    labels = [source.label for source in found]
    for number, (name, source) in enumerate(zip(names, found, strict=True)):
        if source.weights in [other.weights for other in found[:number]]:
            raise UserError(f"--model {name} is given twice: leave one away")
        if labels.count(source.label) > 1:  # runs of one name in different folders are called as they are given
            found[number] = replace(source, label=name)
    return found


def run_folder_of(path: Path) -> Path:
    """The folder of the run that a folder is, or is a checkpoint of."""
    path = expand_home(path)
    return path.resolve().parent.parent if NAME.fullmatch(path.name) else path


def _source(name: str, config: Config) -> ModelSource:
    if name == BASE:
        return ModelSource(BASE, tuple(agent.name for agent in config.agents))
    path = expand_home(Path(name)).resolve()
    if NAME.fullmatch(path.name) and path.is_dir():
        read_state(path)  # whole, or a UserError
        return _kept(f"{path.parent.parent.name}/{path.name}", path, RunFolder(path.parent.parent), config)
    folder = RunFolder(path)
    if not folder.config.exists():
        raise UserError(f"--model {name} is neither {BASE} nor the folder of a run or of a checkpoint (step_000010)")
    if folder.models.is_dir() and not _went_on(folder):
        return _kept(path.name, folder.models, folder, config)
    newest = folder.checkpoints.latest()
    if newest is None:
        raise UserError(f"--model {name} has neither trained models nor a checkpoint yet")
    return _kept(path.name, newest[0], folder, config)


def _went_on(run: RunFolder) -> bool:
    """Whether it has been trained further since it left its models."""
    trained, checkpoints = run.trained_steps(SavedRun.read(run.path).config().policies), run.checkpoints.all()
    return trained is not None and bool(checkpoints) and checkpoint_step(checkpoints[-1]) > trained


def _kept(label: str, folder: Path, run: RunFolder, config: Config) -> ModelSource:
    """What a run has left in `folder` of each agent's policy. Its own config says which agents share one, whoever plays
    them here."""
    own = SavedRun.read(run.path).config()
    there = sorted(path.name for path in folder.iterdir() if re.fullmatch(r"(agent|policy)_\d+", path.name))
    wanted = sorted(policy.key for policy in own.policies)
    if own.num_agents != config.num_agents:
        raise UserError(
            f"{folder} is of a run of {pluralize(own.num_agents, 'agent')}, but the config has {config.num_agents}"
        )
    if there != wanted:
        raise UserError(f"{folder} holds {', '.join(there) or 'no model'}, but its run has {', '.join(wanted)}")
    if any((folder / name / SHARDS).is_dir() for name in wanted):
        raise UserError(
            f"{folder} holds the parts of a learner's ranks, which engines do not load: evaluate the run once it has "
            "ended, when they are one model in its models/"
        )
    weights = tuple(str(folder / own.policy_of(agent).key) for agent in range(config.num_agents))
    players = zip(weights, own.agents, strict=True)
    adapters = {path: agent.name for path, agent in players if (Path(path) / ADAPTER_FILE).exists()}
    return ModelSource(label, weights, adapters)


def evaluated_models(sources: Sequence[ModelSource], config: Config, swap: bool) -> list[EvaluatedModel]:
    """One a source; with `swap` one for every way to fill the agents' places with the sources. Raises UserError."""
    if not swap:
        return [_evaluated_model(source.label, [source] * config.num_agents, config) for source in sources]
    if len(sources) < 2 or config.num_agents < 2:
        raise UserError("--swap puts models in each other's places: give --model twice or more, for several agents")
    places = product(sources, repeat=config.num_agents)
    return [_evaluated_model("+".join(source.label for source in chosen), chosen, config) for chosen in places]


def _evaluated_model(label: str, players: Sequence[ModelSource], config: Config) -> EvaluatedModel:
    """`players` are the source of each agent's weights."""
    places = enumerate(zip(config.agents, players, strict=True))
    agents = tuple(replace(settings, name=player.weights[agent], policy=None) for agent, (settings, player) in places)
    # The folder of a trained model is called agent_0, whatever its base model was called.
    undecided = config.model.use_chat_template is None
    templates = tuple(False if undecided and is_named_base(agent.name) else None for agent in config.agents)
    return EvaluatedModel(label, tuple(player.label for player in players), replace(config, agents=agents), templates)


def single_agent(contender: EvaluatedModel) -> EvaluatedModel:
    """The same with its last agent alone, which in code generation is the one that writes the main function."""
    config = replace(contender.config, agents=contender.config.agents[-1:])
    return replace(contender, players=contender.players[-1:], config=config, templates=contender.templates[-1:])


def policy_config(contender: EvaluatedModel, agent: int) -> Config:
    """The config that one agent's generators are made from."""
    config, through = contender.config, contender.templates[agent]
    return config if through is None else replace(config, model=replace(config.model, use_chat_template=through))


def describe_weights(contender: EvaluatedModel) -> list[dict[str, Any]]:
    """For the records."""
    return [{"agent": agent, "model": settings.name} for agent, settings in enumerate(contender.config.agents)]
