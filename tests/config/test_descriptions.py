"""Descriptions of settings, from the docstrings of their fields, and the JSON Schema."""

from __future__ import annotations

import jsonschema
import pytest
import yaml

from marl_ray import registry, toy
from marl_ray.config import from_tree, to_tree
from marl_ray.config.compat import KEY_ALIASES, canonical_key
from marl_ray.config.descriptions import describe_setting, explain, json_schema
from marl_ray.config.keys import agent_keys, settings
from marl_ray.core.errors import UserError
from tests.factories import PLUGINS_OF_CONFIGS, ROOT


@pytest.mark.parametrize("algorithm", ["magrpo", "grpo"])
def test_every_setting_has_a_description(algorithm: str) -> None:
    for key, setting in settings(algorithm).items():
        text = describe_setting(key, setting)
        assert len(text) > 10, key
        assert text.endswith("."), key


def test_bundled_sets_and_models_are_listed() -> None:
    for key, names in (
        ("dataset.name", toy.ROWS | registry.bundled_rows()),
        ("model.name", toy.MODELS | registry.bundled_models()),
    ):
        listed = describe_setting(key, settings("magrpo")[key]).rpartition("Bundled: ")[2]
        assert listed == ", ".join(f"`{name}`" for name in names) + "."


def test_settings_are_the_keys_of_a_saved_config() -> None:
    def keys(tree: dict, prefix: str = "") -> set[str]:
        names = set()
        for name, value in tree.items():
            key = f"{prefix}{name}"
            names |= keys(value, f"{key}.") if isinstance(value, dict) and key not in settings("magrpo") else {key}
        return names

    config = from_tree({"model": {"name": "m"}, "dataset": {"name": "toy"}}, "magrpo")
    assert keys(to_tree(config)) == set(settings("magrpo"))


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        ("seed", ["seed: a whole number; default 42", "Seed of all random streams."]),
        (
            "magrpo.discount",
            [
                "magrpo.discount: a number of at least 0 and at most 1; default 1.0",
                "Discount factor per turn.",
            ],
        ),
        (
            "magrpo.advantage_normalization",
            [
                "magrpo.advantage_normalization is an alias of magrpo.normalize_advantages",
                "magrpo.normalize_advantages: true or false; default false",
                "Whiten advantages: subtract the mean of the group (with a critic, of all completions of an agent in "
                "one turn of the batch) and divide by its standard deviation. `advantage_normalization` is an alias.",
            ],
        ),
        (
            "magrpo.top_p",
            [
                "magrpo.top_p is an alias of model.top_p",
                "model.top_p: a number above 0 and at most 1; default 1.0",
                "Probability mass of nucleus sampling. Below 1, sampling differs from the learner, which `importance` "
                "corrects.",
                "agents.N.top_p sets it for one agent.",
            ],
        ),
        (
            "magrpo.max_steps",
            [
                "magrpo.max_steps: a whole number above 0, or null; default null",
                "Maximum number of steps, regardless of epochs. null: no limit.",
            ],
        ),
        (
            "external.mode",
            [
                "external.mode: level_feedback, level_passed, passed, plain, expert_edits, or module:Attr of a "
                "plug-in; default level_feedback",
                "Kind of feedback and its wording.",
            ],
        ),
        (
            "magrpo.estimator",
            [
                "magrpo.estimator: magrpo, grpo, marloo, maremax, mareinforce, remax, difference, centred_difference, "
                "shapley, reinforce_pp, opo, maxrl, pass_at_k, gdpo, madpo, distillation, or module:Attr of a "
                "plug-in, or null; default null",
                "Advantage estimator. null: the one named like the section. `advantage_mode` (mean, rloo, max, raw) is "
                "an alias.",
                "agents.N.estimator sets it for one agent.",
            ],
        ),
        (
            "agents.1.max_new_tokens",
            [
                "agents.1.max_new_tokens is magrpo.max_new_tokens of one agent; agents that omit it have the value of "
                "magrpo.max_new_tokens",
                "magrpo.max_new_tokens: a whole number above 0; default 256",
                "Maximum number of tokens per completion.",
            ],
        ),
        (
            "model.tokenizer_kwargs.x",
            [
                "model.tokenizer_kwargs.x is an entry of model.tokenizer_kwargs",
                "model.tokenizer_kwargs: a mapping; default {}",
                "Arguments for `AutoTokenizer.from_pretrained`. `trust_remote_code` is the same setting as in "
                "model_kwargs.",
            ],
        ),
        (
            "reward_processor",
            [
                "reward_processor: Affine transformation of the environment's reward.",
                "reward_processor.enabled [true]: Apply the transformation.",
                "reward_processor.scale_factor [1.0]: Factor applied to the reward.",
                "reward_processor.shift [0.0]: Value added to the reward after scaling.",
            ],
        ),
    ],
)
def test_explain_shows_type_default_and_description(key: str, lines: list[str]) -> None:
    assert explain(key, "magrpo") == lines


def test_explain_lists_the_settings_of_a_section() -> None:
    lines = explain("magrpo", "magrpo")
    keys = [key for key in settings("magrpo") if key.startswith("magrpo.")]
    assert [line.split(" ")[0] for line in lines[1:]] == keys
    assert explain("model.model_kwargs", "grpo")[0] == "model.model_kwargs: Options for loading the weights."
    text = " ".join(explain("agents", "grpo"))
    assert all(f"agents.{key}: {run} of one agent" in text for key, run in agent_keys("grpo").items())
    assert len(explain("agents.resources.learner", "magrpo")) == 7


@pytest.mark.parametrize("key", ["agents.0", "agents.N"])
def test_one_entry_of_agents_is_explained_like_agents(key: str) -> None:
    assert explain(key, "magrpo") == [f"{key} is one entry of agents", *explain("agents", "magrpo")]


@pytest.mark.parametrize("alias", KEY_ALIASES)
def test_explain_resolves_every_alias(alias: str) -> None:
    key = alias.format(algorithm="grpo")
    header, *rest = explain(key, "grpo")
    assert header == f"{key} is an alias of {canonical_key(key, 'grpo')}"
    assert rest == explain(canonical_key(key, "grpo"), "grpo")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("lr", "unknown setting 'lr': did you mean 'magrpo.learning_rate'?"),
        ("external.mod", "unknown setting 'external.mod': did you mean 'external.mode'?"),
        ("agents.0.temprature", "unknown setting 'agents.temprature': did you mean 'agents.temperature'?"),
        ("grpo.num_turns", "unknown setting 'grpo': did you mean 'magrpo'?"),
        ("seed.x", "seed.x: 'seed' is a single value, not a section"),
        ("output.lora", "unknown setting 'output.lora': did you mean 'lora'?"),
        (
            "agents.0.model.name",
            "unknown setting 'agents.model': an agent's settings of 'model' need no section: write 'agents.name' "
            "and the like",
        ),
    ],
)
def test_explain_names_the_nearest_known_key(key: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        explain(key, "magrpo")
    assert str(error.value) == message


def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.plugins(*PLUGINS_OF_CONFIGS)
def test_every_shipped_config_is_valid_by_the_json_schema() -> None:
    schema = validator()
    files = [*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "docs" / "examples").rglob("*.yaml")]
    assert len(files) > 25
    for path in files:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "plugins" in tree:
            continue  # the names of its plug-in are in the schema once it is loaded
        assert [error.message for error in schema.iter_errors(tree)] == [], path


@pytest.mark.parametrize(
    "changed",
    [
        {"magrpo": {"num_turn": 2}},
        {"magrpo": {"num_turns": 0}},
        {"magrpo": {"handoff": "worst"}},
        {"magrpo": {"estimator": "median"}},
        {"agents": [{"temprature": 1.0}]},
        {"sed": 1},
    ],
)
def test_the_json_schema_rejects_misspelt_keys_and_invalid_values(changed: dict) -> None:
    assert not validator().is_valid(changed)


def test_the_json_schema_accepts_aliases_null_and_plugins() -> None:
    given = {"magrpo": {"agent_learning_rate": 1e-5, "estimator": "my_module:mine", "reward_shift": -1}, "lora": None}
    given |= {"model_name": "m", "agents": ["a", {"resources": {"learner": {"gpus": 0.5}}}]}
    assert validator().is_valid(given)
