"""The tests of one problem, split into cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Literal

from .statements import VariableFlow

Form = Literal["auto", "check", "asserts", "stdio", "unittest"]

COMPARE = "__sandbox_compare__"
TRUTH = "__sandbox_truth__"
SAME = "__sandbox_same__"
OPERATE = "__sandbox_operate__"
ALL = "__sandbox_all__"
ASKED = "__sandbox_asked__"
"""Names of the judge's functions that instrumented tests call."""
FIXTURES = ("setUp", "tearDown", "setUpClass", "tearDownClass", "asyncSetUp", "asyncTearDown", "run", "__init__")
"""Methods of a unittest class that run around its tests. Their assertions do not count as assertions of a test."""
REACHED = "__sandbox_reached__"
"""Name of a set that is empty until a test evaluates an assertion."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test.

    - `source`: the text shown in reports
    - `code`: instrumented code for the judge
    - `plain`: the source of the statements (asserts only)
    - `for_guest`: the source for the guest, which fails if no assertion was reached (asserts only)
    - `in_guest`: why the judge cannot evaluate this test; empty if it can
    - `compares`: the test compares objects of the program with each other, so the program must be asked
    - `stdin`, `stdout`: input and expected output (form "stdio" only)
    - `unit`: class and method (form "unittest" only)
    - `asserts`: the method contains an assertion; without one it passes if nothing is raised (form "unittest" only)
    """

    source: str
    code: CodeType | None = None
    plain: str = ""
    for_guest: str = ""
    in_guest: str = ""
    compares: bool = False
    variables: VariableFlow = field(default_factory=VariableFlow)
    stdin: str = ""
    stdout: str = ""
    unit: tuple[str, str] | None = None
    asserts: bool = True


@dataclass(frozen=True, slots=True)
class Suite:
    """All cases of a problem.

    - `remote`: names that the tests take from the program
    - `helpers`: code of the prompt's definitions, which the judge runs before the tests
    - `preamble`: sources of these definitions, and of the tests' own definitions that tests in the guest need; and
      whether a definition replaces the program's (only a definition of the tests does)
    - `classes`: sources of the tests' classes that the program may use, such as LeetCode's ListNode
    - `standard`: names of the standard library that the tests use without an import (see `stdlib_names`)
    - `uses_random`, `patches`: the tests may draw random numbers, or change modules
    - `leaves_nothing`: nothing remains of the tests in the process that evaluates them (see `lasting_effects`)
    - `source`, `module`: the whole test source, and its instrumented code (form "unittest" only)
    """

    form: Form
    cases: tuple[Case, ...]
    remote: frozenset[str] = frozenset()
    helpers: tuple[CodeType, ...] = ()
    preamble: tuple[tuple[str, bool], ...] = ()
    classes: tuple[str, ...] = ()
    standard: Mapping[str, str] = field(default_factory=dict)
    uses_random: bool = False
    patches: bool = False
    leaves_nothing: bool = False
    source: str = ""
    module: CodeType | None = None
