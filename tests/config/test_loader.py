"""Loading configs: files, overrides, aliases and errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from marl_ray.config import Config, from_tree, load, parse_overrides, to_tree, to_yaml
from marl_ray.config.budget import training_budget
from marl_ray.config.values import parse_value
from marl_ray.core.errors import UserError
from tests.config.helpers import config_tree
from tests.factories import PLUGINS_OF_CONFIGS, ROOT

CONFIGS = ROOT / "configs"
EXPERIMENTS = [
    f"{mt}{algo}_{data}_config" for mt in ("", "mt_") for algo in ("grpo", "magrpo") for data in ("he", "che", "mbpp")
]

PARITY = sorted(path.stem for path in (CONFIGS / "parity").glob("*.yaml"))


def names(config: Config) -> list[str]:
    return [agent.name for agent in config.agents]


@pytest.mark.plugins(*PLUGINS_OF_CONFIGS)
@pytest.mark.parametrize("name", [*EXPERIMENTS, "mt_magrpo_bug_fix_config", "quickstart"])
def test_every_shipped_config_loads_and_survives_a_round_trip(name: str) -> None:
    algorithm = "grpo" if "_grpo" in f"_{name}" and "magrpo" not in name else "magrpo"
    config = load(CONFIGS / f"{name}.yaml", algorithm)
    again = from_tree(yaml.safe_load(to_yaml(config)), algorithm)
    assert again == config
    assert config.num_agents == (1 if algorithm == "grpo" else 2)
    assert config.training.num_turns == (2 if name.startswith("mt_") or name == "quickstart" else 1)


@pytest.mark.plugins(*PLUGINS_OF_CONFIGS)
@pytest.mark.parametrize(
    ("name", "parity"),
    [*((name, False) for name in EXPERIMENTS if "mbpp" not in name), *((name, True) for name in PARITY)],
)
def test_shipped_configs_have_the_settings_that_their_comments_state(name: str, parity: bool) -> None:
    path = CONFIGS / ("parity" if parity else "") / f"{name}.yaml"
    algorithm_name = "magrpo" if "magrpo" in name else "grpo"
    config = load(path, algorithm_name)
    rollout = config.training
    for agent in config.agents:
        assert (agent.name, agent.dtype) == ("Qwen/Qwen2.5-Coder-3B", "bfloat16")
        assert (agent.temperature, agent.top_p) == ((0.6, 0.6) if parity else (0.8, 0.95))
        assert (agent.learning_rate, agent.max_new_tokens) == (2e-5, 256)
    assert config.training.normalize_advantages is parity
    assert rollout.num_generations == 4
    assert 6 <= config.training.num_train_epochs <= 8
    assert config.reward_processor.shift == (-4.0 if algorithm_name == "magrpo" else -2.1)
    tasks = 66 if "_che_" in name else 130
    assert rollout.rollout_buffer_size * rollout.num_turns == (2 if parity else 8 * rollout.num_turns)
    comment = " ".join(line.lstrip("# ") for line in path.read_text().split("seed:")[0].splitlines())
    steps = training_budget(config, tasks).optimizer_steps
    assert (f"per 2 groups, {steps} in all" if parity else f"takes {steps} optimizer steps instead of") in comment


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("True", True),
        ("false", False),
        ("None", None),
        ("null", None),
        ("3e-5", 3e-5),
        ("-2", -2),
        ("20", 20),
        ("0.5", 0.5),
        ("[1.5,0.5]", [1.5, 0.5]),
        ("[a, b]", ["a", "b"]),
        ("'level_feedback'", "level_feedback"),
        ("test[16:]", "test[16:]"),
        ("'test[:16]'", "test[:16]"),
        ("bigcode/starcoder2-3b", "bigcode/starcoder2-3b"),
        ("no", "no"),
    ],
)
def test_override_values_are_parsed_as_literals(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_overrides_with_aliases_and_quotes() -> None:
    overrides = parse_overrides(
        [
            "model_name='bigcode/starcoder2-3b'",
            "dataset.train_split='test[16:]'",
            "magrpo.num_turns=2",
            "magrpo.turn_gradient_weights=[1.5,0.5]",
            "magrpo.learning_rate=3e-5",
            "magrpo.external_original_prompt=True",
            "external.sandbox_slice=-2",
            "magrpo.handoff='best'",
        ]
    )
    config = load(CONFIGS / "magrpo_che_config.yaml", "magrpo", overrides)
    assert names(config) == ["bigcode/starcoder2-3b"] * 2
    assert config.dataset.train_split == "test[16:]"
    assert config.training.turn_gradient_weights == (1.5, 0.5)
    assert config.agents[0].learning_rate == 3e-5
    assert config.external.original_prompt is True
    assert config.external.sandbox_slice == -2
    assert config.training.handoff == "best"


@pytest.mark.parametrize(
    ("overrides", "importance"),
    [
        ([], "none"),
        (["magrpo.max_staleness=1"], "truncate"),
        (["model.top_p=0.95"], "truncate"),
        (["agents.1.top_p=0.95"], "truncate"),
        (["model.top_k=20"], "truncate"),
        (["model.top_k=-1", "model.top_p=1"], "none"),
        (["magrpo.max_staleness=1", "magrpo.importance=none"], "none"),
        (["magrpo.max_staleness=1", "magrpo.importance=null"], "none"),
        (["magrpo.max_staleness=1", "magrpo.importance=mask"], "mask"),
        (["magrpo.importance=truncate"], "truncate"),
    ],
)
def test_importance_auto_depends_on_the_sampler(overrides: list[str], importance: str) -> None:
    config = load(CONFIGS / "quickstart.yaml", "magrpo", parse_overrides(overrides))
    assert config.importance == importance


def test_aliases_are_resolved() -> None:
    config = from_tree(config_tree(magrpo={"agent_learning_rate": "3e-5", "temperature": 0.6, "top_p": 0.6}), "magrpo")
    assert config.agents[0].learning_rate == 3e-5
    assert (config.agents[0].temperature, config.agents[0].top_p) == (0.6, 0.6)
    assert config.agents[0].estimator == "magrpo"
    assert config.num_agents == 2
    assert from_tree(config_tree(agents=["a", "b", "c"]), "magrpo").num_agents == 3


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("magrpo.top_k=50", "model.top_k", 50),
        ("magrpo.top_k=0", "model.top_k", None),
        ("model.top_k=-1", "model.top_k", None),
        ("external.sandbox_slice=ALL", "external.sandbox_slice", "all"),
        ("external.sandbox_slice='2'", "external.sandbox_slice", 2),
        ("external.mode=Plain", "external.mode", "plain"),
        ("dataset.type=HumanEval", "dataset.type", "humaneval"),
        ("magrpo.joint_mode=align", "magrpo.joint_mode", "aligned"),
        ("magrpo.joint_mode=Align", "magrpo.joint_mode", "aligned"),
        ("reward_processor.shift=null", "reward_processor.shift", 0.0),
        ("magrpo.reward_shift=-4", "reward_processor.shift", -4.0),
        ("reward_shift=-4", "reward_processor.shift", -4.0),
        ("magrpo.advantage_normalization=True", "magrpo.normalize_advantages", True),
        ("magrpo.advantage_mode=mean", "magrpo.estimator", "magrpo"),
        ("magrpo.advantage_mode=rloo", "magrpo.estimator", "marloo"),
        ("magrpo.advantage_mode=max", "magrpo.estimator", "maremax"),
        ("magrpo.advantage_mode=raw", "magrpo.estimator", "mareinforce"),
        ("magrpo.num_train_epochs=2.0", "magrpo.num_train_epochs", 2),
        ("magrpo.gradient_checkpointing=yes", "magrpo.gradient_checkpointing", True),
        ("agents=a,b", "agents", ["a", "b"]),
        (
            "model.special_tokens={additional_special_tokens: [a, b]}",
            "model.special_tokens",
            {"additional_special_tokens": ["a", "b"]},
        ),
    ],
)
def test_values_are_converted_leniently(override: str, read: str, value: object) -> None:
    found = to_tree(load(CONFIGS / "magrpo_he_config.yaml", "magrpo", parse_overrides([override])))
    for part in read.split("."):
        found = found[part]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("alias", "loss"),
    [("ppo", "clip"), ("PPO", "clip"), ("reinforce", "policy_gradient"), ("Reinforce", "policy_gradient")],
)
def test_losses_are_read_by_the_names_of_other_libraries(alias: str, loss: str) -> None:
    section = {"loss": alias, "rollout_buffer_size": 2, "train_batch_size": 1}
    config = from_tree(config_tree(magrpo=section), "magrpo")
    assert config.training.loss == loss
    assert config == from_tree(config_tree(magrpo=section | {"loss": loss}), "magrpo")


@pytest.mark.parametrize("key", ["kl_coef", "beta", "use_kl_loss", "ref_model"])
def test_kl_settings_of_other_libraries_name_ours(key: str) -> None:
    with pytest.raises(UserError, match=rf"^unknown setting 'magrpo\.{key}': .* is set by reference_kl_coef"):
        from_tree(config_tree(magrpo={key: 0.01}), "magrpo")
    for disabled in (0, 0.0, None, False):
        from_tree(config_tree(magrpo={key: disabled}), "magrpo")


@pytest.mark.parametrize(
    ("section", "overrides", "coefficient"),
    [
        ({"reference_kl_coef": 0.2}, {}, 0.2),
        ({"reference_kl_enabled": True}, {}, 0.1),
        ({"reference_kl_enabled": True, "reference_kl_coef": 0.2}, {}, 0.2),
        ({"reference_kl_enabled": False, "reference_kl_coef": 0.2}, {}, 0.0),
        ({"reference_kl_enabled": None, "reference_kl_coef": 0.2}, {}, 0.2),
        ({"reference_kl_coef": 0.2}, {"magrpo.reference_kl_coef": 0}, 0.0),
        ({"reference_kl_coef": 0.2}, {"magrpo.reference_kl_enabled": False}, 0.0),
        ({}, {"magrpo.reference_kl_enabled": True}, 0.1),
    ],
)
def test_the_kl_switch_of_comlrl_sets_the_coefficient(section: dict, overrides: dict, coefficient: float) -> None:
    config = from_tree(config_tree(magrpo=section), "magrpo", overrides)
    assert [agent.reference_kl_coef for agent in config.agents] == [coefficient] * 2


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("lr", "magrpo.learning_rate"),
        ("magrpo.lr", "magrpo.learning_rate"),
        ("magrpo.epochs", "magrpo.num_train_epochs"),
        ("magrpo.mode", "external.mode"),
        ("temperature", "model.temperature"),
        ("magrpo.external_original_promt", "magrpo.external_original_prompt"),
        ("grpo.num_turns", "magrpo"),
    ],
)
def test_an_unknown_setting_names_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(UserError, match=rf"did you mean '{nearest}'\?$"):
        load(CONFIGS / "magrpo_he_config.yaml", "magrpo", {key: 1})


def test_an_override_of_num_turns_truncates_turn_weights_with_a_note() -> None:
    path, notes = CONFIGS / "mt_magrpo_he_config.yaml", []
    config = load(path, "magrpo", {"magrpo.num_turns": 1}, notes.append)
    assert config.training.turn_gradient_weights == (1.2,)
    (line,) = notes
    assert line.startswith("note: magrpo.num_turns is 1, so of turn_gradient_weights [1.2, 0.8]")
    with pytest.raises(UserError, match="has 2 values for 3 turns: give one per turn"):
        load(path, "magrpo", {"magrpo.num_turns": 3})
    with pytest.raises(UserError, match="has 3 values for 1 turn: give one per turn"):
        load(path, "magrpo", {"magrpo.num_turns": 1, "magrpo.turn_gradient_weights": [1, 2, 3]})


def test_an_override_takes_precedence_over_an_alias_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    given = config_tree(
        model_name="file", magrpo={"temperature": 0.8, "external_original_prompt": False}, agents=["x", "y", "z"]
    )
    path.write_text(yaml.safe_dump(given))
    overrides = {"model.temperature": 0.2, "external.original_prompt": True}
    config = load(path, "magrpo", overrides)
    assert config.agents[0].temperature == 0.2
    assert config.external.original_prompt is True
    assert to_tree(config)["model"]["name"] == "file"
    assert names(config) == ["x", "y", "z"]
    assert names(load(path, "magrpo", {"model_name": "all"})) == ["all"] * 3
    assert load(path, "magrpo", {"magrpo.temperature": 0.3}).agents[2].temperature == 0.3


@pytest.mark.parametrize(
    ("sections", "read", "value"),
    [
        ({"model": {"top_k": 0}, "magrpo": {"top_k": -1}}, "model.top_k", None),
        ({"model": {"temperature": 0.5}, "magrpo": {"temperature": "0.5"}}, "model.temperature", 0.5),
        ({"magrpo": {"advantage_mode": "mean", "estimator": "magrpo"}}, "magrpo.estimator", "magrpo"),
        ({"magrpo": {"advantage_mode": "RLOO", "estimator": "marloo"}}, "magrpo.estimator", "marloo"),
        ({"magrpo": {"reward_shift": -4}, "reward_processor": {"shift": "-4.0"}}, "reward_processor.shift", -4.0),
    ],
)
def test_a_key_and_its_alias_may_both_be_given_with_equal_values(sections: dict, read: str, value: object) -> None:
    found = to_tree(from_tree(config_tree(**sections), "magrpo"))
    for part in read.split("."):
        found = found[part]
    assert found == value


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"top_k": 0}, "magrpo": {"top_k": 1}},
        {"model": {"temperature": 0.5}, "magrpo": {"temperature": "warm"}},
        {"magrpo": {"advantage_mode": "max", "estimator": "magrpo"}},
    ],
)
def test_a_key_and_its_alias_with_different_values_are_rejected(sections: dict) -> None:
    with pytest.raises(UserError, match="are the same setting and differ: give one of them"):
        from_tree(config_tree(**sections), "magrpo")


def test_loading_a_config_imports_no_heavy_packages() -> None:
    code = (
        "import sys; from marl_ray.config import load; import marl_ray.config.descriptions; "
        f"load({str(CONFIGS / 'quickstart.yaml')!r}, 'magrpo'); "
        "print(*sorted({'torch', 'ray', 'vllm', 'transformers', 'datasets', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_importing_the_settings_does_not_import_pydantic() -> None:
    code = "import sys, marl_ray.config; print('pydantic' in sys.modules)"  # actors unpickle configs but never load one
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_grpo_has_one_agent() -> None:
    assert from_tree(config_tree(), "grpo").num_agents == 1
    with pytest.raises(UserError, match="grpo trains one agent"):
        from_tree(config_tree(grpo={"num_agents": 2}), "grpo")


def test_a_config_of_the_other_algorithm_names_its_entry_point(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(config_tree(grpo={"num_turns": 1})))
    with pytest.raises(UserError, match=r"train_grpo"):
        load(path, "magrpo")


def test_a_missing_or_invalid_file_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "none.yaml", "magrpo")
    with pytest.raises(UserError, match=r"^config 'a\\x00b' is not a path: it has a NUL character$"):
        load("a\0b", "magrpo")
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(UserError, match="not valid YAML"):
        load(tmp_path / "bad.yaml", "magrpo")
    (tmp_path / "twice.yaml").write_text("seed: 1\nmodel:\n  name: a\n  name: b\n")
    with pytest.raises(UserError, match=r"twice\.yaml is not valid YAML: line 4, column 3: 'name' is given twice"):
        load(tmp_path / "twice.yaml", "magrpo")
    with pytest.raises(UserError, match="a space is missing after a colon"):
        parse_overrides(["model.tokenizer_kwargs={trust_remote_code:true}"])
    (tmp_path / "dots.yaml").write_text("magrpo.num_turns: 2\n")
    with pytest.raises(UserError, match="in a file, write a section for every dot"):
        load(tmp_path / "dots.yaml", "magrpo")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(UserError, match="contains no settings"):
        load(tmp_path / "empty.yaml", "magrpo")
