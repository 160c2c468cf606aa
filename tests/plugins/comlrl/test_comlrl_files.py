"""Files of CoMLRL that run as they are: one of each shape of the reference organisation's configs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from marl_ray.cli.main import main
from marl_ray.config import Config, from_keywords, from_tree, load, to_tree
from marl_ray.config.learning_rules import unequal_returns
from marl_ray.core.errors import UserError
from marl_ray.plugins.comlrl.conversion import TRAINERS, is_comlrl
from tests.factories import make_config

AGENT = {"name": "owner/model", "type": "family", "temperature": 0.6, "top_p": 0.6, "top_k": None, "max_length": 1024}
CRITIC = {"name": "owner/model", "type": "family", "max_length": 1024, "torch_dtype": "bfloat16"}
NO_CRITIC = {"agents": None, "critic_model": None, "critics": None}
PROGRAMS = {"name": "owner/HumanEval", "type": "humaneval", "train_split": "test[4:]", "eval_split": "test[:4]"}
CLASSES = {"name": "owner/ClassEval", "type": "classeval", "train_split": "test[:9]", "eval_split": "test[9:12]"}
POSTS = {"name": "owner/posts", "type": "tldr", "train_split": "train[:9]", "eval_split": "val[:9]"}
WORDS = {"name": "str_build", "type": "str_build", "csv_path": "../words.csv", "train_split": "[:8]", "spacing": 2}
OUTPUT = {"base_dir": "out", "verbose": False, "save_final_model": False, "save_path": "out/final"}
LENGTHS = {"num_turns": 2, "num_train_epochs": 6, "max_new_tokens": 128, "discount": 0.9}
EVALUATIONS = {"eval_interval": 4, "eval_num_samples": 4, "eval_batch_size": 1}
BATCH = {"rollout_buffer_size": 2, "train_batch_size": 2, "early_termination_threshold": -0.2}
DEVICES = {"parallel_training": "none", "agent_devices": ["cuda:0"]}
SAMPLING = {"temperature": 0.8, "top_p": 0.95, "top_k": None}
GROUPS = {**LENGTHS, **EVALUATIONS, **BATCH, "num_generations": 4, "joint_mode": "aligned", "logging_steps": 50}
WHITENED = {"agent_learning_rate": 2e-5, "advantage_normalization": True}
VALUES = {**LENGTHS, **EVALUATIONS, **BATCH, "critic_learning_rate": 5e-6, "value_loss_coef": 0.6}
EARLIER = {"per_device_train_batch_size": 1, "save_steps": 200, "num_train_epochs": 8, "num_generations": 4}
BLOCKS = {"block_agent1": ["stone", "air"], "max_commands": 300}
FILES: dict[str, dict[str, Any]] = {
    "programs": {
        "agent_model": {**AGENT, "torch_dtype": "bfloat16", "special_tokens": {}},
        **NO_CRITIC,
        "dataset": PROGRAMS,
        "seed": 1,
        "external": {"mode": "level_feedback", "sandbox_slice": 1, "external_prompt_passthrough": False},
        "magrpo": {**DEVICES, **GROUPS, **WHITENED, "num_agents": 2},
        "reward_processor": {"enabled": True, "scale_factor": 1.0, "shift": -4},
        "wandb": {"project": "p", "entity": "e", "name": "n", "dir": "out", "tags": ["a"]},
    },
    "programs of one agent": {
        "agent_model": {**AGENT, "torch_dtype": "bfloat16"},
        **NO_CRITIC,
        "dataset": PROGRAMS,
        "grpo": {"parallel_training": "auto", **GROUPS, **SAMPLING, **WHITENED, "reward_shift": -2.1},
    },
    "one agent with a critic": {
        "agent_model": {**AGENT, "torch_dtype": "bfloat16"},
        "critic_model": {**CRITIC, "temperature": 0.7},
        "critics": None,
        "dataset": PROGRAMS,
        "output": OUTPUT,
        "ac": {"parallel_training": "auto", **VALUES, **SAMPLING, **WHITENED, "reward_shift": -4},
    },
    "independent critics": {
        "agent_model": AGENT,
        "critic_model": CRITIC,
        "dataset": PROGRAMS,
        "iac": {**DEVICES, **VALUES, "critic_devices": ["cuda:0"], "use_separate_critic": True,
                "value_clip_range": 0.2},
    },
    "a critic of an earlier version": {
        "model": {**AGENT, "tokenizer_kwargs": {"trust_remote_code": True}, "model_kwargs": {
            "trust_remote_code": True, "torch_dtype": "auto", "device_map": "auto", "attn_implementation": "sdpa"}},
        "dataset": {**PROGRAMS, "private": True},
        "maac": {**VALUES, **EARLIER, "num_generations": 1, "actor_learning_rate": 5e-6, "critic_model": None,
                 "critic_type": "v", "num_return_sequences": 1, "mini_batch_size": 4, "ac_epochs": 1},
    },
    "an earlier version": {
        "model": {**AGENT, "temperature": 0.7, "dtype": "bf16", "gradient_checkpointing": False},
        "dataset": PROGRAMS,
        "magrpo": {**EARLIER, "learning_rate": 2e-5, "temperature": 0.8, "termination_threshold": -0.1,
                   "normalize_advantage": False, "epsilon_clip": None, "eval_num_samples": 0, "reward_shift": None},
        "debug": {"enabled": True, "every_n_calls": 5},
        "patches": {"force_sampling": True},
    },
    "classes": {
        "model": {**AGENT, "torch_dtype": "bfloat16"},
        "critic": {**AGENT, "torch_dtype": "bfloat16"},
        "dataset": CLASSES,
        "external": {"mode": "code_feedback", "original_prompt": True, "previous_response": True},
        "maac": {**VALUES, **SAMPLING, "critic_type": "v", "num_generations": 1},
    },
    "texts": {
        "agent_model": {**AGENT, "torch_dtype": "auto"},
        **NO_CRITIC,
        "dataset": POSTS,
        "tokenizer": {"padding_side": "left"},
        "magrpo": {**DEVICES, **GROUPS, "num_turns": 1, "rollout_buffer_size": 1},
    },
    "words": {
        "agent_model": {**AGENT, "dtype": "bf16"},
        "critic_model": CRITIC,
        "dataset": WORDS,
        "external": {"mode": "position_feedback", "original_prompt": True},
        "maac": {**VALUES, "num_turns": 4, "rollout_buffer_size": 1, "critic_type": "v"},
        "wandb": {"project": "p", "run_name": "n"},
        "prompt": {"provide_graph": False, "use_chat_template": True},
        "task": BLOCKS,
    },
}  # fmt: skip


def read(name: str, tmp_path: Path, **overrides: Any) -> tuple[Config, list[str]]:
    """Return the config of a file, and the notes."""
    path = tmp_path / "theirs.yaml"
    path.write_text(yaml.safe_dump(FILES[name], sort_keys=False), encoding="utf-8")
    notes: list[str] = []
    given = {key.replace("__", "."): value for key, value in overrides.items()}
    return load(path, "magrpo", given, notes.append), notes


@pytest.mark.parametrize("name", FILES)
def test_a_file_runs_as_it_is_and_each_difference_is_a_line(name: str, tmp_path: Path) -> None:
    config, notes = read(name, tmp_path)
    trainer = next(section for section in TRAINERS if section in FILES[name])
    assert (config.compat, config.training.handoff, config.agents[0].name) == ("comlrl", "all", "owner/model")
    assert config.num_agents == (1 if trainer in ("grpo", "ac") else 2)
    assert config.training.critic == {"ac": "iac", "iac": "iac", "maac": "maac"}.get(trainer, "none")
    assert notes[0] == "a config of CoMLRL, read with its defaults and compat comlrl"
    assert len(set(notes)) == len(notes)
    assert not any("\n" in note for note in notes)
    assert not is_comlrl(to_tree(config))
    assert from_tree(to_tree(config), "magrpo") == config


def test_values_arrive(tmp_path: Path) -> None:
    config, notes = read("an earlier version", tmp_path)
    assert (config.agents[0].learning_rate, config.agents[0].temperature, config.agents[0].top_p) == (2e-5, 0.8, 0.6)
    assert (config.training.early_termination_threshold, config.training.normalize_advantages) == (-0.1, False)
    assert (config.training.eval_num_samples, config.dataset.eval_split) == (None, None)
    assert config.agents[0].dtype == "bfloat16"
    assert "temperature 0.7 of the model is left out: magrpo.temperature is 0.8" in notes
    words, notes = read("words", tmp_path)
    assert (words.dataset.name, words.dataset.train_split) == ("../words.csv", "train[:8]")
    assert (words.environment, words.plugin_sections["wandb"].name) == ("word_builder", "n")
    assert "task.block_agent1 is left out: the blocks of the agents are fixed" in "\n".join(notes)
    assert "maac.advantage_normalization is off: a batch of one completion has nothing to compare" in notes
    assert read("programs of one agent", tmp_path)[0].reward_processor.shift == -2.1


def test_a_single_agent_trains_with_both_commands(tmp_path: Path) -> None:
    config, _ = read("programs of one agent", tmp_path)
    alone = load(tmp_path / "theirs.yaml", "grpo")
    assert (config.algorithm, alone.algorithm) == ("magrpo", "grpo")
    assert (config.num_agents, alone.num_agents) == (1, 1)
    assert replace(config.training, estimator="grpo") == alone.training
    assert from_keywords(tmp_path / "theirs.yaml", None, {}).algorithm == "grpo"
    read("programs", tmp_path)
    with pytest.raises(UserError, match=r"has a section 'magrpo': run it with python -m marl_ray\.train_magrpo"):
        load(tmp_path / "theirs.yaml", "grpo")


def test_overrides_have_the_names_of_both(tmp_path: Path) -> None:
    theirs = {"agent_model__name": "a/b", "maac__agent_learning_rate": 0.5, "wandb__run_name": "x"}
    config, _ = read("words", tmp_path, **theirs, maac__temperature=0.9)
    assert (config.agents[0].name, config.agents[0].learning_rate) == ("a/b", 0.5)
    assert config.plugin_sections["wandb"].name == "x"
    assert config.agents[0].temperature == 0.9
    ours, _ = read("words", tmp_path, model__name="a/b", magrpo__learning_rate=0.5, wandb__name="x")
    assert (ours.agents[0].name, ours.agents[0].learning_rate) == ("a/b", 0.5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"iac": {"num_turnz": 2}}, "unknown setting 'magrpo.num_turnz': did you mean 'magrpo.num_turns'?"),
        ({"iac": {}, "agent_modle": {"name": "m"}}, "unknown setting 'agent_modle': did you mean 'agent_model'?"),
        ({"agent_modle": {"name": "m"}}, "unknown setting 'agent_modle': did you mean 'agent_model'?"),
        ({"iac": {}, "agent_model": {"temprature": 1}}, "'model.temprature': did you mean 'model.temperature'?"),
        ({"iac": {}, "agent_model": "m"}, "'agent_model' should be a section with settings, got 'm'"),
        ({"iac": {"agent_learning_rate": 1, "learning_rate": 2}}, "learning_rate and learning_rate are the same"),
        ({"maac": {}, "critic_model": {"name": "other"}}, "critic_model (the critic starts from the agent's initial"),
        ({"magrpo": {"per_device_train_batch_size": 4}}, "magrpo.per_device_train_batch_size (rollout_buffer_size is"),
        ({"magrpo": {}, "prompt": {}, "dataset": {"type": "bridge_build"}}, "an environment that does not exist here"),
    ],
)
def test_what_cannot_be_read_is_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        from_tree({"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, **change}, "magrpo")
    assert says in str(error.value)


def test_the_critics_may_be_the_agents_models() -> None:
    given = {"agents": ["a", "b"], "critics": ["a", "b"], "dataset": {"name": "bundled:toy"}, "maac": {}}
    assert [agent.name for agent in from_tree(given, "magrpo").agents] == ["a", "b"]


@pytest.mark.parametrize("turns", [2, 3, 4])
@pytest.mark.parametrize("critic", ["none", "iac", "maac"])
def test_early_ends_are_allowed_with_compat(turns: int, critic: str) -> None:
    config = make_config(sections={"compat": "comlrl"}, critic=critic, num_turns=turns)
    assert config.training.early_termination_threshold == -0.2
    note = unequal_returns(config)
    if (turns, critic) == (2, "none"):
        assert note is None
    else:
        assert note is not None
        assert note.startswith("magrpo.early_termination_threshold -0.2 ends branches, as in CoMLRL")
    assert unequal_returns(make_config(num_turns=turns)) is None


def test_an_own_config_is_none_of_comlrl() -> None:
    for algorithm in ("magrpo", "grpo"):
        assert not is_comlrl(to_tree(make_config(algorithm, sections={"compat": "comlrl"})))
    aliases = {"agent_learning_rate": 1e-5, "advantage_normalization": True, "temperature": 0.5, "reward_shift": 0}
    assert not is_comlrl({"model": {"name": "m"}, "magrpo": aliases})


@pytest.mark.slow
def test_a_dry_run_prints_the_config_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "theirs.yaml"
    own = {"agent_model": {"name": "bundled:toy-base"}, "dataset": {"name": "bundled:toy", "type": "humaneval"}}
    path.write_text(yaml.safe_dump(FILES["independent critics"] | own | {"critic_model": None}), encoding="utf-8")
    assert main(["train", "magrpo", "--config", str(path), "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["magrpo"]["critic"] == "iac"
    assert "iac.critic_devices is left out: resources.generator and resources.learner place the models" in printed.err
    assert "magrpo.early_termination_threshold -0.2 ends branches, as in CoMLRL" in printed.err
