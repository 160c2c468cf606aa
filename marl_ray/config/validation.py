"""Defaults and checks that need more than one setting. Each raises UserError, in one line that says what to change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_ray.config.budget import joint_actions_per_node, max_prompts_per_step, nodes_per_episode
from marl_ray.config.learning_rules import check_learning
from marl_ray.config.output import OutputConfig
from marl_ray.config.requirements import require as _require
from marl_ray.config.requirements import where as _where
from marl_ray.config.schema import Config, ModelConfig
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize
from marl_ray.credit import BEYOND_SIBLINGS, ESTIMATORS
from marl_ray.data import DATASETS, infer_type
from marl_ray.environments import ENVIRONMENTS
from marl_ray.external import MODES

PLUGINS = {
    "environment": ENVIRONMENTS,
    "dataset.type": DATASETS,
    "external.mode": MODES,
    "{algorithm}.estimator": ESTIMATORS,
}
"""Settings whose values are names of plug-ins."""
MOST_AGENTS = 100
MOST_SAMPLES = 1_000_000
"""Joint samples, and completions, of one step."""
LONGEST_NAME = 255
"""Bytes that file systems allow a file or folder."""
TOKENIZER_VALUES = {
    "padding_side": ("left", "right"),
    "truncation_side": ("left", "right"),
    "backend": ("tokenizers", "sentencepiece"),
    "add_eos_token": (False, None),
    **dict.fromkeys(
        ("use_fast", "legacy", "add_bos_token", "add_prefix_space", "local_files_only"), (True, False, None)
    ),
}
"""Of common arguments of tokenizers; an EOS behind the prompt would be its end."""


def count_agents(entries: Sequence[Any] | None, given: int | None, algorithm: str) -> int:
    """The number of agents, from `agents` and `num_agents` as far as they are given."""
    number = given
    if number is None:
        number = len(entries) if entries else (2 if algorithm == "magrpo" else 1)
    _require(
        entries is None or len(entries) == number,
        f"agents names {len(entries or ())} models but {algorithm}.num_agents is {number}: make them agree",
    )
    _require(number >= 1, f"{algorithm}.num_agents should be at least 1, got {number}")
    _require(number <= MOST_AGENTS, f"{algorithm}.num_agents should be at most {MOST_AGENTS}, got {number}")
    _require(
        algorithm != "grpo" or number == 1,
        f"grpo trains one agent, grpo.num_agents is {number}: use a magrpo section for several",
    )
    return number


def derive(run: dict[str, Any], algorithm: str) -> None:
    """Fill in, among values by key, the defaults that are made from other settings."""
    if run["dataset.type"] is None and run["dataset.name"]:
        run["dataset.type"] = infer_type(run["dataset.name"])
    if run["environment"] is None and run["dataset.type"]:
        run["environment"] = DATASETS.get(run["dataset.type"]).environment
    if run[f"{algorithm}.estimator"] is None:
        run[f"{algorithm}.estimator"] = algorithm
    if run[f"{algorithm}.turn_gradient_weights"] is None:
        run[f"{algorithm}.turn_gradient_weights"] = (1.0,) * run[f"{algorithm}.num_turns"]
    _one_trust(run)


def _one_trust(run: dict[str, Any]) -> None:
    """`trust_remote_code` is one setting for model and tokenizer."""
    name, kept = "model.tokenizer_kwargs", "model.model_kwargs.trust_remote_code"
    arguments = dict(run[name])
    trust = arguments.pop("trust_remote_code", run[kept])
    _require(
        trust == run[kept],
        f"{name}.trust_remote_code is {trust}, and it is one setting for model and tokenizer: set {kept}",
    )
    run[name] = arguments


def check(config: Config) -> None:
    """Look at the whole. Raises UserError."""
    _require(
        all(agent.name for agent in config.agents),
        "no model: set model.name, or agents with one name an agent, or --model_name",
    )
    _require(bool(config.dataset.name), "no dataset: set dataset.name")
    _check_names(config)
    _check_tokenizer(config.model)
    _check_turns(config)
    _check_evaluation(config)
    check_learning(config)
    for number in range(config.num_agents):
        _check_resources(config, number)
        if config.resources.colocate:
            _check_colocation(config, number)
    _require(
        config.reward_processor.scale_factor != 0 or not config.reward_processor.enabled,
        "reward_processor.scale_factor is 0, which makes all rewards equal: nothing would be learned",
    )
    _check_size(config)
    _check_output(config.output)


def _check_names(config: Config) -> None:
    """Names of plug-ins. None of them is imported."""
    ENVIRONMENTS.check(config.environment)
    MODES.check(config.external.mode)
    DATASETS.check(config.dataset.type)
    for number, agent in enumerate(config.agents):
        try:
            ESTIMATORS.check(agent.estimator)
        except UserError as error:
            raise UserError(f"{_where(config, number, 'estimator')}: {error}") from None


def _check_tokenizer(model: ModelConfig) -> None:
    given, name = model.tokenizer_kwargs, "model.tokenizer_kwargs"
    for key in given:
        _require(key.isidentifier(), f"{name} has the argument '{key}', which is no name: write name: value")
        _require(
            _is_plain(given[key]),
            f"{name}.{key} should be text, a number, true, false, null, or a list or mapping of these (20 levels at "
            f"most), got {given[key]!r}",
        )
    for key in ("token", "use_auth_token"):
        _require(key not in given, f"{name}.{key} would be written into the run folder: set the variable HF_TOKEN")
    for key in ("pretrained_model_name_or_path", "config"):
        _require(key not in given, f"{name}.{key} should be left away: model.name says what is loaded")
    for key, values in TOKENIZER_VALUES.items():
        options = ", ".join(str(value).lower() for value in values if value is not None)
        _require(given.get(key, values[0]) in values, f"{name}.{key} should be {options}, got {given.get(key)!r}")


def _is_plain(value: Any, levels: int = 20) -> bool:
    """Whether it is read from the run's config.yaml as it was given."""
    if isinstance(value, dict):
        return levels > 0 and all(_is_plain(k, 0) and _is_plain(inner, levels - 1) for k, inner in value.items())
    if isinstance(value, list):
        return levels > 0 and all(_is_plain(inner, levels - 1) for inner in value)
    return value is None or type(value) in (bool, int, float, str)


def _check_turns(config: Config) -> None:
    weights, turns = config.credit.turn_gradient_weights, config.rollout.num_turns
    section = config.algorithm
    _require(
        len(weights) == turns,
        f"{section}.turn_gradient_weights has {pluralize(len(weights), 'value')} for {pluralize(turns, 'turn')}: "
        "give one a turn",
    )
    _require(
        min(weights) >= 0 and max(weights) > 0,
        f"{section}.turn_gradient_weights {list(weights)}: none should be negative, and not all 0, or nothing is "
        "learned",
    )
    if config.rollout.handoff != "all" or config.rollout.early_termination_threshold is None or turns == 1:
        return
    # At a first node all branches end or none does; below it they end one by one.
    _require(
        turns <= 2,
        f"{section}.early_termination_threshold with handoff all and {turns} turns would rank a branch that ended "
        "early below one that went on, since its return has fewer turns: set it to null, or num_turns to 2",
    )
    # Returns that count as they are, or beside those of other groups.
    beyond = [
        agent.estimator
        for agent in config.agents
        if agent.estimator == "mareinforce" or BEYOND_SIBLINGS.get(agent.estimator) == "batch"
    ]
    beyond += [f"critic {config.credit.critic}"] if config.credit.critic != "none" else []
    _require(
        not beyond,
        f"{section}.early_termination_threshold with handoff all would let {(beyond or [''])[0]} compare groups "
        "that ended early with groups that went on, whose returns have more turns: set it to null",
    )


def _check_evaluation(config: Config) -> None:
    evaluation, section = config.evaluation, config.algorithm
    _require(
        evaluation.eval_temperature != 0 or evaluation.eval_num_generations == 1,
        f"{section}.eval_temperature is 0, so all of {section}.eval_num_generations {evaluation.eval_num_generations} "
        "would be alike: set that to 1",
    )


def _check_size(config: Config) -> None:
    """All of a step's trees are held until it is learned from, and each joint sample is a program to execute."""
    rollout, section = config.rollout, config.algorithm
    groups = max_prompts_per_step(config, rollout.rollout_buffer_size) * nodes_per_episode(config)
    completions = groups * rollout.num_generations * config.num_agents
    samples = groups * joint_actions_per_node(config)
    _require(
        max(samples, completions) <= MOST_SAMPLES,
        f"one step would have more than {MOST_SAMPLES:,} joint samples or completions, which are all held until it is "
        f"learned: lower {section}.num_generations or {section}.rollout_buffer_size"
        + (", or set joint_mode to aligned" if rollout.joint_mode == "cross" else "")
        + (", or set handoff to random" if rollout.handoff == "all" else ""),
    )


def _check_resources(config: Config, number: int) -> None:
    generator, learner = config.agents[number].generator, config.agents[number].learner
    gpus, parallel = generator.gpus, _where(config, number, "generator.tensor_parallel")
    key = _where(config, number, "generator.gpus")
    ranks, learner_gpus = _where(config, number, "learner.ranks"), _where(config, number, "learner.gpus")
    _require(
        learner.gpus is None or learner.gpus <= 1,
        f"{learner_gpus} is {learner.gpus}, and a rank of a learner uses one GPU at most: set it to 1, and {ranks} to "
        "the number of GPUs",
    )
    _require(
        learner.ranks == 1 or learner.gpus in (None, 0, 1),
        f"{learner_gpus} is {learner.gpus} for each of {learner.ranks} ranks, and ranks do not share a GPU: set it to "
        f"1, or {ranks} to 1",
    )
    _require(
        learner.ranks > 1 or not learner.cpu_offload,
        f"{_where(config, number, 'learner.cpu_offload')} is for weights that ranks share out, and {ranks} is 1: set "
        "it to 2 or more, or leave cpu_offload out",
    )
    _require(
        gpus is None or gpus in (0, generator.tensor_parallel) or (gpus < 1 and generator.tensor_parallel == 1),
        f"{key} is {gpus} but {parallel} is {generator.tensor_parallel}: make them equal",
    )
    _require(
        gpus is None or gpus > 0 or generator.tensor_parallel == 1,
        f"{parallel} above 1 needs GPUs: set {key} to the same number",
    )


def _check_colocation(config: Config, number: int) -> None:
    """Engine and learner of one device: what they cannot have while they take turns."""
    generator, learner = config.agents[number].generator, config.agents[number].learner
    section, staleness = config.algorithm, config.rollout.max_staleness
    _require(
        not config.lora.share_base,
        "resources.colocate: a learner takes turns with its own engine, and with lora.share_base several are one "
        "process: set one of them to false",
    )
    _require(
        staleness == 0,
        f"resources.colocate: engines sleep while learners learn, so nothing can be played ahead, and "
        f"{section}.max_staleness is {staleness}: set it to 0, or colocate to false",
    )
    for field, given in (
        ("generator.replicas", generator.replicas),
        ("generator.tensor_parallel", generator.tensor_parallel),
        ("learner.ranks", learner.ranks),
    ):
        _require(
            given == 1,
            f"resources.colocate: an engine is on its learner's device, and {_where(config, number, field)} is "
            f"{given}: set it to 1, or colocate to false",
        )
    _require(
        learner.gpus is None,
        f"resources.colocate: a learner has its engine's device, so {_where(config, number, 'learner.gpus')} says "
        "nothing: leave it out",
    )


def _check_output(output: OutputConfig) -> None:
    name = output.run_name
    _require(
        output.resume == "never" or name is not None,
        "output.resume auto goes on with the run of one name: set output.run_name",
    )
    for key, text in (("base_dir", output.base_dir), ("run_name", name or "")):
        longest = max((len(part.encode()) for part in Path(text).parts), default=0)
        _require(
            longest <= LONGEST_NAME,
            f"output.{key} has a name of {longest} bytes, and a folder's has at most {LONGEST_NAME}: shorten it",
        )
    _require(
        name is None or (not Path(name).is_absolute() and ".." not in Path(name).parts and Path(name) != Path()),
        f"output.run_name {name!r} should be the name of a folder below output.base_dir",
    )
