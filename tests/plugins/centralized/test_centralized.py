"""A centralised actor: parts of a completion, the team's rewards, and the config of a team that becomes its config."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_ray.config import from_tree
from marl_ray.core.episode import Outcome
from marl_ray.core.errors import UserError
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.plugins.centralized.environment import Centralized
from marl_ray.plugins.centralized.parts import join_parts, split_parts
from marl_ray.plugins.tags.environment import Tagging
from marl_ray.sandbox import Sandbox
from marl_ray.testing import check_environment
from tests.environments.talk import TASK, Said, Talk

plain = st.lists(st.text("ab <>/\n", max_size=8), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(parts=plain)
def test_joined_parts_are_split_again(parts: list[str]) -> None:
    assert split_parts(join_parts(parts), len(parts)) == ([part.strip() for part in parts], len(parts))


@pytest.mark.parametrize(
    ("completion", "parts", "tagged"),
    [
        ("Here: <part_1>a</part_1>\n<part_2>b</part_2> done", ["a", "b"], 2),
        ("<part_2>b</part_2><part_1>a", ["a", "b"], 2),
        ("< PART_1 >a</ part_1 ><part_2>b", ["a", "b"], 2),
        ("<part_1>a<part_2>b</part_2>", ["a", "b"], 2),
        ("<part_1>a</part_1><part_1>again</part_1>", ["a", ""], 1),
        ("a<part_2>b", ["a", "b"], 1),
        ("a", ["a", ""], 0),
        ("</part_1>x<part_9>y", ["", ""], 0),
        ("", ["", ""], 0),
    ],
)
def test_a_part_ends_at_the_next_tag(completion: str, parts: list[str], tagged: int) -> None:
    assert split_parts(completion, 2) == (parts, tagged)


def test_the_prompt_has_the_prompts_of_all_agents_and_the_form() -> None:
    (prompt,) = Centralized(Talk(2)).first_prompts(TASK)
    for number, own in enumerate(Talk(2).first_prompts(TASK), 1):
        assert f"Part {number}, speaker {number - 1}:\n{own}\n" in prompt
    assert prompt.endswith("<part_1>\n...\n</part_1>\n<part_2>\n...\n</part_2>\n")


class Unequal(Talk):
    def outcome(self, attempt: Said, report: Any) -> Outcome:
        first, second = (float(len(text)) for text in attempt.texts)
        return Outcome(first + 10 * second, metrics={"long": 1.0}, rewards=(first, second))


def test_the_policy_earns_the_reward_of_the_team() -> None:
    environment = Centralized(Unequal(2))
    attempt = environment.attempt(TASK, ["<part_1>ab</part_1><part_2>c</part_2>"], last=False)
    outcome = environment.outcome(attempt, None)
    assert (outcome.reward, outcome.rewards, outcome.metrics) == (12.0, (), {"long": 1.0, "tagged_parts": 1.0})
    assert environment.feedback(attempt, outcome, "passed", 0) == ["12 characters"], "each line once"
    assert list(attempt.answers) == [join_parts(["ab", "c"])]


def test_centralised_code_tags_and_talk_conform(sandbox: Sandbox) -> None:
    tasks = load_tasks("bundled:toy", "eval[:1]")
    main = f"def {tasks[0].fields['entry_point']}(x):\n    return aux(x) + 1"
    answers = [join_parts(["def aux(x):\n    return x + 1", main])]
    for helper_reward in ("static", "executed"):
        code = Centralized(CodeGeneration(2, helper_reward=helper_reward))
        check_environment(code, tasks, [answers, [main]], execute=sandbox.run_batch)
    check_environment(Centralized(Tagging(2)), load_tasks("bundled:tags", "eval[:1]"), [[join_parts(["one", "two"])]])
    check_environment(Centralized(Talk(3)), [TASK], [[join_parts(["a", "b", "c"])]])


def config_of(section: dict[str, Any] | None = None, **sections: Any) -> Any:
    tree = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, "environment": "centralized"}
    return from_tree({**tree, "magrpo": section or {}, **sections}, "magrpo")


def test_one_setting_turns_the_config_of_a_team_into_the_baseline() -> None:
    config = config_of({"num_agents": 3, "max_new_tokens": 50})
    assert (config.num_agents, config.agents[0].max_new_tokens) == (1, 150)
    assert (config.centralized.team, config.centralized.environment) == (3, "code_generation")
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    assert isinstance(environment.base, CodeGeneration)
    assert (environment.num_agents, environment.base.num_agents) == (1, 3)


def test_a_stored_config_stays_what_it_is() -> None:
    config = config_of({"max_new_tokens": 50})
    again = from_tree(yaml.safe_load(config.to_yaml()), "magrpo")
    assert again == config


def test_agents_that_differ_in_tokens_add_up() -> None:
    entries = [{"max_new_tokens": 30}, {"max_new_tokens": 70, "policy": 0}]
    config = config_of(agents=entries)
    assert (config.num_agents, config.agents[0].max_new_tokens) == (1, 100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agents": ["m", "other"]}, "trains one policy, and the entries of agents differ"),
        ({"section": {"num_agents": 1}}, "a team of two or more"),
        ({"centralized": {"team": 2}, "section": {"num_agents": 2}}, "set num_agents to 1"),
        ({"centralized": {"environment": "centralized"}}, "set centralized.environment"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    def start() -> None:
        config = config_of(**settings)
        ENVIRONMENTS.get(config.environment).from_config(config)

    with pytest.raises(UserError, match=message):
        start()
