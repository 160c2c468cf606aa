"""Levels of helper use, paid by executed probes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from marl_ray.config import from_tree
from marl_ray.core.episode import Outcome, Task
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.external.transition import Transition
from marl_ray.rollout.episode_runner import EpisodeRunner
from marl_ray.sandbox import Sandbox, StdioCase, stdio_tests
from tests.environments.code_generation import helper_fakes
from tests.rollout.helpers import DirectExecutor

TASK = Task("t", "def f(x, y):\n    '''The larger one, plus 2.'''\n", {"entry_point": "f", "tests": helper_fakes.TESTS})


def assess(sandbox: Sandbox, responses: list[str], helper_reward: str, task: Task = TASK) -> Outcome:
    """Return the outcome in a run whose other settings are defaults."""
    tree = {"model": {"name": "m"}, "dataset": {"name": "humaneval"}, "magrpo": {"num_agents": len(responses)}}
    config = from_tree(tree | {"code_generation": {"helper_reward": helper_reward}}, "magrpo")
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    runner = EpisodeRunner(config, environment, Transition(config.external, environment), (), DirectExecutor(sandbox))
    (outcome,) = asyncio.run(runner.outcomes([environment.attempt(task, responses, last=True)]))
    assert outcome.reward == pytest.approx(sum(outcome.levels.values()))
    assert outcome.metrics["all_passed"] == 1.0
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


@pytest.mark.parametrize("name", helper_fakes.HONEST)
def test_honest_teams_earn_as_much_as_by_their_text(sandbox: Sandbox, name: str) -> None:
    executed, static = (assess(sandbox, list(helper_fakes.HONEST[name]), rule) for rule in ("executed", "static"))
    assert executed.levels == static.levels
    assert (executed.metrics["helper_needed"], executed.metrics["helper_suffices"]) == (1.0, 0.0)


def test_the_static_rule_pays_fakes() -> None:
    environment = CodeGeneration(2)
    fakes = {**helper_fakes.NEVER_NEEDED, **helper_fakes.DISGUISED_WRAPPERS}
    uses = [environment.attempt(TASK, both, last=True).use for both in fakes.values()]
    assert sum(bool(use.called) and not use.thin_wrapper and not use.misused for use in uses) == 39
    assert len(uses) == 40


def test_each_of_several_helpers_is_paid_by_itself(sandbox: Sandbox) -> None:
    first, second = ("def aux_1(x, y):\n    return max(x, y)", "def aux_2(x):\n    return x")
    found = assess(sandbox, [first, second, "def f(x, y):\n    return aux_1(aux_2(x), y) + 2"], "executed")
    assert (found.levels["aux_called"], found.levels["not_thin"]) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("main", "levels"),
    [
        ("n = int(input())\n    print(aux(n) + 1)", (0.5, 1.0)),
        ("n = int(input())\n    print(aux(n) + 1 - 1 if n < 0 else n * 2 + 1)", (0.0, 0.0)),
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
    found = environment.probed_outcome(attempt, report, environment.outcome(attempt, report), [lost] * 7)
    assert found.failure == "no worker"
