"""Prompts of bug fixing: first turn, and second turn in every external mode."""

from __future__ import annotations

import asyncio

import pytest

from marl_ray.config import ExternalConfig
from marl_ray.core.episode import Task
from marl_ray.external.transition import Transition
from marl_ray.plugins.bug_fix.environment import BugFix, BugFixPatchers
from marl_ray.sandbox import SyntaxDiagnosis
from tests.plugins.bug_fix.helpers import BUGGY, FIXED, PATCH, RIGHT, ROWS, report, task

ONLY = "no markdown, no explanation, no tests.\n"
FORM = "Answer with two lines and nothing else:\nline: the number of the line that has to change\nwhy: a short reason\n"
HALF = "def half(n):\n    return n // 2"


def first(environment: BugFix, problem: Task) -> list[str]:
    """Return the last paragraph of each first prompt."""
    return [prompt.rpartition("\n\n")[2] for prompt in environment.first_prompts(problem)]


def received(
    environment: BugFix,
    *responses: str,
    now: str = "+++-",
    was: str = "+---",
    mode: str = "level_feedback",
    reference: str = FIXED,
    syntax: SyntaxDiagnosis | None = None,
) -> list[list[str]]:
    attempt = environment.attempt(task(reference=reference), responses, last=False)
    outcome = environment.outcome(attempt, (report(now, syntax=syntax), report(was)))
    return [environment.feedback(attempt, outcome, mode, agent) for agent in range(environment.num_agents)]


def test_first_prompts_of_two_agents() -> None:
    one = task("def f(x):\n    return x\n\n\n# end", "")
    diagnosis, patch = BugFix(2).first_prompts(one)
    assert diagnosis == (
        "Half of x, plus 1.\n\nThis program should do that, but it has a bug:\n"
        "1: def f(x):\n2:     return x\n3:\n4:\n5: # end\n\n"
        "Find the bug. Another agent corrects the program. " + FORM
    )
    assert patch == (
        "Half of x, plus 1.\n\nThis program should do that, but it has a bug:\n"
        "def f(x):\n    return x\n\n\n# end\n\n"
        "Correct `f` and change as few lines as possible. Another agent says where the bug is. "
        "Answer with the function only: " + ONLY
    )


def test_first_prompts_of_one_and_of_several_patchers() -> None:
    both = "Answer with one or more of these functions only (one that you leave out stays as it is): " + ONLY
    assert first(BugFix(1), task()) == [f"Correct `half` and `f` and change as few lines as possible. {both}"]
    own = "Correct `half` and change as few lines as possible. Other agents correct `f`. "
    assert first(BugFixPatchers(2), task())[0] == f"{own}Answer with the function only: {ONLY}"
    found = first(BugFix(3), task())
    assert found[0] == "Find the bug. Other agents correct the program. " + FORM
    assert found[1] == f"{own}Another agent says where the bug is. Answer with the function only: {ONLY}"


def test_level_feedback_contains_the_other_agents_answer() -> None:
    diagnosis, patch = received(BugFix(2, sandbox_slice="all"), RIGHT, PATCH)
    common = [
        "syntax: OK",
        "tests that passed before: 1 of 1 still pass",
        "tests that failed before: 2 of 3 pass now",
        "failed: assert f(3) == 2 -> fail",
        "edit: 1 token changed, 2 needed",
    ]
    assert diagnosis == [
        "diagnosis: names a line that has to change",
        *common,
        "changed: line 8 `return y - 1` -> `return y + 1`",
    ]
    assert patch == ["diagnosis: line 8 `return y - 1`: sign", *common]


def test_level_feedback_describes_faults() -> None:
    environment = BugFix(2)
    assert (
        received(environment, "line: 9\nwhy: x", "Sorry.", was="----", now="----")
        == [
            [
                "diagnosis: missing (there is no line 9)",
                "patch: missing (no function that it may change)",
                "syntax: OK",
                "tests that failed before: 0 of 1 pass now",
                "failed: assert f(0) == 1 -> fail",
                "edit: nothing changed",
            ]
        ]
        * 2
    )
    broken = received(environment, "line: 1\nwhy: x", "def f(x):\n    return (x", syntax=SyntaxDiagnosis("why", 6, 12))
    assert broken[0] == [
        "diagnosis: names no line that has to change",
        "syntax: error in f line 2 column 12: why",
        "tests: not run",
        "edit: 9 tokens changed, 2 needed",
        "changed: lines 6 to 8 `y = half(x)` and 1 line more -> `return (x`",
    ]
    assert received(BugFix(1), FIXED, reference="")[0][-1] == "edit: 2 tokens changed"


def test_patchers_see_the_changes_of_the_other_patchers() -> None:
    longer = "def f(x):\n    y = half(x)\n    z = 1\n\n    return y + z"
    first, second = received(BugFixPatchers(2), HALF, longer)
    assert first[-2:] == [
        "edit: 7 tokens changed, 2 needed",
        "changed: line 8 `return y - 1` -> `z = 1` and 1 line more",
    ]
    assert second[-1] == "changed: line 2 `return n / 2` -> `return n // 2`"
    added = received(BugFix(2), RIGHT, "def f(x):\n    y = half(x)\n    y += 2\n\n    return y - 1")[0]
    assert added[-1] == "changed: between lines 6 and 8 added `y += 2`"


def test_level_passed() -> None:
    environment = BugFix(2, sandbox_slice="all")
    assert (
        received(environment, RIGHT, ROWS, mode="level_passed")
        == [
            [
                "patch: OK",
                "syntax: correct",
                "tests that passed before: all still pass",
                "tests that failed before: 2 of 3 pass now",
                "edit: larger than needed",
                "diagnosis: names a line that has to change",
            ]
        ]
        * 2
    )
    worst = received(environment, "", "", mode="level_passed", now="----")[0]
    assert worst == [
        "patch: missing patch",
        "syntax: correct",
        "tests that passed before: all still pass",
        "tests that failed before: none pass now",
        "edit: nothing changed",
        "diagnosis: missing",
    ]
    harm = received(environment, RIGHT, PATCH, mode="level_passed", now="----")[0]
    assert harm[2:4] == ["tests that passed before: none still pass", "tests that failed before: none pass now"]
    broken = received(environment, RIGHT, "def f(", mode="level_passed", syntax=SyntaxDiagnosis("why", 5, 1))[0]
    assert broken[1:3] == ["syntax: incorrect", "tests: not run"]
    assert received(BugFix(1), FIXED, mode="level_passed")[0][-1] == "edit: as small as needed"


@pytest.mark.parametrize(
    ("responses", "now", "reference", "all_passed"),
    [
        ((RIGHT, FIXED), "++++", FIXED, True),
        ((RIGHT, FIXED), "+++-", FIXED, False),
        ((RIGHT, ROWS), "++++", FIXED, False),
        ((RIGHT, ROWS), "++++", "", True),
        (("line: 1\nwhy: x", FIXED), "++++", FIXED, False),
        (("", FIXED), "++++", FIXED, False),
        ((BUGGY,), "++++", "", False),
        ((FIXED,), "++++", FIXED, True),
    ],
)
def test_passed(responses: tuple[str, ...], now: str, reference: str, all_passed: bool) -> None:
    environment = BugFix(len(responses), sandbox_slice="all")
    told = received(environment, *responses, now=now, mode="passed", reference=reference)
    assert told == [["All levels passed" if all_passed else "Not all levels passed"]] * len(responses)


def test_feedback_depends_only_on_visible_tests() -> None:
    for mode in BugFix.modes:
        told = [received(BugFix(2, sandbox_slice=2), RIGHT, PATCH, now=now, mode=mode) for now in ("++++", "++-t")]
        assert told[0] == told[1]
    one, other = (received(BugFix(2, sandbox_slice=-2), RIGHT, PATCH, now=now) for now in ("++++", "++-t"))
    assert one != other


@pytest.mark.parametrize("mode", ["level_feedback", "level_passed", "passed", "plain"])
def test_second_prompts_of_every_mode(mode: str) -> None:
    environment = BugFix(2, sandbox_slice="all")
    attempt = environment.attempt(task(), [f"Well:\n{RIGHT}\nThat is it.", f"```\n{PATCH}\n```"], last=False)
    outcome = environment.outcome(attempt, (report("+++-"), report("+---")))
    received = Transition(ExternalConfig(mode=mode), environment).next_prompts(task(), ["a", "b"], attempt, outcome)
    diagnosis, patch = asyncio.run(received).prompts
    told = [environment.feedback(attempt, outcome, mode, agent) if mode != "plain" else [] for agent in (0, 1)]
    feedback = ["Feedback:\n" + "\n".join(lines) + "\n\n" if lines else "" for lines in told]
    assert diagnosis == f"Your previous answer:\n{RIGHT}\n\n{feedback[0]}Revise your diagnosis of the bug. {FORM}"
    revise = "Revise your correction of `half` and `f`. Answer with one or more of these functions only "
    assert patch.startswith(f"Your previous answer:\n{PATCH}\n\n{feedback[1]}{revise}")
    # The other's answer comes with feedback in detail, and with nothing else.
    assert ("sign" in patch) is ("y + 1" in diagnosis) is (mode == "level_feedback")


def test_unparsed_answers_are_shown_unchanged() -> None:
    environment = BugFix(2)
    attempt = environment.attempt(task(), ["Line three.", "Nothing to fix."], last=False)
    assert list(attempt.answers) == ["Line three.", "Nothing to fix."]


def test_question_to_an_expert() -> None:
    environment = BugFix(2)
    asked = environment.question(task(), environment.attempt(task(), [RIGHT, PATCH], last=False))
    assert asked == (
        "A Python program has a bug. Programmers work on it without seeing each other's work.\n\n"
        "Problem:\nHalf of x, plus 1.\n\n"
        "The program:\n1: def half(n):\n2:     return n / 2\n3:\n4:\n5: def f(x):\n6:     y = half(x)\n7:\n"
        "8:     return y - 1\n\n"
        f"Their answers:\ndiagnosis:\n{RIGHT}\n\npatch:\n{PATCH}\n\n"
        "Suggest an edit for each of these answers: diagnosis, patch. Reply with one JSON object and nothing else. Its "
        "keys are the answers' names, its values are strings: a short suggestion, or the corrected answer."
    )
