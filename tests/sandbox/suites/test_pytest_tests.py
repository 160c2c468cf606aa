"""Tests in the style of pytest, without pytest in the sandbox."""

from __future__ import annotations

import pytest

from marl_ray.sandbox import Program, Sandbox
from marl_ray.sandbox.inside.suites.suite_parser import count_tests, parse_tests
from tests.sandbox.helpers import SHORT_LIMITS, statuses

TESTS = """\
import pytest
from solution import f

@pytest.fixture
def numbers():
    return [1, 2, 3]

@pytest.fixture
def opened(numbers):
    yield numbers + [4]

def test_simple():
    assert f(1) == 2

def test_approx():
    assert f(0.1) == pytest.approx(1.1)
    assert [f(0.1), f(0.2)] == pytest.approx([1.1, 1.2])

def test_raises():
    with pytest.raises(TypeError):
        f("a")

def test_raises_match():
    with pytest.raises(ValueError, match="negative") as info:
        f(-1)
    assert "negative" in str(info.value)

@pytest.mark.parametrize("x, expected", [(1, 2), (2, 3), pytest.param(3, 4, id="three")])
def test_many(x, expected):
    assert f(x) == expected

def test_fixture(numbers, opened):
    assert [f(n) for n in numbers] == [2, 3, 4]
    assert len(opened) == 4

class TestMore:
    def setup_method(self):
        self.x = 5

    def test_a(self):
        assert f(self.x) == 6

    def test_b(self, numbers):
        assert f(numbers[0]) == 2
"""
RIGHT = """
def f(x):
    if x < 0:
        raise ValueError("a negative number")
    return x + 1
"""
WRONG = "def f(x):\n    return x\n"
NUMBER = 10
"""Number of tests, of which three have different parameters."""


@pytest.mark.parametrize("given", [TESTS, (TESTS,)])
def test_functions_and_classes_are_tests(sandbox: Sandbox, given: str | tuple[str, ...]) -> None:
    assert count_tests(given, "f") == NUMBER
    right, wrong = sandbox.run_batch([Program(source, given, "f", limits=SHORT_LIMITS) for source in (RIGHT, WRONG)])
    assert statuses(right) == ["pass"] * NUMBER
    assert right.trusted
    assert statuses(wrong) == ["fail"] * NUMBER


def test_a_test_shows_its_source(sandbox: Sandbox) -> None:
    first, *_ = parse_tests(TESTS, "f").cases
    assert first.source == "def test_simple():\n    assert f(1) == 2\nassert_passes(test_simple())"


@pytest.mark.parametrize(
    ("test", "passes"),
    [
        ("assert f(1) == pytest.approx(2.01, abs=0.1)", True),
        ("assert f(1) == pytest.approx(2.01, rel=1e-3)", False),
        ("assert {'a': f(1)} == pytest.approx({'a': 2.0000001})", True),
        ("assert f(1) != pytest.approx(3)", True),
        ("with pytest.raises((ValueError, TypeError)):\n        f(-1)", True),
        ("with pytest.raises(KeyError):\n        f(-1)", False),
        ("with pytest.raises(ValueError, match='positive'):\n        f(-1)", False),
        ("pytest.raises(ValueError, f, -1)", True),
        ("if f(1) != 2:\n        pytest.fail('wrong')", True),
        ("if f(1) == 2:\n        pytest.fail('right')", False),
    ],
)
def test_helpers_of_pytest(sandbox: Sandbox, test: str, passes: bool) -> None:
    source = f"import pytest\n\ndef test_it():\n    {test}\n"
    report = sandbox.run(Program(RIGHT, source, "f", limits=SHORT_LIMITS))
    assert (report.passed == 1) is passes, report.tests


def test_tests_that_are_called_are_not_called_again() -> None:
    assert count_tests("def test_it():\n    assert f(1) == 2\ntest_it()\n", "f") == 1


def test_skipped_tests_do_not_count() -> None:
    source = "import pytest\n@pytest.mark.skip\ndef test_a():\n    assert False\ndef test_b():\n    assert f(1) == 2\n"
    assert count_tests(source, "f") == 1


def test_a_fixture_of_pytest_itself_is_named() -> None:
    with pytest.raises(ValueError, match="test_it uses the fixture tmp_path, which the tests do not define"):
        count_tests("def test_it(tmp_path):\n    assert f(tmp_path)\n", "f")


def test_other_names_of_pytest_are_never_the_programs(sandbox: Sandbox) -> None:
    wrong = "def f(x): return 'wrong'\ndef fail(*a): pass\ndef skip(*a): pass\ndef r(*a): return a\n"
    for imported, call in (
        ("from pytest import fail", "fail('wrong')"),
        ("import pytest", "pytest.fail('wrong')"),
        ("import pytest", "pytest.skip('wrong')"),
        ("from pytest import fail as r", "r('wrong')"),
        ("import pytest as p", "p.fail('wrong')"),
    ):
        test = f"{imported}\ndef test_f():\n    if f(1) != 2:\n        {call}\n"
        report = sandbox.run(Program(wrong, test, "f", limits=SHORT_LIMITS))
        assert report.passed == 0, call
        right = sandbox.run(Program("def f(x): return x + 1", test, "f", limits=SHORT_LIMITS))
        assert right.passed == 1, call
    with pytest.raises(ValueError, match=r"the tests use pytest\.warns"):
        parse_tests(("import pytest\ndef test_f():\n    with pytest.warns(Warning):\n        f(1)\n",), "f")


def test_a_fixture_that_yields_ends_after_the_test(sandbox: Sandbox) -> None:
    test = """
import pytest
pytestmark = pytest.mark.fast

@pytest.fixture
def numbers():
    given = [1]
    try:
        yield given
    finally:
        given.clear()

@pytest.mark.slow
class TestF:
    def test_f(self, numbers):
        assert f(numbers[0]) == 2

@pytest.mark.parametrize(argnames="x", argvalues=[1, 2])
def test_many(x):
    assert f(x) == x + 1

if __name__ == "__main__":
    pytest.main()
"""
    report = sandbox.run(Program("def f(x): return x + 1", test, "f", limits=SHORT_LIMITS))
    assert statuses(report) == ["pass"] * 3, report.tests


@pytest.mark.parametrize("mark", ["parametrize", "parametrize(5, [1])", "parametrize('x')", "parametrize(x, [1])"])
def test_an_odd_parametrize_is_refused(mark: str) -> None:
    with pytest.raises(ValueError, match="parametrize needs"):
        parse_tests((f"import pytest\n@pytest.mark.{mark}\ndef test_f(x):\n    assert f(x) == 2\n",), "f")


def test_a_condition_skips_no_test_and_a_fixture_without_an_argument_is_refused() -> None:
    test = "import pytest, sys\n@pytest.mark.{mark}\ndef test_f():\n    assert f(1) == 2\n"
    assert count_tests(test.format(mark="skipif(sys.version_info < (3, 8), reason='')"), "f") == 1
    with pytest.raises(ValueError, match="tests contain no test"):
        parse_tests((test.format(mark="skip"),), "f")
    with pytest.raises(ValueError, match="test_f has usefixtures"):
        parse_tests((test.format(mark="usefixtures('x')"),), "f")


def test_a_fixture_that_all_tests_use_is_refused() -> None:
    test = "import pytest\n@pytest.fixture(autouse=True)\ndef setup():\n    pass\ndef test_f():\n    assert f(1) == 2\n"
    with pytest.raises(ValueError, match="the fixture setup has autouse"):
        parse_tests((test,), "f")
