"""Exact prompts and feedback of code generation, on which the bundled policies were trained."""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.environments.code_generation import feedback
from marl_ray.environments.code_generation.feedback import Diagnosis, FunctionStatus
from marl_ray.environments.code_generation.prompts import first_prompts, question, revisions
from marl_ray.environments.execution import SyntaxErrorLocation


@dataclass(frozen=True)
class Verdict:
    """A substitute for the sandbox's TestResult."""

    status: str
    error_type: str | None
    message: str | None
    line: int
    source: str


PROBLEM = 'def grow(n: int) -> int:\n    """Add 5 to n, then multiply by 7."""\n'
GOOD = Verdict("pass", None, "", 2, "assert candidate(0) == 35")
WRONG = Verdict("fail", "AssertionError", "", 3, "assert candidate(1) == 42")
CRASH = Verdict(
    "error", "TypeError", "unsupported operand type(s)\nfor +: " + "int " * 40, 4, "assert candidate(2) == 49"
)
FOUND = (FunctionStatus("aux"), FunctionStatus("grow"))


def test_first_prompts_of_two_agents() -> None:
    aux, main = first_prompts(PROBLEM, "grow", ["aux"])
    assert aux == (
        'def grow(n: int) -> int:\n    """Add 5 to n, then multiply by 7."""\n\n'
        "Write a helper function `aux` that is useful for this problem and returns a value. "
        "Another agent writes `grow`; `grow` may call `aux(...)`. "
        "Answer with the function only: no markdown, no explanation, no tests.\n"
    )
    assert main == (
        'def grow(n: int) -> int:\n    """Add 5 to n, then multiply by 7."""\n\n'
        "Write the function `grow`. Another agent writes the helper `aux`. "
        "You may call `aux(...)` but must not define it. "
        "Answer with the function only: no markdown, no explanation, no tests.\n"
    )


def test_first_prompts_of_one_and_three_agents() -> None:
    (alone,) = first_prompts(PROBLEM, "grow", [])
    assert alone.endswith(
        '"""\n\nWrite the function `grow`. Answer with the function only: no markdown, no explanation, no tests.\n'
    )
    first, second, main = first_prompts(PROBLEM, "grow", ["aux_1", "aux_2"])
    assert "Write a helper function `aux_1` that is useful for this problem and returns a value. " in first
    assert "Other agents write `aux_2` and `grow`; `grow` may call `aux_1(...)`. " in first
    assert "Other agents write `aux_1` and `grow`; `grow` may call `aux_2(...)`. " in second
    assert (
        "Write the function `grow`. Other agents write the helpers `aux_1` and `aux_2`. "
        "You may call `aux_1(...)` and `aux_2(...)` but must not define them. Answer" in main
    )


def test_instructions_to_revise_name_the_function() -> None:
    only = " Answer with the function only: no markdown, no explanation, no tests."
    assert revisions("grow", ["aux"]) == [
        "Revise your helper function `aux`, which `grow` may call." + only,
        "Revise your function `grow`. You may call `aux(...)` but must not define it." + only,
    ]
    assert revisions("grow", []) == ["Revise your function `grow`." + only]


def test_level_feedback_when_all_is_found() -> None:
    diagnosis = Diagnosis(FOUND, None, (GOOD, WRONG, CRASH), not_called=("aux",))
    lines = [
        "aux: found",
        "grow: found",
        "syntax: OK",
        "tests: 1 of 3 passed",
        "failed: assert candidate(1) == 42 -> AssertionError",
        "failed: assert candidate(2) == 49 -> TypeError: unsupported operand type(s) for +: "
        "int int int int int int int int int int int int int...",
    ]
    assert feedback.level_feedback(diagnosis, 0) == lines
    assert feedback.level_feedback(diagnosis, 1) == [*lines, "aux use: aux not called"]


def test_level_feedback_describes_faults() -> None:
    broken = Diagnosis(
        (FunctionStatus("aux", "no return value"), FunctionStatus("grow", "does not parse")),
        SyntaxErrorLocation("grow", 2, 13, "invalid syntax"),
        (WRONG,),
    )
    assert feedback.level_feedback(broken, 1) == [
        "aux: missing (no return value)",
        "grow: missing (does not parse)",
        "syntax: error in grow line 2 column 13: invalid syntax",
        "tests: not run",
    ]
    thin = Diagnosis(FOUND, None, (GOOD,), thin_wrapper=True)
    assert feedback.level_feedback(thin, 1)[-1] == "aux use: thin wrapper"
    misused = Diagnosis(FOUND, None, (GOOD,), aux_misused=True)
    assert feedback.level_feedback(misused, 1)[-1] == "aux use: result thrown away"
    assert feedback.level_feedback(Diagnosis(FOUND, None, (GOOD,)), 1)[-1] == "aux use: OK"
    slow = Verdict("timeout", None, "", 1, "assert candidate(9) == 98")
    alone = Diagnosis((FunctionStatus("grow"),), None, (slow,))
    assert feedback.level_feedback(alone, 0) == [
        "grow: found",
        "syntax: OK",
        "tests: 0 of 1 passed",
        "failed: assert candidate(9) == 98 -> timeout",
    ]


def test_level_passed() -> None:
    assert feedback.level_passed(Diagnosis(FOUND, None, (GOOD, WRONG)), 0) == [
        "implementation: OK",
        "syntax: correct",
        "tests: passed 1 of 2",
        "aux use: OK",
    ]
    no_aux = (FunctionStatus("aux", "no function of that name"), FunctionStatus("grow"))
    assert feedback.level_passed(Diagnosis(no_aux, None, (GOOD,), not_called=("aux",)), 1) == [
        "implementation: missing aux",
        "syntax: correct",
        "tests: passed all",
        "aux use: aux not called",
    ]
    error = SyntaxErrorLocation(None, None, None, "too deep")
    assert feedback.level_passed(Diagnosis(FOUND, error, (WRONG,)), 1)[1:3] == ["syntax: incorrect", "tests: not run"]
    assert feedback.level_passed(Diagnosis(FOUND, None, (WRONG,)), 1)[2] == "tests: passed none"


def test_passed() -> None:
    assert feedback.passed(Diagnosis(FOUND, None, (GOOD,)), 0) == ["All levels passed"]
    assert feedback.passed(Diagnosis(FOUND, None, (GOOD, WRONG)), 0) == ["Not all levels passed"]
    assert feedback.passed(Diagnosis(FOUND, None, ()), 0) == ["Not all levels passed"]


def test_question_to_an_expert() -> None:
    assert question(PROBLEM, "def aux(n): ...\n", ["aux", "grow"]) == (
        "Several programmers each write one function of a Python program, without seeing each other's work.\n\n"
        "Problem:\n"
        'def grow(n: int) -> int:\n    """Add 5 to n, then multiply by 7."""\n\n'
        "Their program:\ndef aux(n): ...\n\n"
        "Suggest an edit for each of these functions: aux, grow. Reply with one JSON object and nothing else. "
        "Its keys are the functions' names, its values are strings: a short suggestion, or the corrected function."
    )
    assert question(PROBLEM, "def grow(n): ...\n", ["grow"]) == (
        "A programmer writes one function of a Python program.\n\n"
        "Problem:\n"
        'def grow(n: int) -> int:\n    """Add 5 to n, then multiply by 7."""\n\n'
        "The program:\ndef grow(n): ...\n\n"
        "Suggest an edit for the function grow. Reply with one JSON object and nothing else. "
        "Its key is the function's name, its value is a string: a short suggestion, or the corrected function."
    )
