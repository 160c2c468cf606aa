"""Levels of helper use, paid by executed probes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from marl_ray.config import from_tree
from marl_ray.core.episode import Outcome, Task
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.code_generation import MAIN_DEFINED, SYNTAX_OK, TESTS, CodeGeneration
from marl_ray.rollout.scorer import Scorer
from marl_ray.sandbox import ExecutionReport, Sandbox, StdioCase, TestResult, stdio_tests
from tests.environments.code_generation import helper_fakes
from tests.rollout.helpers import DirectExecutor

TASK = Task("t", "def f(x, y):\n    '''The larger one, plus 2.'''\n", {"entry_point": "f", "tests": helper_fakes.TESTS})


def assess(
    sandbox: Sandbox, responses: list[str], helper_reward: str, task: Task = TASK, passed: float = 1.0
) -> Outcome:
    """Return the outcome in a run whose other settings are defaults. `passed` is the share of tests that pass."""
    tree = {"model": {"name": "m"}, "dataset": {"name": "humaneval"}, "magrpo": {"num_agents": len(responses)}}
    config = from_tree(tree | {"code_generation": {"helper_reward": helper_reward}}, "magrpo")
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    scorer = Scorer(config, environment, DirectExecutor(sandbox))
    (outcome,) = asyncio.run(scorer.outcomes([environment.attempt(task, responses, last=True)]))
    assert outcome.reward == pytest.approx(sum(outcome.levels.values()))
    assert outcome.metrics["tests_passed_rate"] == passed
    return outcome


@pytest.mark.parametrize("name", helper_fakes.NEVER_NEEDED)
def test_a_helper_that_is_never_needed_earns_nothing(sandbox: Sandbox, name: str) -> None:
    found = assess(sandbox, list(helper_fakes.NEVER_NEEDED[name]), "executed")
    assert (found.levels["aux_called"], found.levels["not_thin"]) == (0.0, 0.0)
    assert found.metrics["helper_needed"] == 0.0


@pytest.mark.parametrize("name", helper_fakes.DISGUISED_WRAPPERS)
def test_a_disguised_thin_wrapper_earns_the_call_only(sandbox: Sandbox, name: str) -> None:
    found = assess(sandbox, list(helper_fakes.DISGUISED_WRAPPERS[name]), "executed")
    assert (found.levels["aux_called"], found.levels["not_thin"]) == (0.5, 0.0)
    assert found.metrics["helper_suffices"] == 1.0


def test_a_constant_of_arguments_that_cannot_be_compared_is_not_needed(sandbox: Sandbox) -> None:
    """Compare as arrays do, whose `==` is no truth value."""
    main = helper_fakes.body(
        *("class Array:", "    def __init__(self, value):", "        self.value = value"),
        *("    def __eq__(self, other):", "        raise ValueError('ambiguous')"),
        *("def solved():", "    return max(x, y) + 2"),
        "return [None, solved][aux(Array(x)) - 41]()",
    )
    found = assess(sandbox, ["def aux(*args):\n    return 42", main], "executed")
    assert (found.levels["aux_called"], found.levels["not_thin"]) == (0.0, 0.0)


@pytest.mark.parametrize("name", helper_fakes.HONEST)
def test_honest_teams_earn_as_much_as_by_their_text(sandbox: Sandbox, name: str) -> None:
    executed, static = (assess(sandbox, list(helper_fakes.HONEST[name]), rule) for rule in ("executed", "static"))
    assert executed.levels == {**static.levels, "unsolved": 0.0}
    assert (executed.metrics["helper_needed"], executed.metrics["helper_suffices"]) == (1.0, 0.0)


def test_the_static_rule_pays_fakes() -> None:
    environment = CodeGeneration(2)
    fakes = {**helper_fakes.NEVER_NEEDED, **helper_fakes.DISGUISED_WRAPPERS}
    uses = [environment.attempt(TASK, both, last=True).use for both in fakes.values()]
    assert sum(bool(use.called) and not use.thin_wrapper and not use.misused for use in uses) == 47
    assert len(uses) == 48


ONE_TEST = replace(TASK, fields={**TASK.fields, "tests": helper_fakes.TESTS[:1]})


@pytest.mark.parametrize("name", ["sum", "key", "map", "pair", "recursion of main", "text"])
def test_one_test_shows_that_an_honest_helper_is_needed(sandbox: Sandbox, name: str) -> None:
    found = assess(sandbox, list(helper_fakes.HONEST[name]), "executed", ONE_TEST)
    assert found.reward == pytest.approx(4.0)


@pytest.mark.parametrize("name", ["constant", "constant as an index", "constant module"])
def test_one_test_shows_that_a_constant_helper_is_not_needed(sandbox: Sandbox, name: str) -> None:
    assert assess(sandbox, list(helper_fakes.NEVER_NEEDED[name]), "executed", ONE_TEST).reward == pytest.approx(2.5)


def test_helper_use_is_paid_times_the_share_of_passed_tests(sandbox: Sandbox) -> None:
    """Check a team whose program fails one of five tests, and the same helper use by the text."""
    helper, main = (
        "def aux(x, y):\n    return x + 1 if x >= 0 else 9",
        "def f(x, y):\n    return max(aux(x, y) - 1, y) + 2",
    )
    static, executed = (assess(sandbox, [helper, main], rule, passed=0.8) for rule in ("static", "executed"))
    assert static.levels["aux_called"] + static.levels["not_thin"] == 1.5
    assert executed.levels["aux_called"] == pytest.approx(0.4)
    assert executed.levels["not_thin"] == pytest.approx(0.8)
    assert executed.reward == pytest.approx(1.5 + 0.24 * (0.8 + 1.2))


def test_a_wrong_program_never_earns_more_than_a_right_one_without_a_helper() -> None:
    """Check a program that fails one of a thousand tests, with a helper that earns everything."""
    environment = CodeGeneration(2, helper_reward="executed")
    tests = tuple(f"assert f({n}, 0) == {n + 2}" for n in range(1000))
    task = replace(TASK, fields={**TASK.fields, "tests": tests})
    attempt = environment.attempt(task, list(helper_fakes.HONEST["sum"]), last=True)
    failed = TestResult("fail")
    report = ExecutionReport((failed, *[TestResult("pass")] * 999), None, "", 0.0, 0.0, "bwrap", True)
    probes = [replace(report, tests=(failed,) * 1000)] * len(environment.probes(attempt, report))
    wrong = environment.probed_outcome(attempt, report, environment.outcome(attempt, report), probes)
    assert wrong.levels["not_thin"] == pytest.approx(0.999)
    assert wrong.reward == pytest.approx(1.5 + 0.24 * 2.5 * 0.999)
    assert 2.09 < wrong.reward < MAIN_DEFINED + SYNTAX_OK + TESTS


def test_each_of_several_helpers_is_paid_by_itself(sandbox: Sandbox) -> None:
    first, second = ("def aux_1(x, y):\n    return max(x, y)", "def aux_2(x):\n    return x")
    found = assess(sandbox, [first, second, "def f(x, y):\n    return aux_1(aux_2(x), y) + 2"], "executed")
    assert (found.levels["aux_called"], found.levels["not_thin"]) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("main", "levels"),
    [
        ("n = int(input())\n    print(aux(n) + 1)", (0.5, 1.0)),
        ("n = int(input())\n    print(aux(n) + 1 - 1 if n < 0 else n * 2 + 1)", (0.0, 0.0)),
        ("n = int(input())\n    print((n * 2 + 1) * (aux(0) + 1))", (0.0, 0.0)),
        ("n = int(input())\n    for _ in range(1):\n        print(aux(n) + 1)", (0.5, 1.0)),
    ],
)
def test_scripts(sandbox: Sandbox, main: str, levels: tuple[float, float]) -> None:
    tests = stdio_tests([StdioCase("1\n", "3\n"), StdioCase("5\n", "11\n")])
    task = Task("s", "Twice n, plus 1.", {"entry_point": "main", "tests": tests, "script": True})
    found = assess(sandbox, ["def aux(n):\n    return n * 2", f"def main():\n    {main}"], "executed", task)
    assert (found.levels["aux_called"], found.levels["not_thin"]) == levels


def test_endless_probes_end_soon(sandbox: Sandbox) -> None:
    """Bound the CPU time of probes, whose stand-ins may make a loop endless."""
    environment = CodeGeneration(2)
    attempt = environment.attempt(TASK, list(helper_fakes.HONEST["loop with a condition"]), last=True)
    probes = environment.probes(attempt, sandbox.run(attempt.program))
    assert {(p.limits.test_cpu_s, p.limits.max_timeouts) for p in probes if p.limits} == {(1.0, 1)}


def test_a_lost_probe_gives_no_verdict(sandbox: Sandbox) -> None:
    environment = CodeGeneration(2, helper_reward="executed")
    attempt = environment.attempt(TASK, list(helper_fakes.HONEST["sum"]), last=True)
    report = sandbox.run(attempt.program)
    lost = replace(report, infra_error="no worker")
    found = environment.probed_outcome(attempt, report, environment.outcome(attempt, report), [lost] * 8)
    assert found.failure == "no worker"
