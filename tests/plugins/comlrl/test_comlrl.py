"""Conversion of CoMLRL's configs, and its page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from marl_ray.cli.main import main
from marl_ray.config import from_tree
from marl_ray.core.errors import UserError
from marl_ray.plugins.comlrl.conversion import (
    ADVICE,
    CENTRALIZED,
    DROPPED,
    REFUSED_SECTIONS,
    TRAINERS,
    advice,
    convert_comlrl,
)
from tests.factories import ROOT

OTHER = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_section_alone_becomes_a_valid_config_with_comlrl_s_defaults(trainer: str) -> None:
    tree, notes = convert_comlrl({**OTHER, trainer: {}})
    config = from_tree(tree, "magrpo")
    assert (config.training.num_turns, config.agents[0].temperature) == (1 if trainer == CENTRALIZED else 2, 0.6)
    assert config.training.critic == {"iac": "iac", "maac": "maac", "ac": "iac"}.get(trainer, "none")
    assert config.num_agents == (1 if trainer in ("grpo", "ac", CENTRALIZED) else 2)
    assert (config.training.early_termination_threshold, config.training.handoff) == (-0.2, "all")
    changed = {"marloo": ["marloo"], "maremax": ["maremax"]}
    assert (config.environment == "centralized") == (trainer == CENTRALIZED)
    assert [note.split(" ")[0] for note in notes] == changed.get(trainer, [])


@pytest.mark.parametrize(("mode", "estimator"), [("rloo", "marloo"), ("max", "maremax"), ("mean", "magrpo")])
def test_estimators_differ_without_whitening(mode: str, estimator: str) -> None:
    given = {"advantage_mode": mode, "advantage_normalization": False}
    assert convert_comlrl({**OTHER, "magrpo": given}) == convert_comlrl(
        {**OTHER, estimator: {"advantage_normalization": False}}
    )
    assert from_tree(convert_comlrl({**OTHER, "magrpo": given})[0], "magrpo").agents[0].estimator == estimator


def test_a_centralised_actor_keeps_its_tokens() -> None:
    given = {"num_agents": 3, "max_new_tokens": 100, "collaboration_mode": "centralized"}
    config = from_tree(convert_comlrl({**OTHER, CENTRALIZED: given})[0], "magrpo")
    assert (config.num_agents, config.centralized.team, config.agents[0].max_new_tokens) == (1, 3, 100)
    assert config.centralized.environment == "code_generation"


def test_given_values_win_and_devices_are_left_out() -> None:
    given = {"num_turns": 1, "agent_devices": ["cuda:0"], "eval_batch_size": 1, "critic_type": "v", "top_k": None}
    tree, notes = convert_comlrl({**OTHER, "iac": {**given, "use_separate_critic": False}})
    assert from_tree(tree, "magrpo").training.critic_body == "shared"
    assert tree["magrpo"]["num_turns"] == 1
    assert [note.split(" ")[0] for note in notes] == ["iac.agent_devices", "iac.eval_batch_size"]


@pytest.mark.parametrize(("separate", "width", "clip_range"), [(True, 16, None), (False, 8, 0.2)])
def test_the_head_and_the_clipping_belong_to_the_model_of_the_critic(
    separate: bool, width: int, clip_range: float | None
) -> None:
    given = {"use_separate_critic": separate, "critic_value_head_hidden_dim": 16, "value_head_hidden_dim": 8}
    optimizer = from_tree(convert_comlrl({**OTHER, "iac": given})[0], "magrpo").training
    assert (optimizer.value_head_hidden_dim, optimizer.value_clip_range) == (width, clip_range)


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({}, "has one of the sections"),
        ({"magrpo": {}, "iac": {}}, "magrpo and iac"),
        ({"madpo": {"dpo_beta": 0.1}}, r"no counterpart: madpo \(magrpo with estimator madpo"),
        (
            {"maac": {"critic_type": "q", "critic_value_head_hidden_dim": 8}},
            "maac.critic_type .*; maac.critic_value_head",
        ),
        (
            {"magrpo": {"comparator_api_key": "x", "collaboration_mode": "centralized"}},
            "comparator_api_key .*environment centralized",
        ),
    ],
)
def test_all_settings_without_a_counterpart_are_named_at_once(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        convert_comlrl({**OTHER, **sections})


def test_every_setting_that_is_left_out_has_advice() -> None:
    assert DROPPED.keys() <= ADVICE.keys()
    assert not REFUSED_SECTIONS.keys() & TRAINERS.keys()


def test_a_setting_of_comlrl_in_an_override_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"magrpo.agent_devices', known from CoMLRL: resources.generator"):
        from_tree({**OTHER, "magrpo": {}}, "magrpo", {"magrpo.agent_devices": ["cuda:0"]})


ENVIRONMENTS: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "function calls": (
        {
            "agent_model": {"name": "m", "type": "qwen", "torch_dtype": None, "attn_implementation": "eager"},
            "dataset": {"name": "owner/calls", "type": "bfcl", "version": "v4", "task_types": None},
            "bfcl": {"role_mode": "self_select"},
            "bfcl_reward": {"parse_weight": 0.05, "overlap_penalty": 0.2, "max_reward": 1.2},
            "wandb": {"enabled": True, "project": "p"},
        },
        "function_calls",
        ["model.attn_implementation", "dataset.version"],
    ),
    "words": (
        {
            "agent_model": {"name": "m", "dtype": "bf16"},
            "critic_model": {"name": "m", "type": "qwen"},
            "dataset": {"name": "str_build", "type": "str_build", "csv_path": "words.csv", "spacing": 2, "local_z": 0},
            "output": {"save_path": "output/final_model"},
            "external": {"mode": "position_feedback"},
            "prompt": {"provide_graph": False, "use_chat_template": True},
            "task": {"block_agent1": ["oak_planks", "stone", "air"], "max_commands": 300},
            "wandb": {"run_name": "words"},
        },
        "word_builder",
        ["output.save_path", "prompt.provide_graph"],
    ),
    "houses": (
        {
            "agent_model": {"name": "m"},
            "dataset": {"name": "house_build", "type": "house_build", "json_path": "houses.json",
                        "train_split": "[:8]", "eval_split": "[8:]"},
            "external": {"mode": "score_feedback", "lim": 20},
            "task": {"limited_resource": True, "player": {"hp": 5}, "spider": {"num": 3}},
        },
        "house_builder",
        ["task.player", "task.spider"],
    ),
    "travel": (
        {
            "agent_model": {"name": "m", "gradient_checkpointing": True},
            "dataset": {"name": "owner/trips", "config_name": "train", "source_split": "train", "train_samples": 40,
                        "eval_samples": 5},
            "travel": {"role_mode": "partitioned_roles", "system_prompt": "Plan.", "force_json_prefix": True},
            "travel_reward": {"parse_weight": 0.05},
        },
        "travel",
        ["travel.force_json_prefix", "travel_reward"],
    ),
    "writing": (
        {"agent_model": {"name": "m"}, "dataset": {"name": "owner/tldr", "type": "tldr"}, "tokenizer": {
            "padding_side": "left"}},
        "writing_tldr",
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_keys_of_environments_are_read(name: str) -> None:
    sections, environment, left_out = ENVIRONMENTS[name]
    given = {"num_agents": 2, "num_turns": 1, "eval_at_end": False}
    tree, notes = convert_comlrl({**sections, "agents": None, "magrpo": given})
    config = from_tree(tree, "magrpo")
    assert (config.agents[0].name, config.environment) == ("m", environment)
    assert [note.split(" ")[0] for note in notes] == [*left_out, "magrpo.eval_at_end"]


def test_values_of_environments_have_their_names_here() -> None:
    def converted(name: str) -> Any:
        return from_tree(convert_comlrl({**ENVIRONMENTS[name][0], "magrpo": {}})[0], "magrpo")

    words, houses, travel = map(converted, ("words", "houses", "travel"))
    assert (words.dataset.name, words.external.mode, words.agents[0].dtype) == (
        "words.csv",
        "level_feedback",
        "bfloat16",
    )
    assert (words.model.use_chat_template, words.plugin_sections["wandb"].name) == (True, "words")
    assert (houses.dataset.name, houses.external.mode) == ("houses.json", "level_passed")
    assert (houses.dataset.train_split, houses.dataset.eval_split) == ("train[:8]", "train[8:]")
    assert travel.dataset.name == "owner/trips:train"
    assert (travel.dataset.train_split, travel.dataset.eval_split) == ("train[:40]", "train[40:45]")
    assert (travel.agents[0].system_prompt, travel.training.gradient_checkpointing) == ("Plan.", True)
    assert converted("writing").model.tokenizer_kwargs == {"padding_side": "left"}


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"bfcl_reward": {"parse_weight": 0.5}}, r"bfcl_reward \(the weights of the levels are fixed"),
        ({"bfcl_reward": {"sequence_order_weight": 0.25}}, r"bfcl_reward \("),
        ({"bfcl": {"role_mode": "assigned"}}, r"bfcl.role_mode \(all agents choose"),
        ({"dataset": {"name": "d", "categories": ["parallel"]}}, r"dataset.categories \(leave the other rows out"),
        ({"dataset": {"name": "d", "max_train_samples": 9}}, r"dataset.max_train_samples \(dataset.train_split"),
        ({"task": {"max_commands": 9}, "external": {"lim": 3}}, r"task.max_commands \(.*; external.lim \("),
        ({"critic_model": {"name": "other"}}, r"critic_model \(the critic starts from"),
    ],
)
def test_values_of_environments_without_a_counterpart_are_named(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=f"no counterpart: {says}"):
        convert_comlrl({**OTHER, **sections, "magrpo": {}})


def test_the_command_writes_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "comlrl.yaml", tmp_path / "mine.yaml"
    source.write_text(yaml.safe_dump({**OTHER, "magrpo": {"parallel_training": "mp"}}))
    assert main(["convert", str(source), "--to", "config", "--output", str(target)]) == 0
    assert "magrpo.parallel_training is left out" in capsys.readouterr().out
    assert from_tree(yaml.safe_load(target.read_text()), "magrpo").training.num_turns == 2
    source.write_text(yaml.safe_dump({**OTHER, "grpo": {"agent_devices": ["cuda:0"]}}))
    assert main(["convert", str(source), "--to", "config", "--output", str(tmp_path / "alone.yaml")]) == 0
    assert from_tree(yaml.safe_load((tmp_path / "alone.yaml").read_text()), "grpo").num_agents == 1
    source.write_text(yaml.safe_dump({**OTHER, "iac": {"num_turnz": 2}}))
    assert main(["convert", str(source), "--to", "config", "--output", str(tmp_path / "other.yaml")]) == 1
    message = f"error: the config of marl_ray made from {source} is not valid: unknown setting 'magrpo.num_turnz'"
    assert capsys.readouterr().err.startswith(message)


def test_the_page_has_every_setting_that_is_converted_or_refused() -> None:
    page = (ROOT / "docs" / "reference" / "comlrl.md").read_text()
    listed = {name for row in re.findall(r"^\|([^|]+)\|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    assert ADVICE.keys() <= listed
    assert {name for name in listed if advice(name) is None} >= {"num_turns", "discount", "joint_mode"}
