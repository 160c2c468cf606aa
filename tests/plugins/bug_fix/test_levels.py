"""Reward levels of bug fixing."""

from __future__ import annotations

import pytest

from marl_ray.config import from_tree
from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments import ENVIRONMENTS
from marl_ray.plugins.bug_fix.environment import BugFix, BugFixPatchers
from marl_ray.sandbox import ExecutionReport, SyntaxDiagnosis
from tests.plugins.bug_fix.helpers import BUGGY, FIXED, PATCH, RIGHT, ROWS, TESTS, WRONG, report, task


def assess(
    *responses: str, now: str = "++++", was: str = "++--", reference: str = FIXED, environment: BugFix | None = None
) -> Outcome:
    environment = environment or BugFix(len(responses))
    attempt = environment.attempt(task(reference=reference), responses, last=True)
    found = environment.outcome(attempt, (report(now), report(was)))
    assert found.reward == pytest.approx(sum(found.levels.values()))
    assert found.reward <= environment.max_reward
    return found


def test_a_correct_solution_earns_the_maximum() -> None:
    found = assess(RIGHT, FIXED)
    assert found.reward == BugFix(2).max_reward == 3.5
    assert found.levels == {"parses": 0.5, "kept": 0.5, "fixed": 1.5, "small": 0.5, "diagnosis": 0.5}
    assert found.metrics == {
        "patch_given": 1.0,
        "syntax_ok": 1.0,
        "tests_passed_rate": 1.0,
        "all_passed": 1.0,
        "tests_kept_rate": 1.0,
        "tests_fixed_rate": 1.0,
        "changed_lines": 2.0,
        "changed_tokens": 2.0,
        "diagnosis_given": 1.0,
        "diagnosis_right": 1.0,
    }
    assert found.counts == {"sandbox/untrusted": 0, "sandbox/timeouts": 0}
    alone = assess(FIXED)
    assert alone.reward == BugFix(1).max_reward == BugFixPatchers(2).max_reward == 3.0
    assert "diagnosis" not in alone.levels


@pytest.mark.parametrize(
    ("now", "was", "levels"),
    [
        ("++--", "++--", (0.5, 0.5, 0.0, 0.0)),  # nothing fixed, nothing broken
        ("+++-", "++--", (0.5, 0.5, 0.75, 0.0)),
        ("-+++", "++--", (0.5, 0.25, 1.5, 0.0)),  # breaks one test
        ("--++", "++--", (0.5, 0.0, 1.5, 0.0)),
        ("----", "----", (0.5, 0.5, 0.0, 0.0)),  # no test passed before
        ("++++", "----", (0.5, 0.5, 1.5, 0.5)),
        ("++++", "t---", (0.5, 0.5, 1.5, 0.5)),
        ("++++", "++++", (0.5, 0.5, 0.0, 0.0)),  # no test failed before
    ],
)
def test_kept_and_fixed_tests_earn_their_shares(now: str, was: str, levels: tuple[float, ...]) -> None:
    found = assess(FIXED, now=now, was=was).levels
    assert (found["parses"], found["kept"], found["fixed"], found["small"]) == levels


@pytest.mark.parametrize(
    ("patch", "reference", "small"),
    [
        (FIXED, FIXED, 0.5),
        (PATCH, FIXED, 0.5),  # smaller than the reference
        (ROWS, FIXED, 0.5 * 2 / 12),
        (PATCH.replace("\n\n", "\n"), FIXED, 0.5),  # blank lines do not count
        (PATCH.replace("y = half(x)", "# half\n    y = half(x)"), BUGGY.replace("y - 1", "y + 1"), 0.5 / 4),
        (PATCH, "", 0.5 * 28 / 29),  # without a reference: the share of unchanged tokens
        ("def f(x):\n" + "    x = x + 0\n" * 9 + "    return x", "", 0.0),
    ],
)
def test_patch_size_is_relative_to_the_reference(patch: str, reference: str, small: float) -> None:
    assert assess(patch, reference=reference).levels["small"] == pytest.approx(small)
    assert assess(patch, reference=reference, now="+++-").levels["small"] == 0.0


@pytest.mark.parametrize(
    ("diagnosis", "patch", "now", "level", "right"),
    [
        (RIGHT, FIXED, "++++", 0.5, 1.0),
        ("line: 2\nwhy: division", FIXED, "++++", 0.5, 1.0),
        ("line: 2\nwhy: division", PATCH, "++++", 0.5, 1.0),  # the reference changes it
        (WRONG, FIXED, "++++", 0.0, 0.0),
        (RIGHT, FIXED, "+++-", 0.0, 0.0),  # not accepted
        ("line: 8", FIXED, "++++", 0.0, 0.0),  # not in its form
        ("", FIXED, "++++", 0.0, 0.0),
        ("line: 6\nwhy: division", ROWS, "++++", 0.0, 0.0),  # only this patch changes it
        ("line: 8\nwhy: sign", ROWS, "++++", 0.5 * 2 / 12, 1.0),  # with a large patch
    ],
)
def test_a_diagnosis_must_name_a_line_that_the_reference_changes(
    diagnosis: str, patch: str, now: str, level: float, right: float
) -> None:
    found = assess(diagnosis, patch, now=now)
    assert found.levels["diagnosis"] == pytest.approx(level)
    assert found.metrics["diagnosis_right"] == right


def test_a_diagnosis_without_a_reference_must_name_a_line_that_the_patch_changes() -> None:
    assert assess("line: 2\nwhy: division", PATCH, reference="").levels["diagnosis"] == 0.0
    assert assess(RIGHT, PATCH, reference="").metrics["diagnosis_right"] == 1.0


REPLACED = "lambda f: lambda x: x // 2 + 1"


@pytest.mark.parametrize(
    "head",
    [
        f"@({REPLACED})\ndef f(x):",
        f"def f(x, g={REPLACED}):",
        f"def f(x, *, g={REPLACED}):",
        "def f(x: print(1)):",
        "def f(x) -> [y for y in 'ab']:",
    ],
)
def test_new_code_outside_of_the_body_is_refused(head: str) -> None:
    """Refuse it in one line too: it replaces the function without a change of the body."""
    patch = f"{head}\n    y = half(x)\n\n    return y - 1"
    environment = BugFix(2)
    attempt = environment.attempt(task(), [WRONG, patch], last=True)
    assert (attempt.patches[0].refused, attempt.tokens) == (("f",), 0)
    found = environment.outcome(attempt, (report("++++"), report("++--")))
    assert (found.reward, found.metrics["patch_given"]) == (0.0, 0.0)
    assert "f: refused (a new decorator or default; change the body)" in environment.feedback(
        attempt, found, "level_feedback", 1
    )


def test_decorators_and_defaults_of_program_and_reference_are_accepted() -> None:
    patch = "@cache\ndef f(x: int, k: 'int | None' = 1) -> list[int]:\n    return half(x) + k"
    buggy = "from functools import cache\n\n" + BUGGY.replace("def f(x)", "@cache\ndef f(x)")
    for reference, refused in ((FIXED.replace("def f(x)", "def f(x, k=1)"), ()), (FIXED, ("f",))):
        attempt = BugFix(1).attempt(task(buggy, reference), [patch], last=True)
        assert attempt.patches[0].refused == refused


def test_a_rewritten_function_on_one_line_is_no_small_patch() -> None:
    one_line = "def f(x): return (lambda a, b: a // b + len([a][1:]) + 1)(x, 2) if x or not x else half(x) - 1"
    encoded = f"def f(x): return eval(bytes.fromhex('{'787f' * 40}'))"
    for patch in (one_line, encoded):
        assert assess(patch).levels["small"] < 0.5 * 0.1


@pytest.mark.parametrize("patch", ["", "I cannot.", "def g(x):\n    return x", "x = 1", "class f:\n    pass"])
def test_no_patch_earns_nothing(patch: str) -> None:
    found = assess(RIGHT, patch, now="++--")
    assert (found.reward, found.metrics["patch_given"], found.metrics["diagnosis_given"]) == (0.0, 0.0, 1.0)


def test_a_program_that_does_not_compile_earns_nothing() -> None:
    environment = BugFix(2)
    attempt = environment.attempt(task(), [RIGHT, "def f(x):\n    return (x"], last=True)
    broken = report("----", syntax=SyntaxDiagnosis("never closed", 6, 12))
    found = environment.outcome(attempt, (broken, report("++--")))
    assert (found.reward, found.metrics["syntax_ok"]) == (0.0, 0.0)
    # Not even a report that claims passed tests earns more.
    claimed = report("++++", syntax=SyntaxDiagnosis("never closed", 6, 12))
    assert environment.outcome(attempt, (claimed, report("++--"))).reward == 0.0


def test_several_patchers_change_disjoint_functions() -> None:
    half = "def half(n):\n    return n // 2"
    both = assess(half, PATCH, environment=BugFixPatchers(2))
    assert both.reward == 3.0
    assert both.metrics["changed_lines"] == 2
    one = assess("", PATCH, environment=BugFixPatchers(2))
    assert (one.levels["parses"], one.metrics["patch_given"], one.metrics["changed_lines"]) == (0.25, 0.5, 1.0)
    other = assess(PATCH, half, now="++--", environment=BugFixPatchers(2))  # each patches the other's function
    assert (other.reward, other.metrics["changed_lines"]) == (0.0, 0.0)
    assert assess(RIGHT, half, PATCH).reward == 3.5


def test_the_sandbox_executes_patched_and_buggy_program() -> None:
    environment = BugFix(2, sandbox_slice=2)
    after, before = environment.attempt(task(), [RIGHT, PATCH], last=False).program
    assert (after.source, before.source) == (BUGGY.replace("y - 1", "y + 1") + "\n", BUGGY + "\n")
    assert (after.visible, before.visible, after.tests, after.entry_point) == (2, 2, TESTS, "f")
    same = environment.attempt(task(), [WRONG, "def f(x):\n    y = half(x)\n\n    return y - 1"], last=False).program
    assert same[0].key == same[1].key == before.key, "a patch that changes nothing is executed once, with the program"
    assert environment.attempt(task(), [RIGHT, PATCH], last=True).program[0].visible is None


def test_a_patch_that_changes_nothing_fixes_nothing() -> None:
    """Check this even for a test that times out in only one of the two executions."""
    environment = BugFix(1)
    attempt = environment.attempt(task(), [BUGGY], last=True)
    for now, was in (("++++", "++-t"), ("+t--", "++--")):
        assert environment.outcome(attempt, (report(now), report(was))).reward == 1.0


def test_count_untrusted_decides_about_forgeable_passes() -> None:
    environment = BugFix(1, count_untrusted=False)
    attempt = environment.attempt(task(), [PATCH], last=True)
    found = environment.outcome(attempt, (report("++++", trusted=False), report("++--")))
    assert (found.levels["kept"], found.levels["fixed"], found.counts["sandbox/untrusted"]) == (0.0, 0.0, 1)


def test_a_task_without_trusted_tests_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    tree = {"model": {"name": "m"}, "dataset": {"name": "quixbugs.jsonl"}, "magrpo": {"num_agents": 1}}
    environment = BugFix.from_config(from_tree(tree, "magrpo"))
    attempt = environment.attempt(task(), [PATCH], last=True)
    for _ in range(2):
        assert environment.outcome(attempt, (report("++++", trusted=False), report("++--"))).levels["fixed"] == 0.0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "set sandbox.count_untrusted: true" in caplog.text


@pytest.mark.parametrize("place", [0, 1])
def test_an_infrastructure_error_gives_no_verdict(place: int) -> None:
    lost = ExecutionReport((), None, "", 0.0, 0.0, "none", True, infra_error="no worker")
    reports = [report("++++"), report("++--")]
    reports[place] = lost
    attempt = BugFix(1).attempt(task(), [PATCH], last=True)
    found = BugFix(1).outcome(attempt, (reports[0], reports[1]))
    assert (found.failure, found.reward, found.metrics) == ("no worker", 0.0, {})


def test_evidence_of_an_outcome() -> None:
    found = assess(RIGHT, PATCH, now="+++-")
    assert found.evidence is not None
    data = found.evidence.data()
    assert (data["report"]["passed"], data["passed_before"]) == (3, [0, 1])
    assert found.evidence.lines() == ["[sandbox] 3 of 4 tests passed, 2 before the patch", "    fail: assert f(3) == 2"]


def test_unsupported_tasks_are_rejected() -> None:
    BugFixPatchers(2).check_task(task())
    BugFix(3).check_task(task())
    with pytest.raises(UserError, match="task t/1 has 2 functions for 3 patchers: lower num_agents by 1"):
        BugFix(4).check_task(task())
    with pytest.raises(UserError, match="task t/2 has no buggy program: set dataset"):
        BugFix(2).check_task(Task("t/2", "Do.", {"entry_point": "f", "tests": TESTS}))
    with pytest.raises(ValueError, match="num_agents must be at least 1"):
        BugFix(0)


def test_from_config() -> None:
    tree = {"magrpo": {"num_agents": 3}, "sandbox": {"count_untrusted": False}, "external": {"sandbox_slice": -2}}
    base = {"model": {"name": "m"}, "dataset": {"name": "quixbugs.jsonl"}}
    config = from_tree(base | tree, "magrpo")
    assert (config.dataset.type, config.environment) == ("bug_fix", "bug_fix")
    environment = ENVIRONMENTS.get(config.environment).from_config(config)
    assert environment.roles(task()) == ["diagnosis", "patch_1", "patch_2"]
    assert environment.attempt(task(), ["", "", PATCH], last=False).program[0].visible == -2
    patchers = ENVIRONMENTS.get("bug_fix_patchers").from_config(config)
    assert patchers.roles(task()) == ["patch_1", "patch_2", "patch_3"]
