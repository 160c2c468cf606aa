"""Checks and defaults that need more than one setting. `resolve` raises ConfigError."""

from __future__ import annotations

from pathlib import Path

from marl_ray.config.schema import AlgorithmConfig, Config, ConfigError, ModelConfig, OutputConfig, ResourcesConfig
from marl_ray.core.words import counted

EQUIVALENT_WHEN_WHITENED = ("marloo", "maremax")
NEEDS_A_GROUP = ("magrpo", "marloo", "maremax", "grpo")
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


def resolve(config: Config) -> None:
    """Fill in what depends on other settings, in place, then check the whole."""
    algorithm = config.algorithm
    section = config.algorithm_name
    if config.dataset.type is not None:
        config.dataset.type = config.dataset.type.lower()
    if algorithm.num_agents is None:
        algorithm.num_agents = len(config.agents) if config.agents else (2 if section == "magrpo" else 1)
    if algorithm.estimator is None:
        algorithm.estimator = section  # type: ignore[assignment]
    if algorithm.learning_rate is None:
        algorithm.learning_rate = 2e-5
    if algorithm.turn_gradient_weights is None:
        algorithm.turn_gradient_weights = [1.0] * max(algorithm.num_turns, 0)
    _check_agents(config)
    _check_tokenizer(config.model)
    _check_algorithm(algorithm, section)
    _check_numbers(config)
    _check_output(config.output)
    _check_resources(config.resources)


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise ConfigError(message)


def _check_agents(config: Config) -> None:
    section = config.algorithm_name
    num_agents = config.num_agents
    if config.agents is not None:
        _require(
            len(config.agents) == num_agents,
            f"agents names {len(config.agents)} models but {section}.num_agents is {num_agents}: make them agree",
        )
    _require(num_agents >= 1, f"{section}.num_agents should be at least 1, got {num_agents}")
    _require(
        section != "grpo" or num_agents == 1,
        f"grpo trains one agent, grpo.num_agents is {num_agents}: use a magrpo section for several",
    )
    _require(all(config.model_names), "no model: set model.name, or agents with one name an agent, or --model_name")
    _require(bool(config.dataset.name), "no dataset: set dataset.name")


def _check_tokenizer(model: ModelConfig) -> None:
    given, name = model.tokenizer_kwargs, "model.tokenizer_kwargs"
    trust = given.pop("trust_remote_code", model.model_kwargs.trust_remote_code)
    _require(
        trust == model.model_kwargs.trust_remote_code,
        f"{name}.trust_remote_code is {trust}, and it is one setting for model and tokenizer: set "
        "model.model_kwargs.trust_remote_code",
    )
    for key in given:
        _require(key.isidentifier(), f"{name} has the argument '{key}', which is no name: write name: value")
    for key in ("token", "use_auth_token"):
        _require(key not in given, f"{name}.{key} would be written into the run folder: set the variable HF_TOKEN")
    for key in ("pretrained_model_name_or_path", "config"):
        _require(key not in given, f"{name}.{key} should be left away: model.name says what is loaded")
    for key, values in TOKENIZER_VALUES.items():
        options = ", ".join(str(value).lower() for value in values if value is not None)
        _require(given.get(key, values[0]) in values, f"{name}.{key} should be {options}, got {given.get(key)!r}")


def _check_algorithm(algorithm: AlgorithmConfig, section: str) -> None:
    weights = algorithm.turn_gradient_weights or []
    _require(algorithm.num_turns >= 1, f"{section}.num_turns should be at least 1, got {algorithm.num_turns}")
    _require(
        len(weights) == algorithm.num_turns,
        f"{section}.turn_gradient_weights has {counted(len(weights), 'value')} for "
        f"{counted(algorithm.num_turns, 'turn')}: give one a turn",
    )
    _require(
        min(weights) >= 0 and max(weights) > 0,
        f"{section}.turn_gradient_weights {weights}: none should be negative, and not all 0, or nothing is learned",
    )
    _require(
        algorithm.num_generations > 1
        or (algorithm.estimator not in NEEDS_A_GROUP and not algorithm.normalize_advantages),
        f"{section}.num_generations is {algorithm.num_generations}, but {algorithm.estimator} compares the "
        f"completions of a group: set it to 2 or more, or {section}.estimator to mareinforce",
    )
    _require(
        not (algorithm.normalize_advantages and algorithm.estimator in EQUIVALENT_WHEN_WHITENED),
        f"{section}.normalize_advantages makes {algorithm.estimator} the same as magrpo (each is an affine map of "
        "the returns): turn it off, or use estimator magrpo",
    )
    _require(algorithm.joint_mode == "aligned", f"{section}.joint_mode cross is not available yet: use aligned")
    _require(algorithm.handoff != "all", f"{section}.handoff all is not available yet: use random or best")


def _check_numbers(config: Config) -> None:
    algorithm, section = config.algorithm, config.algorithm_name
    positive = {
        f"{section}.num_generations": algorithm.num_generations,
        f"{section}.num_train_epochs": algorithm.num_train_epochs,
        f"{section}.max_new_tokens": algorithm.max_new_tokens,
        f"{section}.rollout_buffer_size": algorithm.rollout_buffer_size,
        f"{section}.microbatch_tokens": algorithm.microbatch_tokens,
        f"{section}.logging_steps": algorithm.logging_steps,
        f"{section}.save_steps": algorithm.save_steps,
        f"{section}.eval_num_generations": algorithm.eval_num_generations,
        f"{section}.max_grad_norm": algorithm.max_grad_norm,
        f"{section}.max_bad_steps": algorithm.max_bad_steps,
        "model.temperature": config.model.temperature,
        "model.top_p": config.model.top_p,
        "output.keep_checkpoints": config.output.keep_checkpoints,
        "sandbox.test_timeout_s": config.sandbox.test_timeout_s,
        "sandbox.max_timeouts": config.sandbox.max_timeouts,
        "sandbox.memory_mb": config.sandbox.memory_mb,
        "external.expert_timeout_s": config.external.expert_timeout_s,
    }
    optional = {
        f"{section}.max_steps": algorithm.max_steps,
        f"{section}.train_batch_size": algorithm.train_batch_size,
        f"{section}.eval_num_samples": algorithm.eval_num_samples,
        "model.top_k": config.model.top_k,
    }
    for name, value in [*positive.items(), *((k, v) for k, v in optional.items() if v is not None)]:
        _require(value > 0, f"{name} should be above 0, got {value}")
    for name, value in {
        f"{section}.learning_rate": algorithm.learning_rate or 0.0,
        f"{section}.weight_decay": algorithm.weight_decay,
        f"{section}.warmup_steps": algorithm.warmup_steps,
        f"{section}.eval_interval": algorithm.eval_interval,
        f"{section}.discount": algorithm.discount,
        "output.episodes_per_step": config.output.episodes_per_step,
        "external.expert_retries": config.external.expert_retries,
    }.items():
        _require(value >= 0, f"{name} should not be negative, got {value}")
    for name, beta in (("adam_beta1", algorithm.adam_beta1), ("adam_beta2", algorithm.adam_beta2)):
        _require(0 <= beta < 1, f"{section}.{name} should be at least 0 and below 1, got {beta}")
    _require(algorithm.discount <= 1, f"{section}.discount should be at most 1, got {algorithm.discount}")
    _require(
        config.reward_processor.scale_factor != 0 or not config.reward_processor.enabled,
        "reward_processor.scale_factor is 0, which makes all rewards equal: nothing would be learned",
    )
    _require(config.model.top_p <= 1, f"model.top_p should be at most 1, got {config.model.top_p}")
    _require(
        config.model.max_length > algorithm.max_new_tokens,
        f"model.max_length is {config.model.max_length}, no room for a prompt beside "
        f"{section}.max_new_tokens {algorithm.max_new_tokens}: raise the one or lower the other",
    )


def _check_output(output: OutputConfig) -> None:
    name = output.run_name
    _require(
        name is None or (not Path(name).is_absolute() and ".." not in Path(name).parts and Path(name) != Path()),
        f"output.run_name {name!r} should be the name of a folder below output.base_dir",
    )


def _check_resources(resources: ResourcesConfig) -> None:
    generator, learner = resources.generator, resources.learner
    for name, value in {
        "generator.cpus": generator.cpus,
        "generator.replicas": generator.replicas,
        "generator.tensor_parallel": generator.tensor_parallel,
        "generator.kv_cache_mb": generator.kv_cache_mb,
        "generator.max_num_seqs": generator.max_num_seqs,
        "generator.gpu_memory_utilization": generator.gpu_memory_utilization,
        "learner.cpus": learner.cpus,
        "sandbox.workers": resources.sandbox.workers,
        "sandbox.cpus": resources.sandbox.cpus,
        "deadlines.placement_s": resources.deadlines.placement_s,
        "deadlines.start_s": resources.deadlines.start_s,
        "deadlines.rollout_s": resources.deadlines.rollout_s,
        "deadlines.learn_s": resources.deadlines.learn_s,
        "deadlines.sync_s": resources.deadlines.sync_s,
        "deadlines.checkpoint_s": resources.deadlines.checkpoint_s,
    }.items():
        _require(value > 0, f"resources.{name} should be above 0, got {value}")
    for name, gpus in (("generator", generator.gpus), ("learner", learner.gpus)):
        _require(gpus is None or gpus >= 0, f"resources.{name}.gpus should not be negative, got {gpus}")
    _require(
        learner.gpus is None or learner.gpus <= 1,
        f"resources.learner.gpus is {learner.gpus}: a learner uses at most one GPU (sharded learners are not "
        "available yet)",
    )
    gpus = generator.gpus
    _require(
        gpus is None or gpus in (0, generator.tensor_parallel) or (gpus < 1 and generator.tensor_parallel == 1),
        f"resources.generator.gpus is {gpus} but tensor_parallel is {generator.tensor_parallel}: make them equal",
    )
    _require(
        gpus is None or gpus > 0 or generator.tensor_parallel == 1,
        "resources.generator.tensor_parallel above 1 needs GPUs: set resources.generator.gpus to the same number",
    )
    _require(
        generator.gpu_memory_utilization <= 1,
        f"resources.generator.gpu_memory_utilization is a share, at most 1, got {generator.gpu_memory_utilization}",
    )
