"""Function calls: reading, comparison, the levels of the reward, feedback, and the dataset type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marl_ray.core.errors import UserError
from marl_ray.data import infer_type
from marl_ray.data.loading import load_tasks
from marl_ray.plugins.function_calls.calls import FunctionCall, expected_calls, read_calls, similarity
from marl_ray.plugins.function_calls.environment import FunctionCalls
from marl_ray.plugins.function_calls.rows import FUNCTION_CALLS
from marl_ray.testing import check_environment

PUBLISHED = [json.loads(line) for line in (Path(__file__).parent / "published_rewards.jsonl").open()]
FUNCTION = {"name": "f", "parameters": {"properties": {"a": {}, "b": {}}, "required": ["b"]}}
SCHEMAS = json.dumps([FUNCTION, {"name": "g.h"}])
ROW = {"user_prompt": "Do.", "function": [FUNCTION], "ground_truth": [{"f": {"a": [1], "b": ["x", "y"]}}]}
TASK = FUNCTION_CALLS.task({**ROW, "ground_truth": [{"f": {"b": [1]}}, {"f": {"b": [2]}}]}, 0)


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        ("f(a=1)\ng.h(b='x')", ["f(a=1)", "g.h(b='x')"]),
        ("[f(a=1), g.h()]", ["f(a=1)", "g.h()"]),
        ("f(1, 2)", ["f(b=1, a=2)"]),  # required parameters come first
        ("f(a=true, b=[1, -2.5, null])", ["f(a=True, b=[1, -2.5, None])"]),
        ("f(a={'name': 'x'})", ["f(a={'name': 'x'})"]),  # an argument with a name is no call
        ("f(a=b + 1)", ["f(a='b + 1')"]),
        ('[{"name": "f", "arguments": {"a": 1}}, {"g.h": {}}]', ["f(a=1)", "g.h()"]),
        ("```python\nf(a=1)\n```\nand\n```\ng.h()\n```", ["f(a=1)", "g.h()"]),
        ("Of course! f(a='(') and then g.h(b=2). Then f(a=", ["f(a='(')", "g.h(b=2)"]),
        ('Here: [{"f": {"a": 1}}] as asked', ["f(a=1)"]),
        ("x(a=1)", ["x(a=1)"]),  # an unknown function in a text that parses counts
        ("call x(a=1) now", []),
        ('[{"name": "f", "arguments": [1]}]', []),
        ("[]", []),
        ("f(" * 8000, []),
        ("f(**a)", ["f()"]),
        ("f()()", ["f()"]),
        ("import os", []),
    ],
)
def test_calls_are_read_from_python_and_json(answer: str, calls: list[str]) -> None:
    assert [str(call) for call in read_calls(answer, SCHEMAS)] == calls


@pytest.mark.parametrize(
    ("arguments", "accepted", "share", "right"),
    [
        ({"a": 1}, {"a": [1]}, 1.0, True),
        ({"a": 1.0, "b": " NEW  york"}, {"a": [1], "b": ["New York", "NYC"]}, 1.0, True),
        ({"a": "1"}, {"a": [1]}, 0.0, False),
        ({"a": 1}, {"a": [1], "b": [2]}, 0.5, False),
        ({"a": 1, "c": 3}, {"a": [1]}, 0.5, False),
        ({}, {}, 1.0, True),
        ({"c": 3}, {}, 0.7, False),
        ({"a": 1}, {"a": [1], "b": ["", "m"]}, 1.0, True),  # an empty accepted value: the argument is optional
        ({"a": [1, 2]}, {"a": [[1, 2]]}, 1.0, True),
        ({"a": 1}, {"a": [[1, 2]]}, 0.0, False),
        ({"a": {"x": "u"}}, {"a": [{"x": ["U", "v"], "y": ["", 3]}]}, 1.0, True),
        ({"a": {"x": "u", "z": 1}}, {"a": [{"x": ["u"]}]}, 0.0, False),
        ({"a": 10**400}, {"a": [1.5]}, 0.0, False),
    ],
)
def test_similarity(arguments: dict[str, Any], accepted: dict[str, Any], share: float, right: bool) -> None:
    assert similarity(FunctionCall("f", arguments), FunctionCall("f", accepted)) == (pytest.approx(share), right)
    assert similarity(FunctionCall("g", arguments), FunctionCall("f", accepted)) == (0.0, False)


@pytest.mark.parametrize(
    ("answers", "levels"),
    [
        (("f(b=1)", "f(b=2)"), {"parsed": 0.05, "functions": 0.25, "arguments": 0.35, "count": 0.1, "balance": 0.15}),
        (("f(b=1)", ""), {"functions": 0.25 * 2 / 3, "arguments": 0.175, "count": 0.05, "balance": 0.075}),
        (("", ""), {"parsed": 0, "functions": 0, "arguments": 0, "count": 0, "balance": 0, "lazy": -0.15}),
        (("f(b=1)\nf(b=2)", "f(b=2)"), {"overlap": -0.1, "duplicates": -0.025, "exact": 0.2, "balance": 0.075}),
        (("f(b=1)\nf(b=1)", "f(b=2)"), {"overlap": 0, "duplicates": -0.025, "exact": 0.2, "balance": 0.15}),
        (("f(b=1)\nf(b=3)", "f(b=2)"), {"extra": -0.025, "exact": 0, "count": 0.05, "functions": 0.25 * 0.8}),
        (("f(b=1)", "g(b=2)"), {"functions": 0.125, "arguments": 0.175, "count": 0.1, "exact": 0}),
    ],
)
def test_levels(answers: tuple[str, ...], levels: dict[str, float]) -> None:
    environment = FunctionCalls(2)
    outcome = environment.outcome(environment.attempt(TASK, answers, last=True), None)
    assert {name: outcome.levels[name] for name in levels} == pytest.approx(levels)
    assert outcome.metrics["all_passed"] == (outcome.levels["exact"] > 0)


@pytest.mark.parametrize("row", PUBLISHED, ids=range(len(PUBLISHED)))
def test_rewards_equal_those_of_the_published_code(row: dict[str, Any]) -> None:
    (task,) = [task for task in load_tasks("bundled:requests", "train+eval") if task.id == row["task_id"]]
    environment = FunctionCalls(len(row["answers"]))
    outcome = environment.outcome(environment.attempt(task, row["answers"], last=True), None)
    assert outcome.reward == pytest.approx(row["reward"], abs=1e-8)


def test_feedback_tells_which_calls_are_right_and_which_are_made_twice() -> None:
    environment = FunctionCalls(2)
    attempt = environment.attempt(TASK, ["f(b=1)\nf(b=7)", "f(b=1)"], last=False)
    outcome = environment.outcome(attempt, None)
    first, second = (environment.feedback(attempt, outcome, "level_feedback", agent) for agent in (0, 1))
    together = "right calls together: 1 of 2"
    assert first == [together, "right, also made by a partner: f(b=1)", "not right: f(b=7)"]
    assert second == [together, "right, also made by a partner: f(b=1)"]
    assert environment.feedback(attempt, outcome, "level_passed", 0) == [together]
    assert environment.feedback(attempt, outcome, "passed", 0) == ["Not all levels passed"]


@pytest.mark.parametrize("agents", [1, 2, 3])
def test_the_bundled_requests_can_be_served_in_full(agents: int) -> None:
    tasks = load_tasks("bundled:requests", "train+eval")
    environment = FunctionCalls(agents)
    check_environment(environment, tasks[:2], [["lights.set(room='hall', percent=20)"] * agents])
    for task in tasks:
        calls = [
            {name: values[0] for name, values in call.arguments.items()}
            for call in expected_calls(task.fields["calls"])
        ]
        names = [call.name for call in expected_calls(task.fields["calls"])]
        texts = [str(FunctionCall(name, arguments)) for name, arguments in zip(names, calls, strict=True)]
        outcome = environment.outcome(
            environment.attempt(task, [*(["x"] * (agents - 1)), "\n".join(texts)], True), None
        )
        assert outcome.metrics["all_passed"] == 1.0, task.id


def test_rows_of_bfcl_and_rows_with_json_texts_are_tasks() -> None:
    question = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Do."}]]
    bfcl = {"id": "parallel_3", "question": question, "function": [FUNCTION], "ground_truth": ROW["ground_truth"]}
    texts = {**ROW, "function": json.dumps(ROW["function"]), "ground_truth": str(ROW["ground_truth"])}
    first, second = FUNCTION_CALLS.task(bfcl, 0), FUNCTION_CALLS.task(texts, 1)
    assert (first.id, first.prompt) == ("function_calls/parallel_3", "Do.")
    assert first.fields == second.fields
    filled = {**ROW, "ground_truth": [{"f": {"a": [1], "b": ["x", "y"], "c": None}, "other": None}]}
    assert FUNCTION_CALLS.task(filled, 0).fields == first.fields  # tables give all rows the same names
    assert infer_type("OpenMLRL/BFCL-V4-Parallel-Native") == "function_calls"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ground_truth": []}, "task function_calls/row 0 needs user_prompt"),
        ({"function": "("}, "function is neither JSON nor a Python literal"),
        ({"function": "3"}, "function should be a list"),
        ({"function": [{}]}, "each entry of function needs a name"),
        ({"function": [{"name": "f", "parameters": 3}]}, "parameters of f should be an object"),
        ({"ground_truth": [{"f": {}, "g": {}}]}, "each entry of ground_truth should be"),
        ({"ground_truth": ["f"]}, "each entry of ground_truth should be"),
    ],
)
def test_rows_that_are_no_tasks_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FUNCTION_CALLS.task({**ROW, **changes}, 0)
