"""The settings of a run that a reader asks for first, and the settings that differ from their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_ray.config import Config, from_tree
from marl_ray.config.loader import to_tree
from marl_ray.core.errors import UserError
from marl_ray.core.text import pluralize
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.execution import CodeEnvironment
from marl_ray.results.diagnostics import Rows


def run_setup(config: Config | None, machine: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    """Return algorithm, agents, turns, G, model, data and device. Without a config the numbers come from the rows."""
    setup: dict[str, Any] = {
        "algorithm": None,
        "agents": None,
        "turns": 1,
        "generations": None,
        "model": None,
        "dataset": None,
        "environment": None,
        "max_reward": None,
        "bounds": {},
        "feedback_tests": None,
        "device": _device(machine),
    }
    if config is None:
        setup["agents"] = _largest(rows, "agent_") + 1
        setup["turns"] = max(1, _largest(rows, "turn_"))
        return setup
    training = config.training
    models = dict.fromkeys(agent.name for agent in config.agents)
    return setup | {
        "algorithm": config.algorithm,
        "agents": config.num_agents,
        "turns": training.num_turns,
        "generations": training.num_generations,
        "model": ", ".join(filter(None, models)),
        "dataset": config.dataset.name,
        "environment": config.environment,
        "max_reward": _max_reward(config),
        "bounds": {
            "max_new_tokens": max(agent.max_new_tokens for agent in config.agents),
            "max_grad_norm": training.max_grad_norm,
            "max_staleness": training.max_staleness,
        },
        "feedback_tests": _feedback_tests(config),
    }


def _feedback_tests(config: Config) -> int | None:
    """Return the number of tests that feedback is about, negative for the last ones; None for all tests."""
    tests = config.external.sandbox_slice
    return tests if isinstance(tests, int) else None


def _largest(rows: Rows, prefix: str) -> int:
    """Return the largest number behind a prefix in the names of metrics; -1 without one."""
    largest = -1
    for row in rows:
        for key in row:
            number = key.removeprefix("eval/").partition("/")[0].removeprefix(prefix)
            if number.isdecimal() and key.removeprefix("eval/").startswith(prefix):
                largest = max(largest, int(number))
    return largest


def _device(machine: Mapping[str, Any]) -> str | None:
    cluster = machine.get("cluster")
    if not cluster:
        return None
    gpus = int(cluster.get("gpus") or 0)
    if gpus:
        return f"{pluralize(gpus, 'GPU')} {', '.join(cluster.get('gpu_types') or [])}".strip()
    return pluralize(int(cluster.get("cpus") or 0), "CPU")


def _max_reward(config: Config) -> float | None:
    """Return the largest reward that the environment can give; None where the environment does not state it."""
    try:
        kind = ENVIRONMENTS.get(config.environment)
        if isinstance(kind, type) and issubclass(kind, CodeEnvironment):
            kind = kind.from_config(config)
    except UserError:  # a plug-in of the run is not installed here
        return None
    return getattr(kind, "max_reward", None)


def changed_settings(config: Config | None) -> list[list[str]]:
    """Return key, value and default of the settings that differ from their defaults."""
    if config is None:
        return []
    try:
        # Model and data have no defaults, and the data decide on the environment.
        given: dict[str, Any] = {"model.name": config.agents[0].name, "dataset.name": config.dataset.name}
        given |= {"dataset.type": config.dataset.type, "plugins": list(config.plugins)}
        defaults = flatten(to_tree(from_tree({}, config.algorithm, given)))
    except UserError:
        return []
    changed = []
    for key, value in flatten(to_tree(config)).items():
        if value != defaults.get(key):
            changed.append([key, plain(value), plain(defaults.get(key))])
    return changed


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted key (`magrpo.num_turns`); nothing for data of another type."""
    flat: dict[str, Any] = {}
    if not isinstance(tree, Mapping):
        return flat
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def plain(value: Any) -> str:
    """Return a setting as text."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
