"""Reward levels of code completion."""

from __future__ import annotations

import pytest

from marl_ray.config import from_tree
from marl_ray.core.errors import UserError
from marl_ray.environments import ENVIRONMENTS
from marl_ray.plugins.code_completion.environment import CodeCompletion
from marl_ray.sandbox import ExecutionReport, SyntaxDiagnosis
from tests.plugins.code_completion.helpers import POP, PUSH, REPLACE, RIGHT, ROOT, TASK, play, report

BROKEN = "def pop(self):\n    return self.items.pop("


def test_a_correct_solution_earns_the_maximum() -> None:
    _, outcome = play(*RIGHT)
    assert outcome.reward == CodeCompletion.max_reward == 6.0
    assert outcome.levels == {"methods": 2.0, "tests": 4.0, "overlap": 0.0}
    assert outcome.metrics == {
        "methods_valid": 1.0,
        "overlap": 0.0,
        "syntax_ok": 1.0,
        "tests_passed_rate": 1.0,
        "all_passed": 1.0,
    }
    assert outcome.counts == {"sandbox/untrusted": 1, "sandbox/timeouts": 0}
    assert play(f"{PUSH}\n{POP}\n{REPLACE}\n{ROOT}")[1].reward == 6.0
    assert play(POP + "\n" + ROOT, PUSH, REPLACE)[1].reward == 6.0


@pytest.mark.parametrize(
    ("first", "second", "methods", "overlap"),
    [
        (f"{POP}\n\n{ROOT}", PUSH, 1.5, 0.0),  # one is missing
        (f"{BROKEN}\n\n{ROOT}", RIGHT[1], 1.5, 0.0),  # one does not parse
        ("", RIGHT[1], 1.0, 0.0),
        ("", "", 0.0, 0.0),
        (ROOT, f"{RIGHT[1]}\n\n{POP}", 1.5, 0.0),  # only the wrong agent wrote it: missing, no overlap
        (RIGHT[0], f"{RIGHT[1]}\n\n{POP}", 2.0, -0.25),
        (f"{RIGHT[0]}\n{RIGHT[1]}", f"{RIGHT[0]}\n{RIGHT[1]}", 2.0, -1.0),
        (RIGHT[1], RIGHT[0], 0.0, 0.0),  # swapped
        (f"{RIGHT[0]}\n\ndef push(self, item):\n    pass", RIGHT[1], 2.0, 0.0),  # a stub
    ],
)
def test_methods_and_overlap(first: str, second: str, methods: float, overlap: float) -> None:
    _, outcome = play(first, second)
    assert (outcome.levels["methods"], outcome.levels["overlap"]) == (methods, overlap)
    assert outcome.reward == pytest.approx(sum(outcome.levels.values()))


def test_the_share_of_passed_tests_counts() -> None:
    _, outcome = play(*RIGHT, found=report(failing=["TestPop.test_pop"]))
    assert (outcome.levels["tests"], outcome.metrics["all_passed"]) == (3.0, 0.0)


def test_a_program_that_does_not_compile_earns_nothing() -> None:
    broken = report(syntax=SyntaxDiagnosis("duplicate argument 'x' in function definition", 12, 5))
    _, outcome = play(RIGHT[0], f"{RIGHT[1]}\n{POP}", found=broken)
    assert (outcome.reward, set(outcome.levels.values())) == (0.0, {0.0})
    assert (outcome.metrics["methods_valid"], outcome.metrics["syntax_ok"]) == (1.0, 0.0)


def test_count_untrusted_decides_about_forgeable_passes() -> None:
    assert play(*RIGHT, count_untrusted=False)[1].levels["tests"] == 0.0


def test_an_infrastructure_error_gives_no_verdict() -> None:
    found = ExecutionReport((), None, "", 0.0, 0.0, "none", True, infra_error="no guest")
    assert play(*RIGHT, found=found)[1].failure == "no guest"


def test_visible_tests_run_first() -> None:
    environment = CodeCompletion(2, sandbox_slice=-2)
    assert environment.attempt(TASK, RIGHT, last=False).program.visible == -2
    assert environment.attempt(TASK, RIGHT, last=True).program.visible is None
    everything = CodeCompletion(2, sandbox_slice="all")
    assert everything.attempt(TASK, RIGHT, last=False).program.visible is None


def test_from_config() -> None:
    tree = {
        "model": {"name": "m"},
        "dataset": {"name": "FudanSELab/ClassEval"},
        "magrpo": {"num_agents": 3},
        "code_completion": {"strategy": "round_robin"},
    }
    config = from_tree(tree, "magrpo")
    assert (config.dataset.type, config.environment) == ("classeval", "code_completion")
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    assert environment.roles(TASK) == ["agent_1", "agent_2", "agent_3"]
    assert "write the methods `push` and `root`." in environment.first_prompts(TASK)[0]
    with pytest.raises(UserError, match=r"code_completion\.strategy should be"):
        from_tree({**tree, "code_completion": {"strategy": "by_hand"}}, "magrpo")
