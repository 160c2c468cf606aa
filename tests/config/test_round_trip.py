"""Saved configs load unchanged: `from_tree(to_tree(config)) == config` for random configs."""

from __future__ import annotations

import pickle
import types
import typing
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, replace
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from marl_ray.config import from_tree, to_tree, to_yaml
from marl_ray.config.keys import agent_keys
from marl_ray.config.keys import settings as known_settings
from marl_ray.config.values import convert
from marl_ray.core.errors import UserError

WORDS = st.text("abcxyz0123-_/. é'#:", min_size=1, max_size=8).filter(lambda text: text.strip() == text)
NAMES = {
    "environment": ["code_generation", "my.package:Maze"],
    "dataset.type": ["toy", "MBPP", "marl_ray.data.convert:MBPP"],
    "external.mode": ["plain", "expert_edits", "mine:Mode"],
    "sampler": ["shuffle", "sequential", "my.own:sampler"],
    "joint_mode": ["aligned", "Cross", "my.own:mode"],
    "handoff": ["random", "best", "all", "my.own:handoff"],
    "sinks": [["tensorboard"], ["tensorboard", "my.own:Sink"]],
    "estimator": ["magrpo", "mareinforce", "my.own:Estimator"],
}
FIXED = ("dataset.name", "output.run_name", "num_agents", "turn_gradient_weights", "tensor_parallel", "gpus")
FIXED += (
    "compat",
    "counterfactual",
    "max_extra_draws",
    "overlong_buffer",
    "reference_kl",
    "loss",
    "clip_low",
    "clip_high",
    "importance",
    "loss_aggregation",
    "train_batch_size",
    "max_staleness",
    "policy",
    "optimizer",
    "critic",
    "critic_target",
    "critic_body",
    "clip_separately",
    "stop",
    "critic_learning_rate",
    "rank",
    "alpha",
    "targets",
    "lora.export",
    "share_base",
    "in_engine",
    "share_engine",
    "offload_reference",
    "ranks",
    "cpu_offload",
    "colocate",
)
"""Settings that are sampled together because they depend on each other."""
APART = ("learner.gpus", "max_staleness")
"""Settings that are incompatible with colocate."""


LOSSES: list[dict[str, Any]] = [
    {},
    {"importance": "mask", "loss_aggregation": "constant", "train_batch_size": 3, "max_staleness": 2},
    {
        "loss": "clip",
        "clip_low": 0.1,
        "loss_aggregation": "token_mean",
        "train_batch_size": 1,
        "rollout_buffer_size": 2,
    },
    {"loss": "gspo", "clip_high": 1e-3, "importance": "none", "train_batch_size": 1, "rollout_buffer_size": 2},
    {"loss": "m2po", "max_staleness": 1, "overlong": "penalty", "overlong_buffer": 1},
    {"reference_kl": "k3_in_loss", "reference_kl_coef": 0.01},
    {"estimator": "distillation", "reference_kl": "k2_in_loss", "reference_kl_coef": 1.0, "reference_model": "large"},
    {"optimizer": "adafactor", "adam_beta1": 0.9, "adam_beta2": 0.999},
    {"optimizer": "adamw_8bit", "adam_beta1": 0.8},
    {"dynamic_sampling": True, "max_extra_draws": 0, "max_grad_norm": None},
]


ADAPTERS: list[dict[str, Any]] = [
    {},
    {"resources.learner.offload_reference": True},
    {"resources.learner.ranks": 3, "resources.learner.cpu_offload": True},
    {"lora.rank": 8},
    {"lora.rank": 4, "lora.alpha": 2, "lora.targets": ["q_proj", "v_proj"], "lora.export": "adapter"},
]


def within_bounds(value: Any, hint: Any) -> bool:
    try:
        return convert(value, hint, "key") == value
    except UserError:
        return False


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for values of a type, as in a YAML file."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return values_of(args[0]).filter(lambda value: within_bounds(value, hint))
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values_of, args))
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(values_of(args[0]), max_size=3)
    if origin is Mapping:
        return st.dictionaries(st.sampled_from(["pad_token", "eos_token", "revision"]), WORDS, max_size=2)
    simple = {int: st.integers(1, 40), float: st.floats(0.01, 1.99), str: WORDS, bool: st.booleans()}
    return st.none() if hint is type(None) else simple[hint]


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parts, last = key.split(".")
        place = tree
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    return tree


def draw_some(draw: st.DrawFn, keys: Mapping[str, str], algorithm: str) -> dict[str, Any]:
    """Return values for some of the keys. `keys` maps each key to the setting that has its type."""
    known = known_settings(algorithm)
    free = [key for key in keys if key not in FIXED and key.rpartition(".")[2] not in FIXED]
    chosen = draw(st.lists(st.sampled_from(free), unique=True, max_size=20))
    flat = {}
    for key in chosen:
        names = NAMES.get(key, NAMES.get(key.rpartition(".")[2]))
        flat[key] = draw(st.sampled_from(names) if names else values_of(known[keys[key]].hint))
    if draw(st.booleans()):
        parallel = draw(st.integers(1, 4))
        flat["resources.generator.tensor_parallel"] = parallel
        flat["resources.generator.gpus"] = draw(st.sampled_from([None, parallel]))
    return flat


@st.composite
def trees(draw: st.DrawFn, algorithm: str) -> dict[str, Any]:
    """Sample the tree of a file, which is valid except where two rare values are incompatible."""
    known = known_settings(algorithm)
    flat = draw_some(draw, {key: key for key in known if key != "agents"}, algorithm)
    turns = flat.get(f"{algorithm}.num_turns", 1)
    if turns > 4 or flat.get(f"{algorithm}.joint_mode") == "Cross":
        flat.pop(f"{algorithm}.handoff", None)  # a step of all branches would be too large
    if flat.get(f"{algorithm}.handoff") == "all" and turns > 1:
        flat.pop(f"{algorithm}.early_termination_threshold", None)
    flat |= {f"{algorithm}.{name}": value for name, value in draw(st.sampled_from(LOSSES)).items()}
    flat |= draw(st.sampled_from(ADAPTERS))
    if flat.get(f"{algorithm}.optimizer", "adamw") != "adamw":
        flat = {key: value for key, value in flat.items() if not key.endswith(("learner.ranks", "cpu_offload"))}
    if flat.get(f"{algorithm}.optimizer") == "adafactor":
        flat = {key: value for key, value in flat.items() if not key.startswith("lora.")}
    flat["dataset.name"] = draw(st.sampled_from(["bundled:toy", "a/HumanEval.jsonl"]))
    flat["model.name"] = draw(WORDS)
    flat["model.max_length"] = 1000
    flat["output.run_name"] = draw(st.none() | st.sampled_from(["a", "a/b"]))
    if flat["output.run_name"] is None:
        flat.pop("output.resume", None)
    if draw(st.booleans()):
        flat[f"{algorithm}.turn_gradient_weights"] = draw(
            st.lists(st.floats(0.1, 2), min_size=turns, max_size=turns) | st.none()
        )
    flat[f"{algorithm}.num_generations"] = draw(
        st.integers(2, 8) | st.lists(st.integers(2, 8), min_size=turns, max_size=turns)
    )
    if flat.get(f"{algorithm}.num_train_epochs", 1) is None and flat.get(f"{algorithm}.max_steps") is None:
        flat[f"{algorithm}.max_steps"] = draw(st.integers(1, 40))
    if turns > 1:
        flat["external.stop"] = draw(st.sampled_from(["never", "visible", "all"]))
    flat["model.special_tokens"] = draw(st.just({}) | st.just({"additional_special_tokens": ["a", "b"]}))
    number = draw(st.integers(1, 1 if algorithm == "grpo" else 3))
    if draw(st.booleans()):
        flat[f"{algorithm}.num_agents"] = number
        flat["resources.colocate"] = draw(st.booleans()) and not any(key.endswith(APART) for key in flat)
    else:
        own = agent_keys(algorithm)
        flat["agents"] = [
            draw(WORDS) if draw(st.booleans()) else nest(draw_some(draw, own, algorithm)) for _ in range(number)
        ]
    return nest(flat)


@pytest.mark.parametrize("algorithm", ["magrpo", "grpo"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_saved_config_loads_unchanged(algorithm: str, data: st.DataObject) -> None:
    given = data.draw(trees(algorithm))
    try:
        config = from_tree(given, algorithm)
    except UserError:
        reject()  # Hypothesis fails a test that rejects most samples
    assert from_tree(to_tree(config), algorithm) == config
    assert from_tree(yaml.safe_load(to_yaml(config)), algorithm) == config
    assert pickle.loads(pickle.dumps(config)) == config
    count = given.get(algorithm, {}).get("num_agents") or len(given.get("agents") or ()) or None
    assert config.num_agents == (count or (2 if algorithm == "magrpo" else 1))


def test_a_resolved_config_is_frozen() -> None:
    config = from_tree({"model": {"name": "m"}, "dataset": {"name": "toy"}}, "magrpo")
    with pytest.raises(FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        config.agents[0].learning_rate = 1.0  # type: ignore[misc]
    assert replace(config, seed=7).seed == 7
