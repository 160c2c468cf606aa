"""The typed config: reading, overrides, legacy spellings, and one-line refusals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from marl_ray.cli.train import train_main
from marl_ray.config import Config, from_tree, load, parse_overrides, to_tree, to_yaml
from marl_ray.config.arithmetic import arithmetic
from marl_ray.config.reading import parse_value
from marl_ray.core.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs"
MISSION = [
    f"{mt}{algo}_{data}_config" for mt in ("", "mt_") for algo in ("grpo", "magrpo") for data in ("he", "che", "mbpp")
]

PARITY = sorted(path.stem for path in (CONFIGS / "parity").glob("*.yaml"))


def tree(**sections: object) -> dict:
    base: dict = {"model": {"name": "m"}, "dataset": {"name": "humaneval.jsonl"}}
    for name, value in sections.items():
        base[name] = {**base.get(name, {}), **value} if isinstance(value, dict) else value
    return base


def names(config: Config) -> list[str]:
    return [agent.name for agent in config.agents]


@pytest.mark.parametrize("name", [*MISSION, "quickstart"])
def test_every_shipped_config_loads_and_survives_a_round_trip(name: str) -> None:
    algorithm = "grpo" if "_grpo" in f"_{name}" and "magrpo" not in name else "magrpo"
    config = load(CONFIGS / f"{name}.yaml", algorithm)
    again = from_tree(yaml.safe_load(to_yaml(config)), algorithm)
    assert again == config
    assert config.num_agents == (1 if algorithm == "grpo" else 2)
    assert config.rollout.num_turns == (2 if name.startswith("mt_") or name == "quickstart" else 1)


@pytest.mark.parametrize(
    ("name", "parity"), [*((name, False) for name in MISSION if "mbpp" not in name), *((name, True) for name in PARITY)]
)
def test_the_published_settings_are_those_of_the_comments(name: str, parity: bool) -> None:
    path = CONFIGS / ("parity" if parity else "") / f"{name}.yaml"
    algorithm_name = "magrpo" if "magrpo" in name else "grpo"
    config = load(path, algorithm_name)
    rollout = config.rollout
    for agent in config.agents:
        assert (agent.name, agent.dtype) == ("Qwen/Qwen2.5-Coder-3B", "bfloat16")
        assert (agent.temperature, agent.top_p) == ((0.6, 0.6) if parity else (0.8, 0.95))
        assert (agent.learning_rate, agent.max_new_tokens) == (2e-5, 256)
    assert config.credit.normalize_advantages is parity
    assert rollout.num_generations == 4
    assert 6 <= config.loop.num_train_epochs <= 8
    assert config.reward_processor.shift == (-4.0 if algorithm_name == "magrpo" else -2.1)
    tasks = 66 if "_che_" in name else 130
    assert rollout.rollout_buffer_size * rollout.num_turns == (2 if parity else 8 * rollout.num_turns)
    comment = " ".join(line.lstrip("# ") for line in path.read_text().split("seed:")[0].splitlines())
    steps = arithmetic(config, tasks).optimizer_steps
    assert (
        f"for every 2 groups, {steps} in all" if parity else f"makes {steps} optimizer steps in place of"
    ) in comment


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
    assert names(config) == ["bigcode/starcoder2-3b"] * 2
    assert config.dataset.train_split == "test[16:]"
    assert config.credit.turn_gradient_weights == (1.5, 0.5)
    assert config.agents[0].learning_rate == 3e-5
    assert config.external.original_prompt is True
    assert config.external.sandbox_slice == -2
    assert config.rollout.handoff == "best"


def test_aliases_are_resolved() -> None:
    config = from_tree(tree(magrpo={"agent_learning_rate": "3e-5", "temperature": 0.6, "top_p": 0.6}), "magrpo")
    assert config.agents[0].learning_rate == 3e-5
    assert (config.agents[0].temperature, config.agents[0].top_p) == (0.6, 0.6)
    assert config.agents[0].estimator == "magrpo"
    assert config.num_agents == 2
    assert from_tree(tree(agents=["a", "b", "c"]), "magrpo").num_agents == 3


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
def test_what_a_person_means(override: str, read: str, value: object) -> None:
    found = to_tree(load(CONFIGS / "magrpo_he_config.yaml", "magrpo", parse_overrides([override])))
    for part in read.split("."):
        found = found[part]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("key", ["kl_coef", "beta", "use_kl_loss", "reference_kl", "ref_model"])
def test_reference_kl_is_known_to_be_missing(key: str) -> None:
    with pytest.raises(UserError, match=rf"^magrpo\.{key}: a KL term to a reference policy is not available yet"):
        from_tree(tree(magrpo={key: 0.01}), "magrpo")
    for nothing in (0, 0.0, None, False):
        from_tree(tree(magrpo={key: nothing}), "magrpo")


@pytest.mark.parametrize(
    ("key", "meant"),
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
def test_an_unknown_setting_names_the_one_that_is_meant(key: str, meant: str) -> None:
    with pytest.raises(UserError, match=rf"did you mean '{meant}'\?$"):
        load(CONFIGS / "magrpo_he_config.yaml", "magrpo", {key: 1})


def test_fewer_turns_take_the_first_weights_and_say_so() -> None:
    path, said = CONFIGS / "mt_magrpo_he_config.yaml", []
    config = load(path, "magrpo", {"magrpo.num_turns": 1}, said.append)
    assert config.credit.turn_gradient_weights == (1.2,)
    (line,) = said
    assert line.startswith("note: magrpo.num_turns is 1, so of turn_gradient_weights [1.2, 0.8]")
    with pytest.raises(UserError, match="has 2 values for 3 turns: give one a turn"):
        load(path, "magrpo", {"magrpo.num_turns": 3})
    with pytest.raises(UserError, match="has 3 values for 1 turn: give one a turn"):
        load(path, "magrpo", {"magrpo.num_turns": 1, "magrpo.turn_gradient_weights": [1, 2, 3]})


def test_a_flag_beats_an_override(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--config", str(CONFIGS / "mt_magrpo_he_config.yaml"), "--dry-run", "--num_turns", "1"]
    arguments += ["--num_epochs", "3", "--model_name", "a/flag", "--override", "magrpo.num_train_epochs=9"]
    arguments += ["magrpo.num_turns=2", "model_name=an/override", "model.name=another/override"]
    assert train_main("magrpo", arguments) == 0
    out, err = capsys.readouterr()
    printed = yaml.safe_load(out)
    assert printed["model"]["name"] == "a/flag"
    assert (printed["magrpo"]["num_train_epochs"], printed["magrpo"]["num_turns"]) == (3, 1)
    assert err.startswith("note: magrpo.num_turns is 1")


def test_a_mistake_among_the_flags_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        train_main("magrpo", ["--num_turns", "two"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err == "error: argument --num_turns: invalid int value: 'two' (--help shows what there is)\n"


def test_a_later_spelling_wins_over_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    given = tree(
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
        ({"magrpo": {"turn_gradient_weights": [0]}}, "not all 0"),
        ({"magrpo": {"turn_gradient_weights": [-1]}}, "none should be negative"),
        (
            {"magrpo": {"advantage_mode": "median"}},
            "magrpo.estimator: unknown estimator 'median': known: magrpo, grpo, marloo",
        ),
        ({"magrpo": {"discount": 1.5}}, "magrpo.discount should be at most 1"),
        ({"magrpo": {"nonsense": 1}}, "the known ones are listed by marl-ray explain magrpo"),
        ({"reward_processor": {"scale_factor": 0}}, "nothing would be learned"),
        ({"output": {"run_name": "../elsewhere"}}, "the name of a folder below output.base_dir"),
        ({"output": {"run_name": "/tmp/elsewhere"}}, "the name of a folder below output.base_dir"),
        ({"output": {"run_name": "."}}, "the name of a folder below output.base_dir"),
        ({"sandbox": {"require": "bwrp"}}, "sandbox.require should be one of process, process+landlock, bwrap or null"),
        ({"magrpo": {"num_turn": 2}}, "did you mean 'magrpo.num_turns'"),
        ({"magrp": {}}, "did you mean 'magrpo'"),
        ({"external": {"mod": "plain"}}, "did you mean 'external.mode'"),
        ({"external": {"mode": "levels"}}, "unknown external.mode 'levels': did you mean level_passed?"),
        ({"magrpo": {"num_turns": 10**24}}, f"magrpo.num_turns should be at most 100, got {10**24}"),
        ({"magrpo": {"num_agents": 10**24}}, f"magrpo.num_agents should be at most 100, got {10**24}"),
        ({"model": {"tokenizer_kwargs": {"x": 1j}}}, "model.tokenizer_kwargs.x should be text, a number, true, false"),
        ({"model": {"tokenizer_kwargs": {"x": [(1, 2)]}}}, "or mapping of these (20 levels at most), got [(1, 2)]"),
        ({"model": {"tokenizer_kwargs": {"x": parse_value("[" * 60 + "1" + "]" * 60)}}}, "(20 levels at most), got [["),
        ({"output": {"run_name": "a/" + "é" * 128}}, "output.run_name has a name of 256 bytes, and a folder's has at"),
        ({"output": {"base_dir": "b" * 256}}, "output.base_dir has a name of 256 bytes"),
        ({"output": {"base_dir": "a\0b"}}, "output.base_dir 'a\\x00b' has a NUL character"),
        (
            {"magrpo": {"handoff": "all", "num_turns": 3, "early_termination_threshold": 0}},
            "magrpo.early_termination_threshold with handoff all and 3 turns would rank a branch that ended early "
            "below one that went on, since its return has fewer turns: set it to null, or num_turns to 2",
        ),
        ({"magrpo": {"num_turns": "two"}}, "magrpo.num_turns should be a whole number, got 'two'"),
        ({"magrpo": {"num_turns": True}}, "magrpo.num_turns should be a whole number"),
        ({"magrpo": {"learning_rate": "fast"}}, "magrpo.learning_rate should be a number or null"),
        ({"magrpo": {"learning_rate": "nan"}}, "magrpo.learning_rate should be a number"),
        ({"magrpo": {"turn_gradient_weights": [1.0, 2.0]}}, "2 values for 1 turn:"),
        ({"magrpo": {"num_generations": 1}}, "num_generations is 1, but magrpo compares"),
        ({"magrpo": {"estimator": "marloo", "normalize_advantages": True}}, "the same as magrpo"),
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
    with pytest.raises(UserError) as error:
        from_tree(given, "magrpo")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("turns", "handoff", "threshold"), [(2, "all", 0.5), (3, "all", None), (3, "best", 0.5), (3, "random", 0.5)]
)
def test_an_early_end_has_siblings_that_end_with_it_or_none(turns: int, handoff: str, threshold: float | None) -> None:
    given = {"num_turns": turns, "handoff": handoff, "early_termination_threshold": threshold}
    rollout = from_tree(tree(magrpo=given), "magrpo").rollout
    assert (rollout.num_turns, rollout.handoff, rollout.early_termination_threshold) == (turns, handoff, threshold)


def test_the_largest_counts_are_allowed() -> None:
    config = from_tree(tree(magrpo={"num_turns": 100, "num_agents": 100}, output={"run_name": "n" * 255}), "magrpo")
    assert (config.rollout.num_turns, config.num_agents) == (100, 100)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{[]:1}", "value {[]:1} cannot be read: line 1, column 2: found unhashable key"),
        ("[2024-13-45]", "value [2024-13-45] cannot be read: line 1, column 2: '2024-13-45' is not a valid timestamp"),
        ("[" * 60 + "x" + "]" * 60, "line 1, column 51: nested more than 50 deep"),
        ("[" * 5000, "line 1, column 51: nested more than 50 deep"),
        ("[&a [*a]]", "line 1, column 6: '*a' is inside itself"),
        ("{a: !!bool x}", "line 1, column 5: 'x' is not a valid bool"),
        ("{a: !!timestamp x}", "line 1, column 5: 'x' is not a valid timestamp"),
    ],
)
def test_a_value_that_cannot_be_read_is_one_line(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        parse_value(text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"c\.yaml is not valid YAML: line 1, column \d+: "):
        load(path, "magrpo")


def test_an_anchor_may_be_used_beside_itself(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(tree()) + "agents: [&a {top_p: 0.5}, *a, {<<: *a, name: b}]\n")
    config = load(path, "magrpo")
    assert [(agent.name, agent.top_p) for agent in config.agents] == [("m", 0.5), ("m", 0.5), ("b", 0.5)]


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
def test_two_spellings_that_mean_the_same_may_both_be_given(sections: dict, read: str, value: object) -> None:
    found = to_tree(from_tree(tree(**sections), "magrpo"))
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
def test_two_spellings_that_differ_are_refused(sections: dict) -> None:
    with pytest.raises(UserError, match="are the same setting and differ: give one of them"):
        from_tree(tree(**sections), "magrpo")


def test_reading_a_config_needs_none_of_the_heavy_packages() -> None:
    code = (
        "import sys; from marl_ray.config import load; import marl_ray.config.explain; "
        f"load({str(CONFIGS / 'quickstart.yaml')!r}, 'magrpo'); "
        "print(*sorted({'torch', 'ray', 'vllm', 'transformers', 'datasets', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_grpo_is_one_agent() -> None:
    assert from_tree(tree(), "grpo").num_agents == 1
    with pytest.raises(UserError, match="grpo trains one agent"):
        from_tree(tree(grpo={"num_agents": 2}), "grpo")


def test_the_wrong_entry_point_names_the_right_one(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(tree(grpo={"num_turns": 1})))
    with pytest.raises(UserError, match=r"train_grpo"):
        load(path, "magrpo")


def test_a_missing_or_broken_file_is_one_line(tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match="holds no settings"):
        load(tmp_path / "empty.yaml", "magrpo")
