"""`marl-ray explain`: what is said of a setting is what stands at its field."""

from __future__ import annotations

import pytest

from marl_ray.config import from_tree, to_tree
from marl_ray.config.aliases import KEY_ALIASES, canonical_key
from marl_ray.config.descriptions import docstrings, explain
from marl_ray.config.keys import agent_keys, settings
from marl_ray.core.errors import UserError


@pytest.mark.parametrize("algorithm", ["magrpo", "grpo"])
def test_every_setting_has_a_docstring(algorithm: str) -> None:
    for key, setting in settings(algorithm).items():
        text = docstrings(setting.owner).get(setting.place[-1], "")
        assert len(text) > 10, key
        assert text.strip().endswith("."), key


def test_settings_are_the_keys_of_a_saved_config() -> None:
    def keys(tree: dict, where: str = "") -> set[str]:
        found = set()
        for name, value in tree.items():
            key = f"{where}{name}"
            found |= keys(value, f"{key}.") if isinstance(value, dict) and key not in settings("magrpo") else {key}
        return found

    config = from_tree({"model": {"name": "m"}, "dataset": {"name": "toy"}}, "magrpo")
    assert keys(to_tree(config)) == set(settings("magrpo"))


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        ("seed", ["seed: a whole number; default 42", "Every draw of the run follows from it."]),
        (
            "magrpo.discount",
            [
                "magrpo.discount: a number that should not be negative and be at most 1; default 1.0",
                "What a later turn's reward counts in an earlier turn's return.",
            ],
        ),
        (
            "magrpo.advantage_normalization",
            [
                "magrpo.advantage_normalization is an older spelling: magrpo.normalize_advantages is kept",
                "magrpo.normalize_advantages: true or false; default false",
                "Whitening: advantages less their mean in the group, divided by their standard deviation there; "
                "with a critic, among all of an agent's answers in a turn of the batch. `advantage_normalization` is "
                "the same.",
            ],
        ),
        (
            "magrpo.top_p",
            [
                "magrpo.top_p is an older spelling: model.top_p is kept",
                "model.top_p: a number that should be above 0 and be at most 1; default 1.0",
                "Nucleus mass. Below 1 the sampler's distribution is not the learner's; `importance` makes up for it.",
                "agents.N.top_p is one agent's.",
            ],
        ),
        (
            "magrpo.max_steps",
            [
                "magrpo.max_steps: a whole number that should be above 0, or null; default null",
                "End after this many steps, whatever the epochs; null: no limit.",
            ],
        ),
        (
            "external.mode",
            [
                "external.mode: level_feedback, level_passed, passed, plain, expert_edits, or module:Attr of one's "
                "own; default level_feedback",
                "What is told, and who words it.",
            ],
        ),
        (
            "magrpo.estimator",
            [
                "magrpo.estimator: magrpo, grpo, marloo, maremax, mareinforce, remax, difference, reinforce_pp, or "
                "module:Attr of one's own, or null; default null",
                "Advantage estimator; null: the one called like the section. `advantage_mode` mean, rloo, max or raw "
                "is the same.",
                "agents.N.estimator is one agent's.",
            ],
        ),
        (
            "agents.1.max_new_tokens",
            [
                "agents.1.max_new_tokens is one agent's magrpo.max_new_tokens, which holds for agents without it",
                "magrpo.max_new_tokens: a whole number that should be above 0; default 256",
                "Tokens of a completion at most.",
            ],
        ),
        (
            "model.tokenizer_kwargs.x",
            [
                "model.tokenizer_kwargs.x is an entry of model.tokenizer_kwargs",
                "model.tokenizer_kwargs: a mapping; default {}",
                "Passed to `AutoTokenizer.from_pretrained`. `trust_remote_code` here is that of model_kwargs.",
            ],
        ),
        (
            "reward_processor",
            [
                "reward_processor: An affine map of the environment's reward.",
                "reward_processor.enabled [true]: Whether the map is applied.",
                "reward_processor.scale_factor [1.0]: What a reward is multiplied with; not 0.",
                "reward_processor.shift [0.0]: What is added to the reward after scaling; `reward_shift` is the same.",
            ],
        ),
    ],
)
def test_what_is_said(key: str, lines: list[str]) -> None:
    assert explain(key, "magrpo") == lines


def test_a_section_has_a_line_for_each_setting() -> None:
    lines = explain("magrpo", "magrpo")
    keys = [key for key in settings("magrpo") if key.startswith("magrpo.")]
    assert [line.split(" ")[0] for line in lines[1:]] == keys
    assert explain("model.model_kwargs", "grpo")[0] == "model.model_kwargs: How the weights are loaded."
    said = " ".join(explain("agents", "grpo"))
    assert all(f"agents.{key}: one agent's {run}" in said for key, run in agent_keys("grpo").items())
    assert len(explain("agents.resources.learner", "magrpo")) == 7


@pytest.mark.parametrize("key", ["agents.0", "agents.N"])
def test_one_agent_is_explained_like_all(key: str) -> None:
    assert explain(key, "magrpo") == [f"{key} is one entry of agents", *explain("agents", "magrpo")]


@pytest.mark.parametrize("other", KEY_ALIASES)
def test_every_older_spelling_is_explained(other: str) -> None:
    key = other.format(algorithm="grpo")
    first, *rest = explain(key, "grpo")
    assert first == f"{key} is an older spelling: {canonical_key(key, 'grpo')} is kept"
    assert rest == explain(canonical_key(key, "grpo"), "grpo")


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("lr", "unknown setting 'lr': did you mean 'magrpo.learning_rate'?"),
        ("external.mod", "unknown setting 'external.mod': did you mean 'external.mode'?"),
        ("agents.0.temprature", "unknown setting 'agents.temprature': did you mean 'agents.temperature'?"),
        ("grpo.num_turns", "unknown setting 'grpo': did you mean 'magrpo'?"),
        ("seed.x", "seed.x: 'seed' is a single value, not a section"),
    ],
)
def test_an_unknown_key_names_the_nearest(key: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        explain(key, "magrpo")
    assert str(error.value) == says
