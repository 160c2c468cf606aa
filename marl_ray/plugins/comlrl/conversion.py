"""Config files of CoMLRL 1.4.3: their settings in the places that these have here.

`marl_ray.config.dialects` reads such files, and `marl-ray convert FILE --to config` writes them converted. `python -m
tools.comlrl_settings WHEEL` compares the tables with the dataclasses of CoMLRL's package, and writes
docs/reference/comlrl.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_ray.config.compat import VALUE_ALIASES
from marl_ray.core.errors import UserError
from marl_ray.plugins.comlrl.environments import AGENT_MODEL, PLACES, SECTIONS, convert_sections

_DEVICES = "resources.generator and resources.learner place the models"
_PREFERENCES = "estimator madpo learns from pairs of each step, and has no such setting"
_REWARD_MODELS = "marl-ray rewardmodel trains a reward model; magrpo with environment reward_model learns from it"
_REPLAY = "--preferences of marl-ray warmstart and marl-ray rewardmodel takes the files of several iterations"
_COMPARATORS = "pairs are made from all answers in a file, which marl-ray eval writes for one or several models"
_SHIFTED = "whitened advantages do not depend on the baseline, so the estimator is magrpo"
ADVICE: Mapping[str, str] = {
    "parallel_training": _DEVICES,
    "agent_devices": _DEVICES,
    "critic_devices": _DEVICES,
    "reference_devices": "resources.learner.offload_reference sets the memory of the reference policy",
    "eval_at_end": "marl-ray eval measures the models of a finished run",
    "eval_batch_size": "evaluations are batched by the engine; resources.generator.max_num_seqs limits the batch",
    "external_prompt_passthrough": "later prompts are complete; external.original_prompt repeats the first one",
    "use_separate_critic": "critic_body: own (true) or shared (false)",
    "critic_type": "critics estimate the value of prompts, v: a value of the answer too (q) would cancel its advantage",
    "critic_value_head_hidden_dim": "value_head_hidden_dim",
    "critic_model_name": "the critic starts from the agent's initial model",
    "collaboration_mode": "each agent has a policy; environment centralized lets one policy write all parts",
    "num_iterations": "repeat the commands (docs/how-to/reward_model.md); estimator madpo makes new pairs in each step",
    "log_reward_distribution": _PREFERENCES,
    "policy_checkpoint_dir": _PREFERENCES,
    "pair_selection": _PREFERENCES,
    "dpo_beta": "preference_beta, with estimator madpo",
    "preference_pairs_per_sample": "preference_pairs, with estimator madpo",
    "use_environment_step": _PREFERENCES,
    "environment_steps_per_pair": _PREFERENCES,
    "preference_num_candidates": "num_generations, or --samples of marl-ray eval",
    "preference_scoring_reward": "marl-ray eval with environment reward_model scores answers by the reward model",
    "rl_algorithm": "estimator or critic, with environment reward_model",
    "reward_model_name": "--model of marl-ray rewardmodel",
    "reward_model_device": "reward_model.device",
    "reward_learning_rate": "--learning-rate of marl-ray rewardmodel",
    "reward_num_train_epochs": "--epochs of marl-ray rewardmodel",
    "reward_train_batch_size": "--batch-size of marl-ray rewardmodel",
    "reward_max_length": "reward_model.max_length",
    "reward_freeze_backbone": "--head-only of marl-ray rewardmodel",
    "per_device_train_batch_size": "rollout_buffer_size is the number of tasks per step",
    "mini_batch_size": "train_batch_size is the number of groups per optimizer step",
    "ac_epochs": "a batch is used once",
    "reward_norm_eps": "rewards are not normalised, and normalize_advantages whitens advantages",
    "epsilon_clip": "loss clip, with clip_low and clip_high",
    "critic_model": "the critic starts from the agent's initial model",
}
"""What replaces a setting of CoMLRL's trainers that does not exist here, by its name."""
PREFIXES = {"preference_replay_": _REPLAY, "comparator_": _COMPARATORS}
"""What replaces further settings of preference learning, by the beginning of their names."""
DROPPED: Mapping[str, tuple[Any, ...] | None] = {
    "parallel_training": None,
    "agent_devices": None,
    "critic_devices": None,
    "reference_devices": None,
    "eval_at_end": None,
    "eval_batch_size": None,
    "external_prompt_passthrough": None,
    "critic_type": ("v", None),
    "critic_value_head_hidden_dim": (None,),
    "collaboration_mode": ("decentralized",),
    "per_device_train_batch_size": (1, None),
    "mini_batch_size": None,
    "ac_epochs": (1, None),
    "reward_norm_eps": None,
    "epsilon_clip": (None,),
    "critic_model": (None,),
}
"""Settings without a counterpart that a conversion leaves out, if they have one of these values (None: any value)."""
OLDER_NAMES: Mapping[str, str] = {
    "actor_learning_rate": "learning_rate",
    "normalize_advantage": "normalize_advantages",
    "termination_threshold": "early_termination_threshold",
    "num_return_sequences": "num_generations",
}
"""The name here of a setting in files for earlier versions of CoMLRL."""
NAMES: Mapping[str, str] = {
    **OLDER_NAMES,
    "agent_learning_rate": "learning_rate",
    "advantage_normalization": "normalize_advantages",
}
"""The name here of a setting of a trainer. Two of them in one file, or one beside its name here, are one setting."""
SAMPLING = ("temperature", "top_p", "top_k")
"""Settings of sampling. A value in the trainer's section wins over one in `agent_model`, as there."""

CENTRALIZED = "centralized_magrpo"
"""Section of the trainer in which one policy writes the parts of all agents."""
_COMMON: dict[str, Any] = {
    "max_new_tokens": 256,
    "num_turns": 2,
    "num_agents": 2,
    "agent_learning_rate": 5e-6,
    "eval_interval": 16,
    "eval_num_samples": 4,
}
REINFORCE: dict[str, Any] = {
    "num_train_epochs": 20,
    "num_generations": 4,
    "rollout_buffer_size": 2,
    "logging_steps": 50,
    **_COMMON,
}
ACTOR_CRITIC: dict[str, Any] = {
    "num_train_epochs": 40,
    "num_generations": 1,
    "rollout_buffer_size": 8,
    "logging_steps": 1,
    "value_loss_coef": 0.6,
    **_COMMON,
}
TRAINERS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "magrpo": (REINFORCE, {}),
    "marloo": (REINFORCE, {"estimator": "marloo"}),
    "maremax": (REINFORCE, {"estimator": "maremax"}),
    "mareinforce": (REINFORCE, {"estimator": "mareinforce"}),
    CENTRALIZED: ({**REINFORCE, "num_turns": 1}, {}),
    "iac": (ACTOR_CRITIC, {"critic": "iac"}),
    "maac": (ACTOR_CRITIC, {"critic": "maac"}),
    "grpo": ({**REINFORCE, "num_agents": 1}, {}),
    "ac": ({**ACTOR_CRITIC, "num_agents": 1}, {"critic": "iac"}),
}
"""Defaults of a trainer that `compat: comlrl` does not set, and the settings that select it here, by section."""
ESTIMATORS = VALUE_ALIASES["{algorithm}.estimator"]
REFUSED_SECTIONS = {
    "madpo": "magrpo with estimator madpo learns from pairs of each step; marl-ray warmstart --preferences from a file",
    "madpo_iter": "magrpo with estimator madpo learns from pairs of each step",
    "marlhf": _REWARD_MODELS,
    "marlhf_iter": _REWARD_MODELS,
}


def advice(name: str) -> str | None:
    """Return what replaces a setting of CoMLRL that does not exist here, None for another name."""
    if name in ADVICE:
        return ADVICE[name]
    for prefix, replacement in PREFIXES.items():
        if name.startswith(prefix):
            return replacement
    return None


def is_comlrl(tree: Mapping[str, Any]) -> bool:
    """Return whether a file has a section, or a setting of a trainer, that only files of CoMLRL have."""
    sections = SECTIONS | TRAINERS.keys() | REFUSED_SECTIONS.keys()
    if not sections.isdisjoint(tree.keys() - {"magrpo", "grpo"}):
        return True
    for section in ("magrpo", "grpo"):
        trainer = tree.get(section)
        if not isinstance(trainer, Mapping):
            continue
        for name in trainer:
            if name in OLDER_NAMES or advice(str(name)):
                return True
    return False


def key_here(key: str, algorithm: str) -> str:
    """Return the key here of a dotted key of CoMLRL."""
    section, _, name = key.partition(".")
    if name and section in TRAINERS:
        return f"{algorithm}.{NAMES.get(name, name)}"
    if name and section == AGENT_MODEL:
        key = f"model.{name}"
    return PLACES.get(key, key)


def convert_comlrl(tree: Mapping[str, Any], algorithm: str = "magrpo") -> tuple[dict[str, Any], list[str]]:
    """Return the tree of a config with the settings of CoMLRL's file in the section `algorithm`, and one note per
    difference.

    Other sections are converted by `convert_sections`. Raises UserError, which names all settings that cannot be
    converted.
    """
    refused = [f"{name} ({REFUSED_SECTIONS[name]})" for name in tree if name in REFUSED_SECTIONS]
    if refused:
        raise UserError(f"no counterpart: {'; '.join(refused)}")
    sections = [name for name in TRAINERS if isinstance(tree.get(name), Mapping)]
    if len(sections) != 1:
        found = " and ".join(sections) or "none"
        raise UserError(f"a config of CoMLRL has one of the sections {', '.join(TRAINERS)}; found {found}")
    trainer = sections[0]
    defaults, selected = TRAINERS[trainer]
    other_sections = dict(tree)
    del other_sections[trainer]
    other, notes, refused = convert_sections(other_sections)
    given, trainer_notes, trainer_refused = _trainer_settings(trainer, tree[trainer])
    notes += trainer_notes
    refused += trainer_refused
    if refused:
        raise UserError(f"no counterpart: {'; '.join(refused)}")
    section = {**_by_name_here(defaults), **other.pop("magrpo", {}), **selected, **given}
    section["estimator"] = _estimator(section, algorithm, notes)
    _move_sampling(trainer, section, other, notes)
    if section["eval_num_samples"] == 0:
        notes.append(f"there are no evaluations: {trainer}.eval_num_samples is 0")
        section["eval_num_samples"] = None
        other["dataset"] = {**(other.get("dataset") or {}), "eval_split": None}
    one_completion = section["num_generations"] == section["rollout_buffer_size"] == 1
    if "critic" in section and one_completion and section.get("normalize_advantages", True):
        notes.append(f"{trainer}.advantage_normalization is off: a batch of one completion has nothing to compare")
        section["normalize_advantages"] = False
    if trainer == CENTRALIZED:  # where max_new_tokens is the length of the whole completion
        other["centralized"] = {
            "environment": other.get("environment"),
            "team": section["num_agents"],
        }
        other["environment"] = "centralized"
        section["num_agents"] = 1
    return {"compat": "comlrl", **other, algorithm: section}, notes


def _trainer_settings(trainer: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return the settings of a trainer by the names used here, notes on settings that are left out, and the settings
    that are refused with the reason."""
    given = _by_name_here(given)
    section: dict[str, Any] = {}
    notes = []
    refused = []
    if TRAINERS[trainer][1].get("critic") == "iac":
        is_separate = given.pop("use_separate_critic", True)
        head_of_critic = given.pop("critic_value_head_hidden_dim", None)
        head_of_policy = given.pop("value_head_hidden_dim", None)
        clip_range = given.pop("value_clip_range", 0.2)
        if is_separate:
            section["critic_body"] = "own"
            section["value_head_hidden_dim"] = head_of_critic
            section["value_clip_range"] = None  # CoMLRL clips values of a shared model only
        else:
            section["critic_body"] = "shared"
            section["value_head_hidden_dim"] = head_of_policy
            section["value_clip_range"] = clip_range
    for name, value in given.items():
        if (trainer, name, value) == (CENTRALIZED, "collaboration_mode", "centralized"):
            continue
        values = DROPPED.get(name, ())
        replacement = advice(name)
        if values is None:
            if value is not None:
                notes.append(f"{trainer}.{name} is left out: {replacement}")
        elif replacement is None:
            section[name] = value
        elif value not in values:
            refused.append(f"{trainer}.{name} ({replacement})")
    return section, notes, refused


def _by_name_here(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by the names used here. Raises UserError for two names of one setting whose values differ."""
    named: dict[str, Any] = {}
    for name, value in given.items():
        here = NAMES.get(name, name)
        if named.get(here, value) != value:
            raise UserError(f"{name} and {here} are the same setting and differ: give one of them")
        named[here] = value
    return named


def _estimator(section: dict[str, Any], algorithm: str, notes: list[str]) -> str:
    """Return the estimator of a trainer's section."""
    mode = section.pop("advantage_mode", None)
    estimator = ESTIMATORS.get(mode, section.get("estimator", algorithm))
    if estimator in ("marloo", "maremax") and section.get("normalize_advantages", True):
        notes.append(f"{estimator} is left out: {_SHIFTED}")
        estimator = algorithm
    if estimator == "magrpo":
        return algorithm
    return estimator


def _move_sampling(trainer: str, section: dict[str, Any], other: dict[str, Any], notes: list[str]) -> None:
    """Move the settings of sampling in a trainer's section to `model`."""
    model = other["model"] = dict(other.get("model") or {})
    for name in SAMPLING:
        if name in section:
            value = section.pop(name)
            if model.get(name, value) != value:
                notes.append(f"{name} {model[name]} of the model is left out: {trainer}.{name} is {value}")
            model[name] = value
