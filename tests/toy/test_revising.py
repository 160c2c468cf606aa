"""The revising base policy: demonstrations that copy or repair, and a policy that does."""

from __future__ import annotations

import asyncio
import random

import pytest

from marl_ray.config import ExternalConfig
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.external.transition import Transition
from tools.toy.demonstrations import PERFECT, Role
from tools.toy.hard_demonstrations import Attempt
from tools.toy.hard_families import Problem, split_problems
from tools.toy.revising_demonstrations import FIRST_TURN, attempt, second_attempt
from tools.toy.scenes import EDITS, as_task, copy_scenes, solutions
from tools.toy.sets import SETS

SPLITS = split_problems()
PROBLEM = next(p for p in SPLITS["train"] if len(p.family.ways) == 2)
RNG = random.Random(0)


def again(previous: Attempt, failing: bool | None, problem: Problem = PROBLEM) -> list[Attempt]:
    return [second_attempt(problem, previous, PERFECT, RNG, sees_problem=True, failing=failing) for _ in range(200)]


def test_a_function_is_copied_after_a_pass_even_with_errors() -> None:
    for _ in range(30):
        previous = attempt(PROBLEM, "main", FIRST_TURN, RNG)
        assert {revised.text for revised in again(previous, failing=False)} == {previous.text}


def test_an_error_is_repaired_with_the_own_decomposition() -> None:
    previous = attempt(PROBLEM, "aux", PERFECT, RNG, 1)
    broken = Attempt("aux", previous.text.replace("return", "print"), previous.constants, 1)
    for failing in (True, None):
        assert {revised.text for revised in again(broken, failing)} == {previous.text}


def test_after_a_failure_only_an_entry_point_without_errors_changes_its_decomposition() -> None:
    expected: dict[Role, int] = {"aux": 0, "main": 1}
    for role, way in expected.items():
        previous = attempt(PROBLEM, role, PERFECT, RNG, 0)
        assert {revised.text for revised in again(previous, failing=None)} == {previous.text}
        assert {revised.way for revised in again(previous, failing=True)} == {way}
    pair = next(p for p in SPLITS["train"] if len(p.family.ways) == 1)
    previous = attempt(pair, "main", PERFECT, RNG)
    assert {revised.text for revised in again(previous, failing=True, problem=pair)} == {previous.text}


@pytest.mark.parametrize("before", [[], [f"    aux({PROBLEM.argument})"]], ids=["alone", "ignores the helper"])
def test_an_entry_point_that_solves_the_problem_alone_is_copied(before: list[str]) -> None:
    head, last = f"def {PROBLEM.entry_point}({PROBLEM.argument}):", f"    return {PROBLEM.whole()}"
    previous = Attempt("main", "\n".join((head, *before, last)), PROBLEM.constants, None)
    for failing in (True, False, None):
        assert {revised.text for revised in again(previous, failing)} == {previous.text}
    wrong = Attempt("main", "\n".join((head, *before, f"{last} + 1")), PROBLEM.constants, None)
    assert wrong.text not in {revised.text for revised in again(wrong, failing=None)}


def test_scenes_of_the_first_stage_are_copies_of_the_shown_function() -> None:
    scenes = copy_scenes(SETS["toy-revising"], SPLITS["spare"], 40, RNG)
    assert len(scenes) >= 40
    for scene in scenes:
        (copy,) = scene.responses
        assert scene.prompt.startswith(f"Your previous answer:\n{copy}\n\nRevise your")


def test_a_revision_needs_the_problem() -> None:
    with pytest.raises(ValueError, match="does not contain"):
        second_attempt(PROBLEM, attempt(PROBLEM, "aux", PERFECT, RNG), PERFECT, RNG, sees_problem=False, failing=True)


def test_edits_have_the_form_of_an_experts() -> None:
    environment, task = CodeGeneration(2), as_task(PROBLEM)
    joint = environment.attempt(task, ["", ""], last=True)
    transition = Transition(ExternalConfig(mode=EDITS, original_prompt=True), environment)
    next_prompts = transition.next_prompts(task, environment.first_prompts(task), joint, None)  # type: ignore[arg-type]
    for prompt, solution in zip(asyncio.run(next_prompts).prompts, PROBLEM.joint, strict=True):
        assert f"\n\nAn expert suggests:\n{solution}\n\n" in prompt
    assert solutions(PROBLEM, 1)[0].startswith(f"def {PROBLEM.entry_point}(")
