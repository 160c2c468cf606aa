"""Derived defaults, and checks that involve more than one setting.

Every check raises UserError with one line that says which setting to change.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from marl_ray.config.budget import completions_per_episode, joint_samples_per_episode, max_prompts_per_step
from marl_ray.config.dialects import DIALECTS
from marl_ray.config.keys import key_of
from marl_ray.config.learning_rules import learning_problems
from marl_ray.config.model_length import default_max_length
from marl_ray.config.rules import broken_rules
from marl_ray.config.schema import Config
from marl_ray.config.sections import ModelConfig, OutputConfig
from marl_ray.core.errors import UserError
from marl_ray.credit import CRITICS, ESTIMATORS
from marl_ray.data import DATASETS, OBJECT, SAMPLERS, infer_type
from marl_ray.environments import ENVIRONMENTS
from marl_ray.external import MODES
from marl_ray.learning import LOSSES, OPTIMIZERS
from marl_ray.registry import Registry
from marl_ray.rollout import HANDOFFS, JOINT_MODES
from marl_ray.telemetry import SINKS

PLUGINS = {
    "compat": DIALECTS,
    "environment": ENVIRONMENTS,
    "dataset.type": DATASETS,
    "external.mode": MODES,
    "{algorithm}.estimator": ESTIMATORS,
    "{algorithm}.loss": LOSSES,
    "{algorithm}.critic": CRITICS,
    "{algorithm}.optimizer": OPTIMIZERS,
    "{algorithm}.joint_mode": JOINT_MODES,
    "{algorithm}.handoff": HANDOFFS,
    "{algorithm}.eval_handoff": HANDOFFS,
    "dataset.sampler": SAMPLERS,
}
"""Registry by setting, for settings whose values are names of plug-ins."""
DEFAULT_AGENTS = {"magrpo": 2, "grpo": 1}
MAX_AGENTS = 100
MAX_SAMPLES = 1_000_000
"""Maximum number of joint samples, and of completions, per step."""
MAX_NAME_BYTES = 255
"""Length limit of file systems for the name of a file or folder."""
TOKENIZER_VALUES = {
    "padding_side": ("left", "right"),
    "truncation_side": ("left", "right"),
    "backend": ("tokenizers", "sentencepiece"),
    "add_eos_token": (False, None),
    **dict.fromkeys(
        ("use_fast", "legacy", "add_bos_token", "add_prefix_space", "local_files_only"), (True, False, None)
    ),
}
"""Allowed values of common tokenizer arguments. An EOS token after the prompt would end it."""
TEMPLATE_ARGUMENTS = (
    *("messages", "conversation", "chat_template", "add_generation_prompt", "continue_final_message"),
    *("tokenize", "return_dict", "return_tensors", "return_assistant_tokens_mask", "padding", "truncation"),
)
"""Arguments of `apply_chat_template` that are no variables of the template."""


def count_agents(entries: Sequence[Any] | None, given: int | None, algorithm: str) -> int:
    """Return the number of agents from the settings `agents` and `num_agents`. Raises UserError if they disagree."""
    key = f"{algorithm}.num_agents"
    number = given
    if number is None and entries:
        number = len(entries)
    elif number is None:
        number = DEFAULT_AGENTS[algorithm]
    if entries is not None and len(entries) != number:
        raise UserError(f"agents names {len(entries)} models but {key} is {number}: make them agree")
    if number < 1:
        raise UserError(f"{key} should be at least 1, got {number}")
    if number > MAX_AGENTS:
        raise UserError(f"{key} should be at most {MAX_AGENTS}, got {number}")
    if algorithm == "grpo" and number > 1:
        raise UserError(f"grpo trains one agent, {key} is {number}: use a magrpo section for several")
    return number


def shared_policy(given: int | None, number: int) -> int | None:
    """Return the agent whose policy agent `number` shares, or None for a policy of its own. Raises UserError."""
    if given is not None and given > number:
        raise UserError(f"""policy of agent {number} is {given}: it should be the number of an earlier agent, or null
        for a policy of its own""")
    if given == number:
        return None
    return given


def derive(run: dict[str, Any], entries: Sequence[Mapping[str, Any]], algorithm: str) -> None:
    """Fill in the defaults that depend on other settings. `run` contains values by key and is modified; `entries` are
    the settings of single agents."""
    # An environment of Python, module:Attr, may bring its tasks along.
    if not run["dataset.name"] and run["environment"] and ":" in run["environment"]:
        splits = getattr(ENVIRONMENTS.get(run["environment"]), "splits", None)
        if splits:
            run["dataset.name"] = f"{OBJECT}{run['environment']}"
            if not run["dataset.eval_split"] and "eval" in splits:
                run["dataset.eval_split"] = "eval"
    if run["dataset.type"] is None and run["dataset.name"]:
        run["dataset.type"] = infer_type(run["dataset.name"])
    if run["environment"] is None and run["dataset.type"]:
        run["environment"] = DATASETS.get(run["dataset.type"]).environment
        if not run["environment"]:
            raise UserError(f"dataset.type {run['dataset.type']} has no environment of its own: set environment")
    # An environment around another one names it in its section; by default it is the one of the data set.
    inner = f"{run['environment']}.environment"
    if inner in run and run[inner] is None and run["dataset.type"]:
        run[inner] = DATASETS.get(run["dataset.type"]).environment
    if run["model.max_length"] is None:
        models = [run["model.name"], run[f"{algorithm}.reference_model"]]
        for entry in entries:
            models.append(entry.get("name"))
            models.append(entry.get("reference_model"))
        run["model.max_length"] = default_max_length(models)
    # The algorithms are named after their estimators.
    run[f"{algorithm}.estimator"] = run[f"{algorithm}.estimator"] or algorithm
    if run[f"{algorithm}.turn_gradient_weights"] is None:
        run[f"{algorithm}.turn_gradient_weights"] = (1.0,) * run[f"{algorithm}.num_turns"]
    arguments = "model.tokenizer_kwargs"
    trust_key = "model.model_kwargs.trust_remote_code"
    run[arguments] = dict(run[arguments])
    trust = run[arguments].pop("trust_remote_code", run[trust_key])
    if trust != run[trust_key]:
        raise UserError(f"""{arguments}.trust_remote_code is {trust}, and it is one setting for model and tokenizer: set
        {trust_key}""")


def check(config: Config) -> None:
    """Raise UserError for the first problem of a complete config."""
    agents = range(config.num_agents)
    for problem in chain(
        broken_rules(config),
        _plugin_problems(config),
        _tokenizer_problems(config.model),
        *(_template_problems(config, number) for number in agents),
        learning_problems(config),
        _size_problems(config),
        _output_problems(config.output),
    ):
        raise UserError(problem)


def plugins_of_run(config: Config) -> list[tuple[Registry, str]]:
    """Return registry and name of each plug-in that the config names, except estimators, which agents name."""
    return [
        (ENVIRONMENTS, config.environment),
        (MODES, config.external.mode),
        (DATASETS, config.dataset.type),
        (SAMPLERS, config.dataset.sampler),
        (LOSSES, config.training.loss),
        (CRITICS, config.training.critic),
        (OPTIMIZERS, config.training.optimizer),
        (JOINT_MODES, config.training.joint_mode),
        (HANDOFFS, config.training.handoff),
        (HANDOFFS, config.training.eval_handoff),
        *((SINKS, name) for name in config.output.sinks),
    ]


def _plugin_problems(config: Config) -> Iterator[str]:
    """Check that there is a plug-in of each name."""
    for registry, name in plugins_of_run(config):
        registry.check(name)  # raises UserError, and imports no plug-in
    for number, agent in enumerate(config.agents):
        try:
            ESTIMATORS.check(agent.estimator)
        except UserError as error:
            yield f"{key_of(config, number, 'estimator')}: {error}"


def _is_date(text: str) -> bool:
    try:
        return datetime.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _tokenizer_problems(model: ModelConfig) -> Iterator[str]:
    if model.template_date is not None and not _is_date(model.template_date):
        yield f"model.template_date should be a date as text, like '2026-01-31', got {model.template_date!r}"
    given = model.tokenizer_kwargs
    name = "model.tokenizer_kwargs"
    for key in given:
        if not key.isidentifier():
            yield f"{name} has the argument '{key}', which is not a name: write name: value"
        if not _is_plain(given[key]):
            yield f"""{name}.{key} should be text, a number, true, false, null, or a list or mapping of these (20 levels
            at most), got {given[key]!r}"""
    for key in ("token", "use_auth_token"):
        if key in given:
            yield f"{name}.{key} would be written into the run folder: set the variable HF_TOKEN"
    for key in ("pretrained_model_name_or_path", "config"):
        if key in given:
            yield f"{name}.{key} conflicts with model.name, which selects the tokenizer: leave it out"
    for key, values in TOKENIZER_VALUES.items():
        if key in given and given[key] not in values:
            options = ", ".join(str(value).lower() for value in values if value is not None)
            yield f"{name}.{key} should be {options}, got {given[key]!r}"


def _template_problems(config: Config, number: int) -> Iterator[str]:
    name = key_of(config, number, "chat_template_kwargs")
    for key, value in config.agents[number].chat_template_kwargs.items():
        if not key.isidentifier() or key in TEMPLATE_ARGUMENTS:
            yield f"{name} has '{key}', which is no variable of a chat template: leave it out"
        if not _is_plain(value):
            yield f"{name}.{key} should be text, a number, true, false, null, or a list or mapping, got {value!r}"


def _is_plain(value: Any, levels: int = 20) -> bool:
    """Return whether the run's config.yaml preserves the value."""
    if isinstance(value, dict):
        return levels > 0 and all(_is_plain(k, 0) and _is_plain(inner, levels - 1) for k, inner in value.items())
    if isinstance(value, list):
        return levels > 0 and all(_is_plain(inner, levels - 1) for inner in value)
    return value is None or type(value) in (bool, int, float, str)


def _size_problems(config: Config) -> Iterator[str]:
    rollout = config.training
    section = config.algorithm
    tasks = max_prompts_per_step(rollout, rollout.rollout_buffer_size)
    completions = completions_per_episode(rollout, config.num_agents) * config.num_agents
    if tasks * max(joint_samples_per_episode(rollout, config.num_agents), completions) > MAX_SAMPLES:
        remedies = [f"lower {section}.num_generations or {section}.rollout_buffer_size"]
        if rollout.joint_mode == "cross":
            remedies.append("set joint_mode to aligned")
        if rollout.handoff == "all":
            remedies.append("set handoff to random")
        yield f"""one step would have more than {MAX_SAMPLES:,} joint samples or completions, which all stay in memory
        until the update: {", or ".join(remedies)}"""


def _output_problems(output: OutputConfig) -> Iterator[str]:
    name = output.run_name
    for key, text in (("base_dir", output.base_dir), ("run_name", name or "")):
        longest = max((len(part.encode()) for part in Path(text).parts), default=0)
        if longest > MAX_NAME_BYTES:
            yield f"output.{key} has a name of {longest} bytes, and the limit is {MAX_NAME_BYTES}: shorten it"
    if name is not None and (Path(name).is_absolute() or ".." in Path(name).parts or Path(name) == Path()):
        yield f"output.run_name {name!r} should be the name of a folder below output.base_dir"
