"""Every external mode end to end, from a joint action and its report to the next prompts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from marl_ray.config import ExternalConfig
from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.external.modes import Message, Plain
from marl_ray.external.transition import Transition
from marl_ray.sandbox import ExecutionReport, SyntaxDiagnosis, TestResult

TASK = Task(
    "toy/1",
    'def grow(n: int) -> int:\n    """Add 5 to n, then multiply by 7."""\n',
    {
        "entry_point": "grow",
        "tests": "def check(candidate):\n    assert candidate(0) == 35\n    assert candidate(1) == 42\n",
    },
)
AUX = "def aux(n):\n    return n + 5"
MAIN = "def grow(n):\n    return aux(n)"
ONLY = "Answer with the function only: no markdown, no explanation, no tests.\n"
REVISE_AUX = "Revise your helper function `aux`, which `grow` may call. " + ONLY
REVISE_MAIN = "Revise your function `grow`. You may call `aux(...)` but must not define it. " + ONLY


def verdict(status: Any, test: str, message: str | None = None) -> TestResult:
    return TestResult(status, "AssertionError" if status == "fail" else None, message, None, test)


def report(*tests: TestResult, syntax: SyntaxDiagnosis | None = None) -> ExecutionReport:
    return ExecutionReport(tests, syntax, "", 0.0, 0.0, "none", True)


FAILED = report(
    verdict("fail", "assert candidate(0) == 35", "got 5, expected 35"),
    verdict("fail", "assert candidate(1) == 42", "got 6, expected 42"),
    verdict("pass", "assert candidate(-5) == 0"),
)


def turn(
    responses: list[str] | None = None, result: ExecutionReport = FAILED, agents: int = 2, **settings: Any
) -> list[str]:
    config = ExternalConfig(**settings)
    environment = CodeGeneration(agents, sandbox_slice=config.sandbox_slice)
    attempt = environment.attempt(TASK, responses or [AUX, MAIN], last=False)
    outcome = environment.outcome(attempt, result)
    first = environment.first_prompts(TASK)
    return asyncio.run(Transition(config, environment).next_prompts(TASK, first, attempt, outcome)).prompts


def test_level_feedback_by_default() -> None:
    aux, main = turn()
    facts = (
        "Feedback:\naux: found\ngrow: found\nsyntax: OK\ntests: 0 of 1 passed\n"
        "failed: assert candidate(0) == 35 -> AssertionError: got 5, expected 35\n"
    )
    assert aux == f"Your previous answer:\n{AUX}\n\n{facts}\n{REVISE_AUX}"
    assert main == f"Your previous answer:\n{MAIN}\n\n{facts}aux use: thin wrapper\n\n{REVISE_MAIN}"


@pytest.mark.parametrize(
    ("cut", "shown", "count"),
    [
        (1, ["candidate(0)"], "0 of 1"),
        (2, ["candidate(0)", "candidate(1)"], "0 of 2"),
        (-1, [], "1 of 1"),
        (-2, ["candidate(1)"], "1 of 2"),
        (99, ["candidate(0)", "candidate(1)"], "1 of 3"),
        (0, ["candidate(0)", "candidate(1)"], "1 of 3"),
        (None, ["candidate(0)", "candidate(1)"], "1 of 3"),
        ("all", ["candidate(0)", "candidate(1)"], "1 of 3"),
    ],
)
def test_sandbox_slice(cut: Any, shown: list[str], count: str) -> None:
    text = turn(sandbox_slice=cut)[0]
    assert f"tests: {count} passed" in text
    assert [call for call in ("candidate(0)", "candidate(1)", "candidate(-5)") if call in text] == shown


def test_original_prompt_and_previous_response() -> None:
    first = CodeGeneration(2).first_prompts(TASK)
    with_both = turn(mode="plain", original_prompt=True)
    assert with_both == [
        f"{first[0]}\nYour previous answer:\n{AUX}\n\n{REVISE_AUX}",
        f"{first[1]}\nYour previous answer:\n{MAIN}\n\n{REVISE_MAIN}",
    ]
    assert turn(mode="plain", previous_response=False) == [REVISE_AUX, REVISE_MAIN]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return sum(map(aux, [x]))", "OK"),
        ("return int(aux(x)) + 0", "thin wrapper"),
        ("return x\n    return aux(x)", "aux not called"),
        ("y = aux(x)\n    z = y\n    return x", "result thrown away"),
    ],
)
def test_feedback_for_main_describes_helper_use(body: str, said: str) -> None:
    aux, main = turn([AUX, f"def grow(x):\n    {body}"])
    assert f"\naux use: {said}\n" in main
    assert "aux use" not in aux


def test_feedback_names_missing_functions_and_syntax_errors() -> None:
    aux, _ = turn(["I cannot help.", MAIN])
    assert "aux: missing (no function of that name)\ngrow: found\n" in aux
    assert aux.startswith("Your previous answer:\nI cannot help.\n")
    broken = "def aux(x)\n    return x"
    aux, _ = turn([f"Sure!\n```python\n{broken}\n```\nDone.", MAIN])
    assert "aux: missing (does not parse)\n" in aux
    assert aux.startswith(f"Your previous answer:\n{broken}\n")
    aux, _ = turn(["def aux(x):\n    x.sort()", MAIN])
    assert "aux: missing (no return value)\n" in aux


def test_other_modes() -> None:
    assert "Feedback:\nNot all levels passed\n" in turn(mode="passed")[0]
    # The slice decides what feedback may know: the last test alone has passed.
    assert "Feedback:\nAll levels passed\n" in turn(mode="passed", sandbox_slice=-1)[0]
    levels = "Feedback:\nimplementation: OK\nsyntax: correct\ntests: passed 1 of 3\naux use: thin wrapper\n"
    assert all(levels in text for text in turn(mode="level_passed", sandbox_slice="all"))
    assert all("Feedback" not in text for text in turn(mode="plain"))


def test_a_syntax_error_is_located_in_its_function() -> None:
    broken = "def grow(n)\n    return n"
    source = CodeGeneration(2).attempt(TASK, [AUX, broken], last=True).program.source
    with pytest.raises(SyntaxError) as error:
        compile(source, "<program>", "exec")
    assert source.split("\n")[error.value.lineno - 1] == "def grow(n)"  # type: ignore[operator]
    syntax = SyntaxDiagnosis("expected ':'", error.value.lineno, error.value.offset)
    main = turn([AUX, broken], report(syntax=syntax))[1]
    assert main.startswith(f"Your previous answer:\n{broken}\n\nFeedback:\naux: found\n")
    assert "grow: missing (does not parse)\n" in main
    assert "syntax: error in grow line 1 column 12: expected ':'\ntests: not run\n" in main


def test_a_previous_answer_without_the_function_is_shown_unchanged() -> None:
    aux, main = turn(["```python\ndef helper(n):\n    return n\n```", ""])
    assert aux.startswith("Your previous answer:\ndef helper(n):\n    return n\n\n")
    assert "aux: missing (no function of that name)" in aux
    assert main.startswith("Your previous answer:\n(empty)\n\n")
    assert "grow: missing (empty answer)" in main


def test_one_and_three_agents() -> None:
    (alone,) = turn([MAIN], agents=1)
    assert "aux" not in alone.replace(MAIN, "")
    assert len(turn(["", "", MAIN], agents=3)) == 3


def test_an_expert_without_a_key_is_rejected_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(UserError, match="OPENAI_API_KEY"):
        turn(mode="expert_edits", expert_model="some-model")


TOLD = Message(("a line",))


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ([TOLD, TOLD], "must return a list of messages and a dict of metrics, not [Message("),
        (("ab", {}), "must return a list of messages and a dict of metrics, not ('ab', {})"),
        (([TOLD], {}), "must return one entry per agent, 2, not 1"),
        (([TOLD, "a line"], {}), "must return a Message per agent, with a string as edit, not 'a line'"),
        (([TOLD, Message("a line")], {}), "of a message's lines must return a list of strings, not str"),  # type: ignore[arg-type]
        (([TOLD, TOLD], {"time/mode": 1.0}), "must not use the metric name 'time/mode'"),
    ],
)
def test_invalid_messages_of_a_mode_are_rejected(told: Any, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def messages(*_: Any) -> Any:
        return told

    monkeypatch.setattr(Plain, "messages", messages)
    with pytest.raises((TypeError, ValueError)) as caught:
        turn(mode="plain")
    assert str(caught.value).startswith(f"marl_ray.external.modes:Plain.messages {line}")
