"""The hard toy set: held-out families, required agreement, and a base policy without preference."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
import torch
from transformers import AutoTokenizer, Qwen2ForCausalLM

from marl_ray.core.episode import Task
from marl_ray.data.loading import load_tasks
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.sandbox import Program, Sandbox
from marl_ray.toy import HARD_BASE_PATH, HARD_TASKS_PATH
from tools.toy.demonstrations import PERFECT
from tools.toy.hard_demonstrations import FIRST_TURN, attempt, second_attempt
from tools.toy.hard_families import Family, Problem, all_families, held_out_problems, split_problems
from tools.toy.make_base import play, sample
from tools.toy.make_tasks import task_rows
from tools.toy.scenes import as_task
from tools.toy.sets import SETS
from tools.toy.steps import INT, RECURSIVE

ROWS = [json.loads(line) for line in HARD_TASKS_PATH.read_text(encoding="utf-8").splitlines()]
SPLITS = split_problems()
PAIR = CodeGeneration(2)


def earned(sandbox: Sandbox, problem: Problem, aux: str, main: str) -> float:
    joint = PAIR.attempt(as_task(problem), [aux, main], last=True)
    return PAIR.outcome(joint, sandbox.run(joint.program)).reward


def test_make_tasks_reproduces_the_task_file() -> None:
    assert task_rows("toy-hard") == ROWS
    assert len(load_tasks("bundled:toy-hard", "eval+unseen")) == len(SPLITS["eval"]) + len(SPLITS["unseen"])


def test_held_out_constants_and_families_are_in_no_training_split() -> None:
    keys = {split: {problem.key for problem in problems} for split, problems in SPLITS.items()}
    families = {split: {problem.family.name for problem in problems} for split, problems in SPLITS.items()}
    assert not keys["eval"] & (keys["train"] | keys["spare"])
    assert families["eval"] <= families["train"]
    assert not families["unseen"] & (families["train"] | families["spare"])
    assert {p.family.kind for p in SPLITS["unseen"]} == {family.kind for family in all_families()}


def test_the_larger_held_out_splits_contain_the_bundled_ones_and_nothing_of_training() -> None:
    larger = held_out_problems()
    assert {split: len(problems) for split, problems in larger.items()} == {"eval": 107, "unseen": 108}
    for split, problems in larger.items():
        assert {problem.prompt for problem in SPLITS[split]} <= {problem.prompt for problem in problems}
        assert not {p.key for p in problems} & {p.key for p in SPLITS["train"] + SPLITS["spare"]}
        assert all(problem.fair for problem in problems)
        assert load_tasks("python:benchmarks.learning.held_out:TASKS", split, "toy")[0].prompt == problems[0].prompt


def test_both_decompositions_earn_the_maximum_and_a_mixture_does_not(sandbox: Sandbox) -> None:
    rng = random.Random(0)
    problems = rng.sample([p for p in SPLITS["train"] if len(p.family.ways) == 2], 12)
    for problem in problems:
        texts = {
            (role, way): attempt(problem, role, PERFECT, rng, way).text for role in ("aux", "main") for way in (0, 1)
        }
        for way in (0, 1):
            assert earned(sandbox, problem, texts["aux", way], texts["main", way]) == pytest.approx(4.0)
            assert earned(sandbox, problem, texts["aux", way], texts["main", 1 - way]) < 3.2


def test_solutions_of_the_task_file_pass(sandbox: Sandbox) -> None:
    rows = random.Random(0).sample(ROWS, 30)
    alone = [Program(r["prompt"] + r["canonical_solution"], r["test"], r["entry_point"]) for r in rows]
    for row, report in zip(rows, sandbox.run_batch(alone), strict=True):
        assert report.passed == report.total == 6, row["task_id"]
        task = Task(row["task_id"], row["prompt"], {"entry_point": row["entry_point"], "tests": row["test"]})
        joint = PAIR.attempt(task, [row["aux_solution"], row["main_solution"]], last=True)
        assert PAIR.outcome(joint, sandbox.run(joint.program)).reward == pytest.approx(4.0)


def test_steps_in_words_expressions_and_recursion() -> None:
    problem = Problem(Family("any", (INT[0], RECURSIVE[1], INT[2])), "convert", "n", (3, 2, 5))
    assert problem.sentence == ("Start with n: add 3, then sum from it down to 1 in steps of 2, then multiply by 5.")
    assert problem.whole() == "sum(range(n + 3, 0, -2)) * 5"
    assert problem.joint == (
        "def aux(n):\n    return n + 3",
        "def convert(n):\n    return sum(range(aux(n), 0, -2)) * 5",
    )
    assert RECURSIVE[1].body("aux", "n", 2) == "0 if n < 1 else n + aux(n - 2)"


def test_demonstrations_use_both_decompositions_and_keep_theirs_in_turn_two() -> None:
    problem = next(p for p in SPLITS["train"] if len(p.family.ways) == 2)
    rng = random.Random(0)
    ways = Counter(attempt(problem, "aux", FIRST_TURN, rng).way for _ in range(1000))
    assert abs(ways[0] - ways[1]) < 100
    assert 0.15 < ways[None] / 1000 < 0.25
    first = attempt(problem, "aux", PERFECT, rng, 1)

    def again(failing: bool) -> float:
        texts = [
            second_attempt(problem, first, PERFECT, rng, sees_problem=True, failing=failing).text for _ in range(400)
        ]
        return texts.count(first.text) / 400

    assert again(failing=False) > 0.93
    assert 0.65 < again(failing=True) < 0.85


def test_a_second_demonstration_without_the_problem_uses_only_its_own_code() -> None:
    problem = next(p for p in SPLITS["train"] if all(p.constants) and len(p.constants) == 3)
    rng = random.Random(0)
    first = attempt(problem, "main", PERFECT, rng, 0)
    assert first.constants == (None, *problem.constants[1:])
    revised = second_attempt(problem, first, PERFECT, rng, sees_problem=False, failing=False)
    assert revised.constants[2] == problem.constants[2]
    guesses = {
        second_attempt(problem, first, PERFECT, rng, sees_problem=False, failing=True).constants[0] for _ in range(200)
    }
    assert len(guesses - {None}) > 3


@pytest.fixture(scope="module")
def policy() -> tuple[Qwen2ForCausalLM, AutoTokenizer]:
    return Qwen2ForCausalLM.from_pretrained(HARD_BASE_PATH).eval(), AutoTokenizer.from_pretrained(HARD_BASE_PATH)


def test_the_base_policy_is_far_from_the_maximum(
    policy: tuple[Qwen2ForCausalLM, AutoTokenizer], sandbox: Sandbox
) -> None:
    torch.manual_seed(0)
    external = SETS["toy-hard"].modes[0][1]
    first, second = play(*policy, SPLITS["unseen"], sandbox.run_batch, external=external)
    assert 1.4 <= sum(first) / len(first) <= 2.2
    assert 1.4 <= sum(second) / len(second) <= 2.2
    assert max(first) > 3.9


def test_the_base_policy_uses_both_decompositions(policy: tuple[Qwen2ForCausalLM, AutoTokenizer]) -> None:
    torch.manual_seed(0)
    problems = [problem for problem in SPLITS["eval"] + SPLITS["unseen"] if len(problem.family.ways) == 2]
    rng, ways = random.Random(0), Counter[int]()
    answers = sample(*policy, [PAIR.first_prompts(as_task(problem))[0] for problem in problems * 3])
    for problem, answer in zip(problems * 3, answers, strict=True):
        texts = [attempt(problem, "aux", PERFECT, rng, way).text for way in problem.family.ways]
        ways.update([texts.index(answer)] if answer in texts else [])
    assert sum(ways.values()) > 30
    assert 0.25 < ways[0] / sum(ways.values()) < 0.75
