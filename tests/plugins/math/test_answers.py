"""Stated answers, exact comparison, rows of GSM8K and MATH, and symbolic comparison in the sandbox."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import pytest

from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.data import infer_type
from marl_ray.data.loading import load_tasks
from marl_ray.plugins.math.answers import MAX_ANSWER_CHARS, same_answer, stated_answer
from marl_ray.plugins.math.options import MathConfig
from marl_ray.plugins.math.rows import MATH
from marl_ray.plugins.math.solver_verifier import SolverVerifier
from marl_ray.plugins.math.symbolic import PACKAGES, equality_program
from marl_ray.sandbox import Sandbox, SandboxSettings
from marl_ray.testing import check_dataset

GSM8K = {
    "question": "A mill grinds 1,000 sacks in autumn and half as many in spring. How many sacks are that?",
    "answer": "In spring it grinds 1000/2 = <<1000/2=500>>500 sacks.\nThat makes <<1000+500=1500>>1500.\n#### 1,500",
}
MATH_ROW = {
    "problem": "What is the positive root of $x^2 = 8$?",
    "solution": "As $8 = 4\\cdot 2$, it is $\\boxed{2\\sqrt{2}}$.",
    "level": "Level 2",
    "type": "Algebra",
}
MATH_500 = {
    "problem": "Half of $1$?",
    "solution": "$\\boxed{\\frac12}$",
    "answer": "\\frac{1}{2}",
    "subject": "Prealgebra",
}


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("#### 3\nNo:\n#### 4.", "4"),
        (r"\boxed{1} and then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{5} #### 6", "6"),
        (r"#### 6 or \boxed{5}", "5"),
        (r"\boxed{\text{a}", ""),  # a brace that nothing closes
        ("It costs $1,250.50 in all.", "1,250.50"),
        ("from 5-3 follows 2, so x2", "2"),
        ("It falls to -7 degrees.", "-7"),
        ("no number", ""),
        ("", ""),
        ("####", ""),
        ("#### " + "9" * (MAX_ANSWER_CHARS + 1), ""),
        (r"\boxed{" * 5000, ""),
    ],
)
def test_the_last_stated_answer_counts(response: str, answer: str) -> None:
    assert stated_answer(response) == answer


@pytest.mark.parametrize(
    ("reference", "answer", "equal"),
    [
        ("18", "18.0", True),
        ("1500", "1,500 clips", True),
        ("0.5", r"\dfrac{1}{2}", True),
        ("1/2", "$0.50", True),
        ("50", r"50\%", True),
        ("90", r"90^\circ", True),
        ("5", r"5\text{ cm}", True),
        ("-3", "\N{MINUS SIGN}3", True),
        ("18", "19", False),
        ("18", "", False),
        ("18", "1/0", None),
        ("2", "2x", None),
        ("2", "9**9**9", None),
        ("2", "1, 2, 3", None),
        ("x+1", "x + 1", True),
        ("x+1", "1+x", None),
    ],
)
def test_numbers_are_compared_by_value(reference: str, answer: str, equal: bool | None) -> None:
    assert same_answer(reference, answer) is equal


def test_hostile_texts_are_read_at_once() -> None:
    start = time.process_time()
    for text in ("7" * 40_000, "1," * 20_000, "#### " * 8_000, "\\boxed{" * 6_000, "1/" * 20_000, "-" * 40_000):
        same_answer("2", stated_answer(text))
        same_answer(text[:MAX_ANSWER_CHARS], text[:MAX_ANSWER_CHARS])
    assert time.process_time() - start < 2.0


def test_rows_of_gsm8k_and_math_need_no_renaming() -> None:
    fields = [MATH.task(row, 0).fields for row in (GSM8K, MATH_ROW, MATH_500)]
    assert [field["reference"] for field in fields] == ["1,500", r"2\sqrt{2}", r"\frac{1}{2}"]
    assert (fields[1]["level"], fields[1]["type"], fields[2]["type"]) == ("Level 2", "Algebra", "Prealgebra")
    assert MATH.task({"problem": "p", "answer": 204}, 0).fields["reference"] == "204"
    check_dataset(MATH, [GSM8K, MATH_ROW, MATH_500])
    for row in ({"question": "p"}, {"answer": "#### 3"}, {"problem": "p", "solution": "no mark"}):
        with pytest.raises(UserError):
            MATH.task(row, 0)


@pytest.mark.parametrize("name", ["openai/gsm8k:main", "HuggingFaceH4/MATH-500", "data/hendrycks_math.jsonl"])
def test_names_of_the_public_sets_select_the_type(name: str) -> None:
    assert infer_type(name) == "math"


def test_the_bundled_set_has_numbers_and_no_problem_in_both_splits() -> None:
    train = load_tasks("bundled:arithmetic", "train")
    held_out = load_tasks("bundled:arithmetic", "eval")
    assert (len(train), len(held_out)) == (256, 96)
    assert not {task.prompt for task in train} & {task.prompt for task in held_out}
    for task in train + held_out:
        assert 0 <= int(task.fields["reference"]) <= 40


@pytest.mark.slow
def test_expressions_are_compared_in_the_sandbox(tmp_path: Path) -> None:
    if importlib.util.find_spec("math_verify") is None:
        pytest.skip("needs the extra math")
    witness = tmp_path / "witness"
    answers = {
        r"\sqrt{8}": True,
        r"2\cdot 2^{1/2}": True,
        r"2\sqrt{3}": False,
        "9**9**9": False,
        r"100000!!!": False,  # never ends
        f"__import__('pathlib').Path('{witness}').touch()": False,
        "(" * 150: False,
        "}" + "{" * 20: False,
        "'\"\\": False,
    }
    with Sandbox(SandboxSettings(packages=PACKAGES)) as sandbox:
        report = sandbox.run(equality_program(r"2\sqrt{2}", list(answers)))
        environment = SolverVerifier(2, MathConfig(answers="symbolic", verifier="corrects"))
        task = Task("r", "p", {"reference": r"2\sqrt{2}"})
        attempt = environment.attempt(task, [r"\boxed{\sqrt{8}}", r"\boxed{\sqrt{3}}"], last=True)
        assert attempt.program is not None
        outcome = environment.outcome(attempt, sandbox.run(attempt.program))
    assert report.infra_error is None
    assert {answer: test.status == "pass" for answer, test in zip(answers, report.tests, strict=True)} == answers
    assert not witness.exists()
    assert outcome.rewards == (1.0, 0.0)
