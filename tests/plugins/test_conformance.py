"""Conformance checks of every registered environment and dataset type, of the core and of plug-ins."""

from __future__ import annotations

from typing import Any

import pytest

from marl_ray.core.episode import Task
from marl_ray.data import DATASETS
from marl_ray.data.loading import load_tasks
from marl_ray.environments import ENVIRONMENTS
from marl_ray.plugins.plan_path.rows import PLAN_PATH
from marl_ray.sandbox import Sandbox
from marl_ray.testing import check_dataset, check_environment
from tests.plugins.code_completion.helpers import TASK as CLASS_TASK

AUX, MAIN = "def aux(x):\n    return x + 1", "def {}(x):\n    return aux(x) + 1"


@pytest.mark.parametrize("agents", [1, 2, 3])
@pytest.mark.parametrize(
    "name",
    sorted(ENVIRONMENTS.entries.keys() - {"centralized", "frozen_partners", "gateway", "reward_model", "tool_use"}),
)
def test_environments(sandbox: Sandbox, name: str, agents: int) -> None:
    tasks, answers = load_tasks("bundled:toy", "eval[:1]"), [*([AUX] * (agents - 1)), MAIN]
    if name == "code_completion":
        tasks = [CLASS_TASK]
    elif name.startswith("bug_fix"):
        program = "\n".join(f"def {function}(x):\n    return x\n" for function in ("f", "g", "h"))
        fields = {"entry_point": "f", "tests": ("assert f(1) == 2",), "buggy": program, "reference": ""}
        tasks = [Task("t", "Double x.", fields)]
    elif name == "solver_tester":
        tasks = load_tasks("bundled:toy", "eval[:1]", "solver_tester")
    elif name.startswith("grid"):
        tasks = [Task("t", "Fill.", {"target": ("ab",) * 6, "letters": "ab"})]
    elif name.startswith("writing"):
        agents = min(agents, 2)
        tasks, answers = load_tasks("bundled:posts", "eval[:1]"), answers[:agents]
    elif name in ("word_builder", "house_builder", "travel", "function_calls"):
        bundled = {"word_builder": "words", "house_builder": "houses", "travel": "trips", "function_calls": "requests"}
        agents = min(agents, 2)
        tasks, answers = load_tasks(f"bundled:{bundled[name]}", "eval[:2]"), answers[:agents]
    elif name == "tags":
        tasks = load_tasks("bundled:tags", "eval[:2]")
    elif name == "roll_call":
        tasks = load_tasks("bundled:roll-call", "eval[:2]")
    elif name.startswith("math"):
        tasks = load_tasks("bundled:arithmetic", "eval[:2]")
    elif name == "plan_path":
        tasks = [PLAN_PATH.task({"room": ["@$.", "---"]}, 0)]
    answers[-1] = MAIN.format(tasks[0].fields.get("entry_point", "push"))
    check_environment(ENVIRONMENTS.get(name)(agents), tasks, [answers, answers[::-1]], execute=sandbox.run_batch)


FIELDS = {"task_id": "1", "prompt": "Double x.", "entry_point": "f", "test": "assert f(1) == 2"}
MBPP = {"task_id": 2, "text": "Double x.", "code": "def f(x): return 2 * x", "test_list": ["assert f(1) == 2"]}
BUG = {**FIELDS, "buggy_solution": "def f(x): return x", "canonical_solution": "def f(x): return 2 * x"}
PACK = {**BUG, "task_id": "2", "declaration": "def f(x):\n", "buggy_solution": "  return x", "canonical_solution": None}
CLASS = {"task_id": "3", "class_name": "Stack", "skeleton": CLASS_TASK.prompt, "test": CLASS_TASK.fields["tests"]}
SCRIPT = {"problem_id": 7, "question": "Double.", "input_output": '{"inputs": ["1"], "outputs": ["2"]}'}
LIVE = {"question_id": "a", "question_content": "Double.", "public_test_cases": '[{"input": "1", "output": "2"}]'}
CALLS = {"user_prompt": "Do.", "function": [{"name": "f"}], "ground_truth": [{"f": {"a": [1]}}]}
HOUSE = {"inventory": {"S": "stone"}, "layers": [{"y": 0, "rows": ["S"]}]}
FLIGHT = {"Description": "Flight from A to B on 2025-01-01", "Content": "Flight Number\nF1 9 08:00"}
TRIP = {"query": "Go.", "org": "A", "days": 1, "date": ["2025-01-01"], "people_number": 1, "budget": 9}
ROWS: dict[str, list[dict[str, Any]]] = {
    "mbpp": [FIELDS, MBPP],
    "bug_fix": [BUG, PACK],
    "solver_tester": [{**FIELDS, "canonical_solution": "def f(x): return 2 * x"}, MBPP],
    "apps": [SCRIPT, {**SCRIPT, "problem_id": 8}],
    "livecodebench": [LIVE, {**LIVE, "question_id": "b"}],
    "classeval": [CLASS, {**CLASS, "task_id": None}],
    "tldr": [{"prompt": "A post."}, {"prompt": "A post.", "id": "x"}],
    "arxiv": [{"abstract_text": "We study."}, {"abstract_text": "We study.", "task_id": "2"}],
    "grid": [{"target": ["ab", "ba"]}, {"target": ["abc"], "letters": "abcd"}],
    "grid_private": [{"target": ["ab", "ba"]}, {"target": ["abc"], "task_id": "2"}],
    "function_calls": [CALLS, {**CALLS, "id": "parallel_1"}],
    "word_builder": [{"string": "Hi"}, {"target": ["#."]}],
    "house_builder": [
        HOUSE,
        {"inventory": HOUSE["inventory"], "target_spec": {"layers": HOUSE["layers"]}, "attack": 1},
    ],
    "travel": [{**TRIP, "reference_information": [FLIGHT]}, {**TRIP, "reference_information": str([FLIGHT])}],
    "math": [{"question": "1 + 1?", "answer": "#### 2"}, {"problem": "1 + 2?", "solution": "\\boxed{3}"}],
    "roll_call": [{"rows": ["ab", "cd"]}, {"rows": ["ab"], "task_id": "2"}],
    "plan_path": [{"room": ["@-."]}, {"room": ["@$.-"], "task_id": "2"}],
    "tags": [{"text": "A ferry leaves."}, {"text": "A train arrives.", "task_id": "2"}],
}


@pytest.mark.parametrize("name", DATASETS.entries)
def test_dataset_types(name: str) -> None:
    check_dataset(DATASETS.get(name), ROWS.get(name, [FIELDS, {**FIELDS, "task_id": "2"}]))
