"""The setting `agents`: settings of single agents, with defaults from the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from marl_ray.config import Config, from_tree, load, parse_overrides, to_tree, to_yaml
from marl_ray.core.errors import UserError
from marl_ray.core.ids import PolicyId
from tests.config.helpers import config_tree


def values(config: Config, field: str) -> list[Any]:
    return [getattr(agent, field) for agent in config.agents]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return the saved config of a run in which agent 1 sets its own learning rate."""
    agents = ["a", {"learning_rate": 1e-4, "resources": {"learner": {"gpus": 0.5}}}, {}]
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(from_tree(config_tree(agents, magrpo={"learning_rate": 3e-5}), "magrpo")))
    return path


def test_at_least_one_agent_must_have_a_learning_rate() -> None:
    assert values(from_tree(config_tree([{"learning_rate": 0}, {}]), "magrpo"), "learning_rate") == [0, 2e-5]
    with pytest.raises(UserError, match=r"^magrpo.learning_rate is 0 for every agent"):
        from_tree(config_tree([{"learning_rate": 0}] * 2), "magrpo")


def test_an_agent_inherits_omitted_settings_from_the_run() -> None:
    agents = [
        "a",
        {
            "name": "b",
            "learning_rate": "1e-4",
            "max_new_tokens": 64,
            "temperature": 0.5,
            "top_p": 0.9,
            "dtype": "float16",
            "estimator": "RLOO",
            "resources": {"generator": {"replicas": 3}, "learner": {"gpus": 0.5}},
        },
        {},
    ]
    config = from_tree(
        config_tree(agents, magrpo={"learning_rate": 3e-5, "temperature": 0.7}, resources={"generator": {"cpus": 2}}),
        "magrpo",
    )
    assert config.num_agents == 3
    assert values(config, "name") == ["a", "b", "m"]
    assert values(config, "learning_rate") == [3e-5, 1e-4, 3e-5]
    assert values(config, "max_new_tokens") == [256, 64, 256]
    assert values(config, "temperature") == [0.7, 0.5, 0.7]
    assert values(config, "top_p") == [1.0, 0.9, 1.0]
    assert values(config, "dtype") == ["auto", "float16", "auto"]
    assert values(config, "estimator") == ["magrpo", "marloo", "magrpo"]
    assert [(a.generator.cpus, a.generator.replicas) for a in config.agents] == [(2, 1), (2, 3), (2, 1)]
    assert [a.learner.gpus for a in config.agents] == [None, 0.5, None]


def test_null_inherits_from_the_run_unless_null_is_a_value_of_the_setting() -> None:
    agents = [{"learning_rate": None, "resources": {"learner": {"gpus": None}}}, {}]
    config = from_tree(config_tree(agents, resources={"learner": {"gpus": 1}}), "magrpo")
    assert values(config, "learning_rate") == [2e-5, 2e-5]
    assert [a.learner.gpus for a in config.agents] == [None, 1.0]
    assert from_tree(to_tree(config), "magrpo") == config


def test_a_saved_agent_contains_only_its_own_settings(saved: Path) -> None:
    kept = yaml.safe_load(saved.read_text())
    assert kept["agents"] == ["a", {"learning_rate": 1e-4, "resources": {"learner": {"gpus": 0.5}}}, {}]
    assert (kept["model"]["name"], kept["magrpo"]["learning_rate"]) == ("m", 3e-5)
    assert to_tree(from_tree(config_tree([{}, {"temperature": 0.8}]), "magrpo"))["agents"] == [{}, {"temperature": 0.8}]
    assert to_tree(from_tree(config_tree([{}, {"learning_rate": None}]), "magrpo"))["agents"] is None


def test_a_resumed_run_keeps_settings_of_an_agent_that_equal_the_runs(tmp_path: Path) -> None:
    agents = ["m", {"learning_rate": 1e-4}, {"learning_rate": 5e-5}, {"resources": {"learner": {"gpus": None}}}]
    given = config_tree(agents, magrpo={"learning_rate": 1e-4})
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(from_tree(given, "magrpo")))
    overrides = {"magrpo.learning_rate": 9e-4, "model.name": "other", "resources.learner.gpus": 1}
    fresh, resumed = from_tree(given, "magrpo", overrides), load(path, "magrpo", overrides)
    assert resumed == fresh
    assert values(resumed, "learning_rate") == [9e-4, 1e-4, 5e-5, 9e-4]
    assert values(resumed, "name") == ["m", "other", "other", "other"]
    assert [agent.learner.gpus for agent in resumed.agents] == [1.0, 1.0, 1.0, None]


@pytest.mark.parametrize(
    ("overrides", "names", "rates"),
    [
        (["magrpo.learning_rate=1e-6"], ["a", "m", "m"], [1e-6, 1e-4, 1e-6]),
        (["agents.0.learning_rate=1e-6"], ["a", "m", "m"], [1e-6, 1e-4, 3e-5]),
        (["agents.1.learning_rate=null"], ["a", "m", "m"], [3e-5, 3e-5, 3e-5]),
        (["model_name=X"], ["X", "X", "X"], [3e-5, 1e-4, 3e-5]),
        (["model_name=X", "agents.2.name=y"], ["X", "X", "y"], [3e-5, 1e-4, 3e-5]),
        (["agents.2.name=y", "model_name=X"], ["X", "X", "y"], [3e-5, 1e-4, 3e-5]),
        (["model.name=X"], ["a", "X", "X"], [3e-5, 1e-4, 3e-5]),
        (["agents.1=b"], ["a", "b", "m"], [3e-5, 3e-5, 3e-5]),
        (["agents.1={name: b, learning_rate: 1e-3}"], ["a", "b", "m"], [3e-5, 1e-3, 3e-5]),
        (["agents=[x, {learning_rate: 1e-3}, {}]"], ["x", "m", "m"], [3e-5, 1e-3, 3e-5]),
        (["agents.1.learning_rate=1e-3", "agents=x,y", "magrpo.num_agents=2"], ["x", "y"], [3e-5, 1e-3]),
        (["agents=null", "agents.1.learning_rate=1e-3"], ["m", "m", "m"], [3e-5, 1e-3, 3e-5]),
        (["agents=null", "agents.1.top_p=1", "magrpo.num_agents=null"], ["m", "m"], [3e-5, 3e-5]),
    ],
)
def test_overrides(saved: Path, overrides: list[str], names: list[str], rates: list[float]) -> None:
    config = load(saved, "magrpo", parse_overrides(overrides))
    assert (values(config, "name"), values(config, "learning_rate")) == (names, rates)


def test_an_override_of_one_agent_works_without_a_list_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(config_tree(magrpo={"num_agents": 3})))
    config = load(path, "magrpo", parse_overrides(["agents.2.resources={generator: {replicas: 2}}"]))
    assert [agent.generator.replicas for agent in config.agents] == [1, 1, 2]
    with pytest.raises(UserError, match=r"^agents\.3\.top_p: the config has 3 agents, numbered from 0$"):
        load(path, "magrpo", {"agents.3.top_p": 1})
    with pytest.raises(UserError, match=r"^agents\.x: the config has 3 agents, numbered from 0$"):
        load(path, "magrpo", {"agents.x": "b"})


@pytest.mark.parametrize(
    ("agents", "sections", "says"),
    [
        ([{"temprature": 1}, {}], {}, "unknown setting 'agents.0.temprature': did you mean 'agents.0.temperature'?"),
        ([{}, {"lr": 1}], {}, "unknown setting 'agents.1.lr': did you mean 'agents.1.learning_rate'?"),
        ([{}, {"top_k": 1}], {}, "unknown setting 'agents.1.top_k': did you mean 'model.top_k'?"),
        ([{}, {"zzz": 1}], {}, "unknown setting 'agents.1.zzz': known here: name, temperature, top_p, system_prompt"),
        ([{"resources": {"learner": {"gpu": 1}}}], {}, "did you mean 'agents.0.resources.learner.gpus'?"),
        ([{"resources": 2}], {}, "'agents.0.resources' should be a section with settings, got 2"),
        ([{"name": {"a": 1}}], {}, "agents.0.name should be text, got {'a': 1}"),
        ([{"learning_rate": "fast"}], {}, "agents.0.learning_rate should be a number of at least 0, got 'fast'"),
        ([{}, {"temperature": 0}], {}, "agents.1.temperature should be at least 0.01, got 0"),
        ([{}, {"top_p": 1.5}], {}, "agents.1.top_p should be at most 1, got 1.5"),
        ([{}, {"max_new_tokens": 9999}], {}, "no room for a prompt beside agents.1.max_new_tokens 9999: raise"),
        (
            [{}, {"max_new_tokens": 9999}],
            {"magrpo": {"max_new_tokens": 9999}},
            "beside magrpo.max_new_tokens 9999:",
        ),
        (
            [{"max_new_tokens": 9999}, {}],
            {"magrpo": {"max_new_tokens": 9999}},
            "beside agents.0.max_new_tokens 9999:",
        ),
        ([{}, {}], {"magrpo": {"max_new_tokens": 9999}}, "no room for a prompt beside magrpo.max_new_tokens 9999:"),
        ([{}, {"estimator": "median"}], {}, "agents.1.estimator: unknown estimator 'median': known: magrpo"),
        (
            [{}, {"estimator": "marloo"}],
            {"magrpo": {"normalize_advantages": True}},
            "makes marloo the same as magrpo (each is an affine map of the returns): set it to false, or use "
            "agents.1.estimator magrpo",
        ),
        (
            [{}, {"estimator": "marloo"}],
            {"magrpo": {"num_generations": 1, "estimator": "mareinforce"}},
            "num_generations is 1, but marloo compares the completions of a group: set it to 2 or more, or "
            "agents.1.estimator to mareinforce",
        ),
        (
            [{}, {"resources": {"generator": {"gpus": 2}}}],
            {},
            "agents.1.resources.generator.gpus is 2.0 but resources.generator.tensor_parallel is 1: make them equal",
        ),
        (
            [{"resources": {"generator": {"tensor_parallel": 2}}}],
            {"resources": {"generator": {"gpus": 0}}},
            "agents.0.resources.generator.tensor_parallel above 1 needs GPUs: set resources.generator.gpus to the same",
        ),
        (
            [{"resources": {"learner": {"gpus": 2}}}],
            {},
            "agents.0.resources.learner.gpus is 2.0, and a rank of a learner uses one GPU at most: set it to 1, and "
            "resources.learner.ranks to the number of GPUs",
        ),
        (
            [{"resources": {"learner": {"gpus": 0.5, "ranks": 2}}}],
            {},
            "agents.0.resources.learner.gpus is 0.5 for each of 2 ranks, and ranks do not share a GPU: set it to 1, or "
            "agents.0.resources.learner.ranks to 1",
        ),
        (
            [{}, {"resources": {"learner": {"cpu_offload": True}}}],
            {},
            "agents.1.resources.learner.cpu_offload is for weights that ranks shard, and resources.learner.ranks "
            "is 1: set it to 2 or more",
        ),
        (
            [{}, {"resources": {"learner": {"ranks": 2}}}],
            {"magrpo": {"critic": "iac", "handoff": "all"}},
            "agents.1.resources.learner.ranks is 2, and magrpo.critic iac has one rank: set it to 1, or magrpo.critic "
            "to none",
        ),
        (
            [{}, {"resources": {"learner": {"ranks": 2}}}],
            {"magrpo": {"optimizer": "adamw_8bit"}},
            "agents.1.resources.learner.ranks is 2: set it to 1, or the optimizer to adamw",
        ),
        (
            ["m", "m"],
            {"lora": {"rank": 2, "share_base": True}, "resources": {"learner": {"ranks": 2}}},
            "lora.share_base is for learners in one process, and resources.learner.ranks is 2: leave one of them out",
        ),
        ([{"kl_coef": 0.1}], {}, "'agents.0.kl_coef': the KL term to the reference policy is set by reference_kl_coef"),
        ([{}, {}, {}], {"magrpo": {"num_agents": 2}}, "agents names 3 models but magrpo.num_agents is 2"),
        (3.5, {}, "agents should be a list like [a, b], of names or of mappings, or null, got 3.5"),
        ([1.5, "b"], {}, "agents.0.name should be text, got 1.5"),
    ],
)
def test_an_error_names_the_agent(agents: Any, sections: dict, says: str) -> None:
    with pytest.raises(UserError) as error:
        from_tree(config_tree(agents, **sections), "magrpo")
    assert says in str(error.value)


def test_grpo_accepts_an_entry_for_its_one_agent() -> None:
    config = from_tree(config_tree([{"top_p": 0.5}], grpo={"learning_rate": 1e-3}), "grpo")
    assert (values(config, "top_p"), values(config, "learning_rate"), values(config, "estimator")) == (
        [0.5],
        [1e-3],
        ["grpo"],
    )


def test_agents_can_share_a_policy() -> None:
    agents = [{"name": "a", "learning_rate": 1e-4, "policy": 0}, "b", {"policy": 0, "max_new_tokens": 64}]
    config = from_tree(config_tree(agents), "magrpo")
    assert config.policies == (PolicyId((0, 2)), PolicyId((1,)))
    assert list(map(str, config.policies)) == ["policy 0", "agent 1"]
    assert [config.policy_of(agent).key for agent in range(3)] == ["policy_0", "agent_1", "policy_0"]
    assert values(config, "name") == ["a", "b", "a"]
    assert values(config, "learning_rate") == [1e-4, 2e-5, 1e-4]
    assert values(config, "max_new_tokens") == [256, 256, 64]
    assert from_tree(to_tree(config), "magrpo") == config
    changed = from_tree(to_tree(config), "magrpo", {"agents.0.learning_rate": 1e-3})
    assert values(changed, "learning_rate") == [1e-3, 2e-5, 1e-3], (
        "an agent inherits from the first agent of its policy"
    )


def test_all_agents_can_share_one_policy_and_single_agents_can_opt_out() -> None:
    assert from_tree(config_tree(), "magrpo").policies == (PolicyId((0,)), PolicyId((1,)))
    all_agents = from_tree(config_tree(magrpo={"num_agents": 3, "policy": 0}), "magrpo")
    assert all_agents.policies == (PolicyId((0, 1, 2)),)
    assert from_tree(config_tree(), "magrpo", {"agents.1.policy": 0}).policies == (PolicyId((0, 1)),)
    own = from_tree(config_tree([{}, {}, {"policy": None}], magrpo={"policy": 0}), "magrpo")
    assert own.policies == (PolicyId((0, 1)), PolicyId((2,)))
    assert from_tree(to_tree(own), "magrpo") == own


@pytest.mark.parametrize(
    ("agents", "says"),
    [
        ([{"policy": 1}, {}], "policy of agent 0 is 1: it should be the number of an earlier agent, or null"),
        (
            [{}, {"policy": 0}, {"policy": 1}],
            "policy of agent 2 is 1, and agent 1 shares the policy of agent 0: set it",
        ),
        ([{}, {"policy": -1}], "agents.1.policy should be at least 0, got -1"),
        (["a", {"name": "b", "policy": 0}], "agents.1.name differs from that of agent 0, whose policy it shares"),
        ([{}, {"temperature": 0.5, "policy": 0}], "agents.1.temperature differs from that of agent 0"),
        (
            [{}, {"resources": {"learner": {"gpus": 0.5}}, "policy": 0}],
            "agents.1.resources.learner.gpus differs from that of agent 0, whose policy it shares: leave it out",
        ),
        ([{"reference_kl_coef": 0.1}, {"max_new_tokens": 9, "policy": 0}], "agents.1.max_new_tokens differs from"),
    ],
)
def test_agents_with_different_settings_cannot_share_a_policy(agents: list[Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        from_tree(config_tree(agents), "magrpo")
    assert says in str(caught.value)
