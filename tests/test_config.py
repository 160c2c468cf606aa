"""The typed config: reading, overrides, legacy spellings, and one-line refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from marl_ray.check import check
from marl_ray.cli import train_main
from marl_ray.config import ConfigError, from_tree, load, parse_overrides, to_tree, to_yaml
from marl_ray.config.loading import parse_value

CONFIGS = Path(__file__).parent.parent / "configs"
MISSION = [
    f"{mt}{algo}_{data}_config" for mt in ("", "mt_") for algo in ("grpo", "magrpo") for data in ("he", "che", "mbpp")
]


def tree(**sections: object) -> dict:
    base: dict = {"model": {"name": "m"}, "dataset": {"name": "humaneval.jsonl"}}
    for name, value in sections.items():
        base[name] = {**base.get(name, {}), **value} if isinstance(value, dict) else value
    return base


@pytest.mark.parametrize("name", [*MISSION, "quickstart"])
def test_every_shipped_config_loads_and_survives_a_round_trip(name: str) -> None:
    algorithm = "grpo" if "_grpo" in f"_{name}" and "magrpo" not in name else "magrpo"
    config = load(CONFIGS / f"{name}.yaml", algorithm)
    again = from_tree(yaml.safe_load(to_yaml(config)), algorithm)
    assert again == config
    assert config.num_agents == (1 if algorithm == "grpo" else 2)
    assert config.algorithm.num_turns == (2 if name.startswith("mt_") or name == "quickstart" else 1)


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
def test_override_values_mean_what_a_person_means(text: str, value: object) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_overrides_of_the_mission() -> None:
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
    assert config.model_names == ["bigcode/starcoder2-3b"] * 2
    assert config.dataset.train_split == "test[16:]"
    assert config.algorithm.turn_gradient_weights == [1.5, 0.5]
    assert config.algorithm.learning_rate == 3e-5
    assert config.external.original_prompt is True
    assert config.external.sandbox_slice == -2
    assert config.algorithm.handoff == "best"


def test_aliases_are_resolved() -> None:
    config = from_tree(tree(magrpo={"agent_learning_rate": "3e-5", "temperature": 0.6, "top_p": 0.6}), "magrpo")
    assert config.algorithm.learning_rate == 3e-5
    assert (config.model.temperature, config.model.top_p) == (0.6, 0.6)
    assert config.algorithm.estimator == "magrpo"
    assert config.num_agents == 2
    assert from_tree(tree(agents=["a", "b", "c"]), "magrpo").num_agents == 3


def test_a_later_spelling_wins_over_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    given = tree(
        model_name="file", magrpo={"temperature": 0.8, "external_original_prompt": False}, agents=["x", "y", "z"]
    )
    path.write_text(yaml.safe_dump(given))
    overrides = {"model.temperature": 0.2, "external.original_prompt": True}
    config = load(path, "magrpo", overrides)
    assert config.model.temperature == 0.2
    assert config.external.original_prompt is True
    assert (config.model.name, config.model_names) == ("file", ["x", "y", "z"])
    assert load(path, "magrpo", {"model_name": "all"}).model_names == ["all"] * 3
    assert load(path, "magrpo", {"magrpo.temperature": 0.3}).model.temperature == 0.3


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"algorithm": {"num_turns": 2}}, "unknown setting 'algorithm'"),
        ({"magrpo": {"temperature": 0.5}, "model": {"temperature": 0.6}}, "are the same setting and differ"),
        (
            {"magrpo": {"estimator": "mareinforce", "num_generations": 1, "normalize_advantages": True}},
            "set it to 2 or more",
        ),
        ({"magrpo": {"adam_beta1": 2}}, "below 1"),
        ({"resources": {"generator": {"gpus": 0.5, "tensor_parallel": 2}}}, "make them equal"),
        ({"magrpo": {"num_turn": 2}}, "did you mean 'magrpo.num_turns'"),
        ({"magrp": {}}, "did you mean 'magrpo'"),
        ({"external": {"mod": "plain"}}, "did you mean 'external.mode'"),
        ({"external": {"mode": "levels"}}, "external.mode should be one of level_feedback"),
        ({"magrpo": {"num_turns": "two"}}, "magrpo.num_turns should be a whole number, got 'two'"),
        ({"magrpo": {"num_turns": True}}, "magrpo.num_turns should be a whole number"),
        ({"magrpo": {"learning_rate": "fast"}}, "magrpo.learning_rate should be a number or null"),
        ({"magrpo": {"learning_rate": "nan"}}, "magrpo.learning_rate should be a number"),
        ({"magrpo": {"turn_gradient_weights": [1.0, 2.0]}}, "2 values for 1 turn:"),
        ({"magrpo": {"num_generations": 1}}, "num_generations is 1, but magrpo compares"),
        ({"magrpo": {"estimator": "marloo", "normalize_advantages": True}}, "the same as magrpo"),
        ({"magrpo": {"joint_mode": "cross"}}, "not available yet"),
        ({"magrpo": {"handoff": "all"}}, "not available yet"),
        ({"agents": ["a"], "magrpo": {"num_agents": 2}}, "agents names 1 models but magrpo.num_agents is 2"),
        ({"magrpo": {"max_new_tokens": 4096}}, "no room for a prompt"),
        ({"resources": {"learner": {"gpus": 2}}}, "at most one GPU"),
        ({"resources": {"generator": {"gpus": 2}}}, "make them equal"),
        ({"resources": {"deadlines": {"sync_s": 0}}}, "resources.deadlines.sync_s should be above 0"),
        ({"model": "x"}, "'model' should be a section"),
        ({"model": {"temperature": 0}}, "model.temperature should be above 0"),
        ({"dataset": {"name": ""}}, "set dataset.name"),
    ],
)
def test_bad_settings_are_refused_in_one_line(sections: dict, says: str) -> None:
    given = tree(**sections)
    if sections.get("model") == "x":
        given["model"] = "x"
    with pytest.raises(ConfigError) as error:
        from_tree(given, "magrpo")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_grpo_is_one_agent() -> None:
    assert from_tree(tree(), "grpo").num_agents == 1
    with pytest.raises(ConfigError, match="grpo trains one agent"):
        from_tree(tree(grpo={"num_agents": 2}), "grpo")


def test_the_wrong_entry_point_names_the_right_one(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(tree(grpo={"num_turns": 1})))
    with pytest.raises(ConfigError, match=r"train_grpo"):
        load(path, "magrpo")


def test_a_missing_or_broken_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml", "magrpo")
    (tmp_path / "bad.yaml").write_text("a: [1")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load(tmp_path / "bad.yaml", "magrpo")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ConfigError, match="holds no settings"):
        load(tmp_path / "empty.yaml", "magrpo")


def test_dry_run_prints_only_the_config_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(CONFIGS / "mt_magrpo_he_config.yaml"), "--dry-run", "--num_epochs", "10"]
    arguments += ["--num_turns", "2", "--turn_gradient_weights", "1.2", "0.8", "--model_name", "Qwen/Qwen2.5-Coder-7B"]
    assert train_main("magrpo", arguments) == 0
    out, err = capsys.readouterr()
    printed = yaml.safe_load(out)
    assert list(printed)[:2] == ["seed", "agents"]
    assert {"model", "dataset", "output", "external", "magrpo", "reward_processor", "wandb"} <= set(printed)
    assert printed["model"]["name"] == "Qwen/Qwen2.5-Coder-7B"
    assert printed["magrpo"]["num_train_epochs"] == 10
    assert printed["magrpo"]["turn_gradient_weights"] == [1.2, 0.8]
    assert "8 tasks x 2 turns = 16 groups an agent; x 4 generations = 64 joint samples" in err
    assert "without GPUs CPU 2 (2 x generator with CPU 0.5" in err
    assert "with GPUs CPU 2 GPU 4 (" in err
    assert to_tree(from_tree(printed, "magrpo")) == printed


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.name=bundled:nothing", "model bundled:nothing does not exist"),
        ("dataset.eval_split=test", "has no split 'test'"),
        ("resources.generator.gpus=1", "resources.generator.gpus is 1 and resources.learner.gpus 0"),
    ],
)
def test_a_dry_run_checks_what_needs_no_download(
    override: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [override, "resources.learner.gpus=0"] if "gpus" in override else [override]
    arguments = ["--config", str(CONFIGS / "quickstart.yaml"), "--dry-run", "--override", *overrides]
    assert train_main("magrpo", arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_an_error_is_one_line_and_not_zero(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(CONFIGS / "magrpo_he_config.yaml"), "--override", "magrpo.num_turnz=2", "--dry-run"]
    assert train_main("magrpo", arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip() == "error: unknown setting 'magrpo.num_turnz': did you mean 'magrpo.num_turns'?"


def test_an_evaluation_on_tasks_that_are_trained_on_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for split in ("eval", "train[3:8]"):
        check(load(CONFIGS / "quickstart.yaml", "magrpo", {"dataset.eval_split": split}))
        captured = capsys.readouterr()
        said[split] = captured.out + captured.err
    assert "held-out" not in said["eval"]
    assert "5 tasks of train[3:8] are in train too" in said["train[3:8]"]
