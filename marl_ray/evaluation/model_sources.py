"""Resolution of `--model` to weights, and the configs that evaluate them. Only weights come from a model's run.

Engines load complete models, so LoRA adapters are merged into their base models for the time of an evaluation.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from marl_ray.config import AgentConfig, Config, ModelConfig
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.core.text import pluralize
from marl_ray.models.lora import ADAPTER_FILE, peft_installed
from marl_ray.models.names import check_model, resolve_model
from marl_ray.models.tokenization import is_named_base
from marl_ray.models.weight_files import SHARDS, check_folder
from marl_ray.storage.checkpoints import NAME, checkpoint_step, read_state
from marl_ray.storage.resume import SavedRun
from marl_ray.storage.run_folder import RunFolder

logger = logging.getLogger(__name__)
BASE = "base"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A requested model: its label, and a model name or folder per agent.

    `adapters` maps the folders that hold only a LoRA adapter to their base models.
    """

    label: str
    weights: tuple[str, ...]
    adapters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """A model to evaluate: its label, and a config whose agents have the weights of the sources `sources`.

    `templates` says per agent whether prompts use the chat template (None: as the config says).
    """

    label: str
    sources: tuple[str, ...]
    """The label of each agent's source."""
    config: Config
    templates: tuple[bool | None, ...]


def find_model_sources(names: Sequence[str], agents: Sequence[AgentConfig]) -> list[ModelSource]:
    """Return the source of each `--model`: `base` for the agents' models, `bundled:NAME` or the folder of a model for
    all agents, else the folder of a run or a checkpoint.

    A run stands for its trained models, or for its newest checkpoint if that has more steps. Raises UserError.
    """
    sources: list[ModelSource] = []
    weights = set()
    for name in names:
        source = _source(name, agents)
        if source.weights in weights:
            raise UserError(f"--model {name} is given twice: remove one")
        weights.add(source.weights)
        sources.append(source)
    labels = Counter(source.label for source in sources)
    for number, source in enumerate(sources):
        if labels[source.label] > 1:  # runs with the same name in different folders
            sources[number] = replace(source, label=names[number])
    return sources


def run_folder_of(path: Path) -> Path:
    """Return the run folder of a path to a run or to one of its checkpoints."""
    path = expand_home(path)
    return path.resolve().parent.parent if NAME.fullmatch(path.name) else path


def named_model(name: str) -> str | None:
    """Return the one model for all agents that a `--model` names, None if it is `base`, a run or a checkpoint."""
    if name.startswith("bundled:"):
        return name
    path = expand_home(Path(name)).resolve()
    return str(path) if (path / "config.json").exists() and not (path / ADAPTER_FILE).exists() else None


def _source(name: str, agents: Sequence[AgentConfig]) -> ModelSource:
    if name == BASE:
        return ModelSource(BASE, tuple(agent.name for agent in agents))
    model = named_model(name)
    if model is not None:
        return ModelSource(Path(model).name, (model,) * len(agents))
    path = expand_home(Path(name)).resolve()
    if NAME.fullmatch(path.name) and path.is_dir():
        read_state(path)  # raises UserError if it is incomplete
        return _source_in(f"{path.parent.parent.name}/{path.name}", path, RunFolder(path.parent.parent), len(agents))
    folder = RunFolder(path)
    if not folder.config.exists():
        raise UserError(
            f"--model {name} is neither {BASE}, bundled:NAME nor the folder of a model, of a run or of a checkpoint "
            "(step_000010)"
        )
    if folder.models.is_dir() and not _trained_further(folder):
        return _source_in(path.name, folder.models, folder, len(agents))
    newest = folder.checkpoints.latest()
    if newest is None:
        raise UserError(f"--model {name} has neither trained models nor a checkpoint yet")
    return _source_in(path.name, newest[0], folder, len(agents))


def _trained_further(run: RunFolder) -> bool:
    """Return whether the run has a checkpoint of more steps than its trained models."""
    trained = run.trained_steps(SavedRun.read(run.path).config().policies)
    checkpoints = run.checkpoints.all()
    return trained is not None and bool(checkpoints) and checkpoint_step(checkpoints[-1]) > trained


def _source_in(label: str, folder: Path, run: RunFolder, num_agents: int) -> ModelSource:
    """Return the source in `folder` of a run. The run's config determines which agents share a policy. The frozen
    partners of a run may be left out."""
    own = SavedRun.read(run.path).config()
    present = sorted(path.name for path in folder.iterdir() if re.fullmatch(r"(agent|policy)_\d+", path.name))
    expected = sorted(policy.key for policy in own.policies)
    if num_agents not in (own.num_agents, own.team_size):
        raise UserError(
            f"{folder} belongs to a run of {pluralize(own.num_agents, 'agent')}, but the config has {num_agents}"
        )
    if present != expected:
        raise UserError(f"{folder} holds {', '.join(present) or 'no model'}, but its run has {', '.join(expected)}")
    if any((folder / name / SHARDS).is_dir() for name in expected):
        raise UserError(
            f"{folder} holds the shards of a multi-rank learner, which engines cannot load: evaluate the run after it "
            "has ended, when models/ holds complete models"
        )
    weights = []
    adapters = {}
    # Frozen partners of the run come last, and may be left out.
    for number, agent in enumerate(own.agents[:num_agents]):
        path = folder / own.policy_of(number).key
        weights.append(str(path))
        if (path / ADAPTER_FILE).exists():
            adapters[str(path)] = agent.name
    return ModelSource(label, tuple(weights), adapters)


def evaluated_models(sources: Sequence[ModelSource], config: Config, swap: bool) -> list[EvaluatedModel]:
    """Return one model per source, or with `swap` one per assignment of sources to agents. Raises UserError."""
    if swap and (len(sources) < 2 or config.num_agents < 2):
        raise UserError(
            "--swap combines models across agents: give --model at least twice, and a config of several agents"
        )
    assignments = [(source,) * config.num_agents for source in sources]
    if swap:
        assignments = list(product(sources, repeat=config.num_agents))
    # A trained model's folder is named agent_0 and does not tell whether its base model has a chat template.
    undecided = config.model.use_chat_template is None
    templates: list[bool | None] = []
    for agent in config.agents:
        templates.append(False if undecided and is_named_base(agent.name) else None)
    models = []
    for chosen in assignments:
        agents = []
        for number, (agent, source) in enumerate(zip(config.agents, chosen, strict=True)):
            agents.append(replace(agent, name=source.weights[number], policy=None))
        labels = tuple(source.label for source in chosen)
        label = "+".join(labels) if swap else labels[0]
        models.append(EvaluatedModel(label, labels, replace(config, agents=tuple(agents)), tuple(templates)))
    return models


def single_agent(model: EvaluatedModel) -> EvaluatedModel:
    """Return the model with its last agent only, which in code generation writes the main function."""
    config = replace(model.config, agents=model.config.agents[-1:])
    return replace(model, sources=model.sources[-1:], config=config, templates=model.templates[-1:])


def policy_config(model: EvaluatedModel, agent: int) -> Config:
    """Return the config of one agent's generators."""
    template = model.templates[agent]
    if template is None:
        return model.config
    settings = replace(model.config.model, use_chat_template=template)
    return replace(model.config, model=settings)


def check_models(
    models: Sequence[EvaluatedModel], sources: Sequence[ModelSource], config: ModelConfig
) -> dict[str, str]:
    """Check the files of all models before any actor starts, and return the base model of each adapter among them.
    Raises UserError."""
    bases: dict[str, str] = {}
    """The base model of each adapter of the sources, some of which no model uses."""
    for source in sources:
        bases |= source.adapters
    adapters = {}
    complete: dict[str, None] = {}
    """Names of complete models, each once."""
    for model in models:
        for agent in model.config.agents:
            if agent.name in bases:
                adapters[agent.name] = bases[agent.name]
            complete[bases.get(agent.name, agent.name)] = None
    for name in adapters:
        check_adapter(name)
    for name in complete:
        check_model(name, config)
    return adapters


def check_adapter(folder: str) -> None:
    """Raise UserError unless the adapter is complete and peft is installed."""
    if not peft_installed():
        raise UserError(f"{folder} is an adapter, and peft is not installed: pip install 'marl-ray[lora]'")
    try:
        check_folder(Path(folder), own_tokenizer=True)
    except UserError as error:
        raise UserError(f"adapter {folder} cannot be loaded: {error}") from None


@contextmanager
def merged_adapters(
    models: Sequence[EvaluatedModel], adapters: Mapping[str, str], settings: ModelConfig
) -> Iterator[list[EvaluatedModel]]:
    """Yield the models with merged models in place of `adapters`, which maps folders of adapters to base models.

    The merged models are in a hidden folder of the adapter's run, which all nodes share, and are deleted at the end.
    Raises UserError.
    """
    with ExitStack() as stack:
        merged = {}
        for folder, base in adapters.items():
            merged[folder] = _merge(folder, base, settings, stack)
        loadable = []
        for model in models:
            agents = []
            for agent in model.config.agents:
                agents.append(replace(agent, name=merged.get(agent.name, agent.name)))
            loadable.append(replace(model, config=replace(model.config, agents=tuple(agents))))
        yield loadable


def _merge(folder: str, base: str, model: ModelConfig, stack: ExitStack) -> str:
    """Return the folder of the merged model. It keeps the adapter's name, on which the prompt format depends."""
    from marl_ray.learning.learner_files import save_merged_model  # torch

    logger.info(f"merging adapter {folder} into {base}")
    adapter = Path(folder)
    run = next(parent for parent in adapter.parents if RunFolder(parent).config.exists())
    try:
        parent = stack.enter_context(TemporaryDirectory(prefix=".merged-", dir=run))
        model_folder = Path(parent) / adapter.name
        save_merged_model(resolve_model(base), adapter, model_folder, model)
    except OSError as error:
        raise UserError(
            f"adapter {folder} cannot be merged into {base} in {run} ({error.strerror or error}): copy the run to a "
            "writable folder with enough space"
        ) from None
    return str(model_folder)
