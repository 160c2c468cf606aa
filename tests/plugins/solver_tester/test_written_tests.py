"""Parsing of written tests."""

from __future__ import annotations

import pytest

from marl_ray.core.episode import Task
from marl_ray.plugins.solver_tester.attempt import MAX_TESTS, solution_attempt, written_tests
from marl_ray.testing.environments import UNUSUAL_RESPONSES

FENCED = "Here are the tests:\n```python\nassert f(1) == 2\nassert f(x=[1, 2], y=-3) == {'a': (None, True)}\n```\n"


@pytest.mark.parametrize(
    ("response", "tests"),
    [
        ("assert f(1) == 2", ("assert f(1) == 2",)),
        ("assert f( 1 )==2, 'why'\nassert f(1) == 2", ("assert f(1) == 2",)),
        (FENCED, ("assert f(1) == 2", "assert f(x=[1, 2], y=-3) == {'a': (None, True)}")),
        ("def test_f():\n    assert f() == 'a b'\n", ("assert f() == 'a b'",)),
        ("assert f([\n    1,\n    2,\n]) == 3", ("assert f([1, 2]) == 3",)),
        ("1. assert this\n  assert f(1) == 2\nand assert f(2) == 3", ("assert f(1) == 2",)),
        ("assert f(1) == 1e3 and True\nassert f(2) == 1e3", ("assert f(2) == 1000.0",)),
    ],
)
def test_tests_are_rebuilt_from_literals(response: str, tests: tuple[str, ...]) -> None:
    assert written_tests(response, "f") == tests


@pytest.mark.parametrize(
    "test",
    [
        "assert g(1) == 2",
        "assert f(1)",
        "assert not f(1) == 2",
        "assert f(1) != 2",
        "assert f(1) == 2 == 2",
        "assert 2 == f(1)",
        "assert f(f(1)) == 2",
        "assert f(1) == f(1)",
        "assert f(*[1]) == 2",
        "assert f(**{'x': 1}) == 2",
        "assert f(10**10**10) == 2",
        "assert f('a' * 10**9) == 2",
        "assert f(1) == __import__('os').getpid()",
        "assert f((x := 1)) == 2",
        "assert f([y for y in range(3)]) == 2",
        "assert f({[]: 1}) == 2",
        "assert f(f'{1}') == 2",
        "assert f.g(1) == 2",
        "assert (lambda x: 2)(1) == 2",
        "assert f(1) == (yield)",
        "assert f(x=1, x=2) == 2",
        "assert f(__debug__=1) == 2",
        f"assert f(0x{'f' * 4000}) == 2",
        f"assert f('{'a' * 600}') == 2",
        f"assert f({'[' * 300}{']' * 300}) == 2",
    ],
)
def test_other_forms_are_ignored(test: str) -> None:
    assert written_tests(test, "f") == ()
    assert written_tests(f"{test}\nassert f(1) == 2", "f") in (("assert f(1) == 2",), ()), "no harm to others"


def test_the_number_of_tests_is_limited() -> None:
    many = "\n".join(f"assert f({n}) == {n}" for n in range(100))
    assert written_tests(many, "f") == tuple(f"assert f({n}) == {n}" for n in range(MAX_TESTS))
    assert written_tests(f"Well:\n{many}", "f") == tuple(f"assert f({n}) == {n}" for n in range(MAX_TESTS))
    for response in UNUSUAL_RESPONSES:
        assert written_tests(response, "f") == ()


def test_tests_with_equal_arguments_count_once() -> None:
    lines = ["f(1, 2) == 3", "f(1, 2) == 4", "f(1.0, 2) == 3", "f(1, b=2) == 3", "f(a=1, b=2) == 3", "f(2, 1) == 3"]
    response = "\n".join(f"assert {line}" for line in lines)
    assert written_tests(response, "f", ("a", "b")) == ("assert f(1, 2) == 3", "assert f(2, 1) == 3")
    assert len(written_tests(response, "f")) == 4, "without parameters, keywords are other arguments"


def test_the_reference_names_the_parameters() -> None:
    fields = {"entry_point": "f", "tests": ("assert f(1) == 2",), "reference": "def f(x):\n    return 2 * x\n"}
    task = Task("t", "Double.", fields)
    attempt = solution_attempt(task, ["assert f(1) == 2\nassert f(x=1) == 2", fields["reference"]], None)
    assert attempt.written == (("assert f(1) == 2",),)
