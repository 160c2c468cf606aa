"""Frozen partners: the teams of a joint action, their rewards, and the configs that are rejected."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.config import Config
from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.plugins.frozen_partners.environment import FrozenPartners, outcomes_of
from marl_ray.plugins.tags.environment import Tagging
from marl_ray.sandbox import Sandbox
from marl_ray.testing import check_environment
from tests.environments.talk import TASK, Said, Talk
from tests.factories import make_config


class Bid(Talk):
    """The team earns the product of its numbers, and agent i also its own number."""

    def outcome(self, attempt: Said, report: Any) -> Outcome:
        first, second = map(float, attempt.texts)
        return Outcome(first * second, rewards=(first * second + first, first * second + second))


def partners_config(*agents: Any, **partners: Any) -> Config:
    settings = {"environment": "tags", "stand_in": [1], **partners}
    entries = agents or ("m", "m", {"name": "old", "learning_rate": 0})
    sections = {"environment": "frozen_partners", "partners": settings, "agents": list(entries)}
    return make_config(sections=sections)


def test_each_frozen_agent_reads_the_prompts_of_the_agent_that_it_stands_in_for() -> None:
    environment = FrozenPartners(Talk(2), stand_in=(1, 0), weight=0.5)
    assert environment.num_agents == 4
    first, second = Talk(2).first_prompts(TASK)
    assert environment.first_prompts(TASK) == [first, second, second, first]
    assert environment.roles(TASK) == ["speaker 0", "speaker 1", "speaker 1 (partner 1)", "speaker 0 (partner 2)"]


def test_agents_earn_the_mean_over_their_partners_and_frozen_agents_nothing() -> None:
    environment = FrozenPartners(Bid(2), stand_in=(1, 1, 0), weight=0.25)
    attempt = environment.attempt(TASK, ["2", "3", "5", "7", "11"], last=True)
    outcome = environment.outcome(attempt, ())
    own, with_five, with_seven, with_eleven = 2 * 3, 2 * 5, 2 * 7, 11 * 3
    assert [each.reward for each in outcomes_of(outcome)] == [own, with_five, with_seven, with_eleven]
    first = 0.75 * (own + 2) + 0.25 * ((with_five + 2) + (with_seven + 2)) / 2
    second = 0.75 * (own + 3) + 0.25 * (with_eleven + 3)
    assert outcome.rewards == pytest.approx((first, second, 0.0, 0.0, 0.0))
    assert outcome.reward == own
    assert outcome.metrics["partner_reward"] == pytest.approx((with_five + with_seven + with_eleven) / 3)


def test_an_agent_without_partner_earns_the_reward_of_its_own_team() -> None:
    environment = FrozenPartners(Talk(2), stand_in=(1,), weight=0.5)
    outcome = environment.outcome(environment.attempt(TASK, ["ab", "c", "cdef"], last=True), ())
    assert outcome.rewards == (0.5 * 3 + 0.5 * 6, 3.0, 0.0)


def test_later_prompts_of_an_agent_are_about_its_own_team() -> None:
    environment = FrozenPartners(Talk(2), stand_in=(0,), weight=0.5)
    attempt = environment.attempt(TASK, ["a", "b", "longer"], last=False)
    outcome = environment.outcome(attempt, ())
    assert list(attempt.answers) == ["a", "b", "longer"]
    feedback = [environment.feedback(attempt, outcome, "passed", agent) for agent in range(3)]
    assert feedback == [["2 characters"], ["2 characters"], ["7 characters"]]


def test_frozen_partners_of_code_and_tags_conform(sandbox: Sandbox) -> None:
    aux, main = "def aux(x):\n    return x + 1", "def {}(x):\n    return aux(x) + 1"
    tasks = load_tasks("bundled:toy", "eval[:1]")
    main = main.format(tasks[0].fields["entry_point"])
    for helper_reward in ("static", "executed"):
        code = FrozenPartners(CodeGeneration(2, helper_reward=helper_reward), (1, 0), 0.5)
        answers = [aux, main, main.replace("+ 1", "+ 2"), aux]
        check_environment(code, tasks, [answers, answers[::-1]], execute=sandbox.run_batch)
    tags = FrozenPartners(Tagging(2), (1,), 0.5)
    check_environment(tags, load_tasks("bundled:tags", "eval[:1]"), [["one", "two", "three"]])


def test_a_failed_execution_of_any_team_is_a_failure() -> None:
    class Failing(Talk):
        def outcome(self, attempt: Said, report: Any) -> Outcome:
            return Outcome(0.0, failure="lost" if "x" in attempt.texts else "")

    environment = FrozenPartners(Failing(2), (1,), 0.5)
    assert environment.outcome(environment.attempt(TASK, ["a", "b", "x"], last=True), ()).failure == "lost"


def test_a_config_makes_the_environment_of_the_team() -> None:
    environment = ENVIRONMENTS.get("frozen_partners").from_config(partners_config(weight=0.3))
    assert isinstance(environment.base, Tagging)
    assert (environment.base.num_agents, environment.num_agents, environment.weight) == (2, 3, 0.3)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: partners_config(environment=None), "set partners.environment"),
        (lambda: partners_config(environment="frozen_partners"), "set partners.environment"),
        (lambda: partners_config(stand_in=[]), "set partners.stand_in"),
        (lambda: partners_config(stand_in=[2]), "name the agents that these stand in for"),
        (lambda: partners_config(stand_in=[0, 0]), "list at least two agents"),
        (lambda: partners_config("m", "m", "m"), "set agents.2.learning_rate to 0"),
    ],
)
def test_a_wrong_setting_is_named(config: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ENVIRONMENTS.get("frozen_partners").from_config(config())


def test_agents_that_read_earlier_answers_cannot_have_frozen_partners() -> None:
    class Ordered(Talk):
        def order(self, task: Task) -> list[list[int]]:
            return [[0], [1]]

    with pytest.raises(UserError, match="answer at the same time"):
        FrozenPartners(Ordered(2), (1,), 0.5).check_task(TASK)
