"""Description of a team for programs: `team.json`.

The file has everything that is needed to run the team's episodes again: the agents with their folders, prompts and
sampling, the turns, the feedback between turns, and the resolved config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import marl_ray
from marl_ray.config import Config
from marl_ray.config.loader import to_tree
from marl_ray.core.episode import Task
from marl_ray.core.installed_versions import versions
from marl_ray.environments import ENVIRONMENTS, abilities
from marl_ray.environments.base import Environment

FORMAT = 1
PRIVATE_SECTIONS = ("output", "wandb", "trackio", "mlflow")
"""Sections about the machine and the accounts of the training run, which an export leaves out."""
BETWEEN_TURNS = ("composition", "original_prompt", "previous_response", "sandbox_slice", "stop")
"""Settings of `external` that determine the prompts and the number of later turns."""
PLACEHOLDER = Task("task", "{prompt}", {"entry_point": "{entry_point}", "tests": ()})


def export_tree(config: Config) -> dict[str, Any]:
    """Return the config for `config.yaml` of an export: without private sections and without passwords in addresses."""
    tree = to_tree(config)
    for section in PRIVATE_SECTIONS:
        tree.pop(section, None)
    for section, key in (("external", "expert_base_url"), ("judge", "base_url")):
        address = tree.get(section, {}).get(key)
        if address and "@" in urlsplit(address).netloc:
            tree[section][key] = None
    return tree


def local_paths(config: Config) -> list[str]:
    """Return the settings that name files or folders of this machine, which other machines do not have."""
    names = {"dataset.name": config.dataset.name}
    for number, agent in enumerate(config.agents):
        names[f"agents.{number}.name"] = agent.name
    return [f"{key}={name}" for key, name in names.items() if Path(name).expanduser().exists()]


def team_description(
    config: Config, folders: Sequence[str], through_template: Sequence[bool], steps: int | None
) -> dict[str, Any]:
    """Return the content of team.json. `folders` and `through_template` have one entry per agent; `steps` is the number
    of training steps, if known."""
    prompts = prompt_templates(config)
    roles = (prompts or {}).get("roles", [None] * config.num_agents)
    agents = []
    for number, agent in enumerate(config.agents):
        sampling = {
            "temperature": agent.temperature,
            "top_p": agent.top_p,
            "top_k": config.model.top_k,
            "max_new_tokens": agent.max_new_tokens,
            "min_new_tokens": agent.min_new_tokens,
            "stop": list(agent.stop),
        }
        described = {
            "name": f"agent_{number}",
            "role": roles[number],
            "policy": config.policy_of(number).key,
            "folder": folders[number],
            "base_model": agent.name,
            "chat_template": through_template[number],
            "chat_template_kwargs": dict(agent.chat_template_kwargs),
            "system_prompt": agent.system_prompt,
            "sampling": sampling,
        }
        agents.append(described)
    external = to_tree(config)["external"]
    return {
        "format": FORMAT,
        "marl_ray": marl_ray.__version__,
        "versions": versions(),
        "algorithm": config.algorithm,
        "trained_steps": steps,
        "environment": config.environment,
        "dataset": {"name": config.dataset.name, "type": config.dataset.type},
        "agents": agents,
        "turns": config.training.num_turns,
        "max_length": config.model.max_length,
        "eval_temperature": config.training.eval_temperature,
        "external": external["mode"],
        "between_turns": {name: external[name] for name in BETWEEN_TURNS},
        "prompts": prompts,
        "seed": config.seed,
        "config": export_tree(config),
    }


def prompt_templates(config: Config) -> dict[str, Any] | None:
    """Return roles, order and prompts with `{prompt}` and `{entry_point}` in place of a task's texts. Return None for
    an environment whose prompts depend on further fields of a task."""
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    try:
        later = [""] * environment.num_agents  # a program has no later turns
        if isinstance(environment, Environment):
            later = list(environment.revisions(PLACEHOLDER))
        return {
            "roles": list(environment.roles(PLACEHOLDER)),
            "order": [list(group) for group in abilities.order(environment, PLACEHOLDER)],
            "first_turn": list(environment.first_prompts(PLACEHOLDER)),
            "later_turns_end_with": later,
        }
    except Exception:  # environments may raise anything for a task without their fields
        return None


def read_sampling(team: Mapping[str, Any], agent: int) -> dict[str, Any]:
    """Return an agent's sampling settings with the names of transformers' generation config. A `top_k` of 0 turns off
    the restriction to 50 tokens that transformers applies by default. Stop texts are left out, because `generate`
    rejects them without a tokenizer."""
    sampling = team["agents"][agent]["sampling"]
    settings = {
        "do_sample": sampling["temperature"] > 0,
        "temperature": sampling["temperature"],
        "top_p": sampling["top_p"],
        "top_k": sampling["top_k"] or 0,
        "max_new_tokens": sampling["max_new_tokens"],
    }
    if sampling["min_new_tokens"]:
        settings["min_new_tokens"] = sampling["min_new_tokens"]
    return settings
