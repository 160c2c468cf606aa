"""Prompts and feedback of code completion in every mode."""

from __future__ import annotations

import pytest

from marl_ray.plugins.code_completion.environment import CodeCompletion
from marl_ray.plugins.code_completion.prompts import first_prompts, revisions
from marl_ray.sandbox import ExecutionReport, SyntaxDiagnosis
from tests.plugins.code_completion.helpers import POP, PUSH, RIGHT, ROOT, TASK, play, report

ONLY = (
    " Answer with the methods only, and imports if they need any: no markdown, no explanation, no tests, no other code."
)
ALL_FAIL = ("TestPush.test_push", "TestPop.test_pop", "TestReplace.test_replace", "TestRoot.test_root")


def test_first_prompts_contain_the_skeleton_and_the_agents_methods() -> None:
    first, second = CodeCompletion(2).first_prompts(TASK)
    assert first == (
        f"{TASK.prompt}\nComplete the class `Stack`: write the methods `pop` and `root`. Another agent writes the "
        f"methods `push` and `replace`: you may call them but must not define them.{ONLY}\n"
    )
    assert second.startswith(TASK.prompt)
    assert "write the methods `push` and `replace`. Another agent writes the methods `pop` and `root`: " in second


def test_first_prompts_of_one_and_of_four_agents() -> None:
    (alone,) = first_prompts("class C: ...\n", "C", [("a", "b", "c")])
    assert alone == f"class C: ...\n\nComplete the class `C`: write the methods `a`, `b` and `c`.{ONLY}\n"
    one, _, _, none = first_prompts("class C: ...", "C", [("a",), ("b",), ("c",), ()])
    assert "write the method `a`. Other agents write the methods `b` and `c`: you may call them but" in one
    assert none == "class C: ...\n\nOther agents write all methods of the class `C`. Answer with `pass`.\n"
    assert first_prompts("class C: ...", "C", [("a",), ()])[0].endswith(f"write the method `a`.{ONLY}\n")


def test_instructions_to_revise_name_class_and_methods() -> None:
    assert revisions("C", [("a",), ("b", "c"), ()]) == [
        "Revise the method `a` of the class `C`. Another agent writes the methods `b` and `c`: you may call them but "
        f"must not define them.{ONLY}",
        f"Revise the methods `b` and `c` of the class `C`. Another agent writes the method `a`: you may call it but "
        f"must not define it.{ONLY}",
        "Other agents write all methods of the class `C`. Answer with `pass`.",
    ]


def told(mode: str, agent: int, *responses: str, found: ExecutionReport | None = None) -> list[str]:
    attempt, outcome = play(*responses, found=found, sandbox_slice="all")
    return CodeCompletion(len(responses), sandbox_slice="all").feedback(attempt, outcome, mode, agent)


def test_level_feedback_lists_the_agents_own_failures_first() -> None:
    first = f"def pop(self):\n    return (\n\n{PUSH}"
    second = f"{PUSH}\n\n{ROOT}"
    assert told("level_feedback", 0, first, second, found=report(ALL_FAIL)) == [
        "pop: missing (does not parse)",
        "root: missing (no method of that name)",
        "not yours: push",
        "missing from others: replace",
        "syntax: OK",
        "tests: 0 of 4 passed",
        "failed: self.assertEqual(self.stack.pop(), 1) -> AssertionError: 1 != 2",
        "failed: self.assertEqual(Stack.root(9), 3) -> AssertionError: 1 != 2",
        "failed: stack = Stack(); stack.push(1); self.assertEqual(stack.items, [1]) -> AssertionError: 1 != 2",
        "failed: stack = Stack(); stack.push(1); stack.push(2); stack.replace(3, 2); "
        "self.assertEqual(stack.items, [3]) -> AssertionError: 1 != 2",
    ]
    other = told("level_feedback", 1, first, second, found=report(ALL_FAIL))
    assert other[:4] == [
        "push: found",
        "replace: missing (no method of that name)",
        "not yours: root",
        "missing from others: pop, root",
    ]
    assert ["push(1)" in line for line in other if line.startswith("failed")] == [True, True, False, False]


def test_level_feedback_of_a_correct_and_an_empty_answer() -> None:
    assert told("level_feedback", 0, *RIGHT) == ["pop: found", "root: found", "syntax: OK", "tests: 4 of 4 passed"]
    assert told("level_feedback", 0, " ", "")[:3] == [
        "pop: missing (empty answer)",
        "root: missing (empty answer)",
        "missing from others: push, replace",
    ]


def test_the_number_of_failures_in_feedback_is_limited() -> None:
    many = ExecutionReport(report(ALL_FAIL).tests * 3, None, "", 0.0, 0.0, "none", False)
    lines = told("level_feedback", 0, *RIGHT, found=many)
    assert [line.count("->") for line in lines[-9:]] == [1] * 8 + [0]
    assert lines[-1] == "failed: 4 more"
    assert sum("pop()" in line or "root(" in line for line in lines[-9:-3]) == 6


def test_feedback_contains_only_the_sandbox_slice() -> None:
    attempt, outcome = play(*RIGHT, found=report(ALL_FAIL))
    (line,) = (x for x in CodeCompletion(2).feedback(attempt, outcome, "level_feedback", 0) if x.startswith("failed"))
    assert "[1]" in line


@pytest.mark.parametrize(
    ("responses", "failing", "lines"),
    [
        (RIGHT, (), ["methods: OK", "overlap: none", "syntax: correct", "tests: passed all"]),
        ((POP, RIGHT[1]), (), ["methods: missing root", "overlap: none", "syntax: correct", "tests: passed all"]),
        (
            (RIGHT[0], f"{RIGHT[1]}\n{POP}"),
            ALL_FAIL[:1],
            ["methods: OK", "overlap: pop", "syntax: correct", "tests: passed 3 of 4"],
        ),
        (RIGHT, ALL_FAIL, ["methods: OK", "overlap: none", "syntax: correct", "tests: passed none"]),
    ],
)
def test_level_passed_and_passed(responses: tuple[str, str], failing: tuple[str, ...], lines: list[str]) -> None:
    for agent in (0, 1):
        assert told("level_passed", agent, *responses, found=report(failing)) == lines
        all_levels = lines[:2] == ["methods: OK", "overlap: none"] and not failing
        expected = "All levels passed" if all_levels else "Not all levels passed"
        assert told("passed", agent, *responses, found=report(failing)) == [expected]


def test_a_syntax_error_is_located_in_its_method() -> None:
    line = 1 + play(*RIGHT)[0].program.source.split("\n").index("        self.items.append(item)")
    found = report(syntax=SyntaxDiagnosis("'await' outside async function", line, 9))
    assert told("level_feedback", 0, *RIGHT, found=found)[-2:] == [
        "syntax: error in push line 2 column 9: 'await' outside async function",
        "tests: not run",
    ]
    assert told("level_passed", 0, *RIGHT, found=found)[-2:] == ["syntax: incorrect", "tests: not run"]
    assert told("passed", 0, *RIGHT, found=found) == ["Not all levels passed"]


def test_the_question_to_an_expert_names_each_agents_methods() -> None:
    environment = CodeCompletion(2)
    asked = environment.question(TASK, environment.attempt(TASK, RIGHT, last=False))
    assert "agent_1: pop, root\nagent_2: push, replace\n" in asked
    assert "edit for the work of each of these programmers: agent_1, agent_2." in asked
    assert "        return math.sqrt(x)" in asked
