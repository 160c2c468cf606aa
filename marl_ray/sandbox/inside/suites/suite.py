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
"""Names of the judge's functions that instrumented tests call."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test.

    - `source`: the text shown in reports
    - `code`, `plain`: instrumented code for the judge, and plain source for the guest (asserts only)
    - `in_guest`: why the judge cannot evaluate this test; empty if it can
    - `compares`: the test compares objects of the program with each other, so the program must be asked
    - `stdin`, `stdout`: input and expected output (form "stdio" only)
    - `unit`: class and method (form "unittest" only)
    """

    source: str
    code: CodeType | None = None
    plain: str = ""
    in_guest: str = ""
    compares: bool = False
    variables: VariableFlow = field(default_factory=VariableFlow)
    stdin: str = ""
    stdout: str = ""
    unit: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Suite:
    """All cases of a problem.

    - `remote`: names that the tests take from the program
    - `helpers`: code of the prompt's definitions, which the judge runs before the tests
    - `preamble`: sources of these definitions, and of the tests' own definitions that tests in the guest need
    - `standard`: names of the standard library that the tests use without an import (see `stdlib_names`)
    - `uses_random`, `patches`: the tests may draw random numbers, or change modules (restored afterwards)
    - `source`: the whole test source (form "unittest" only)
    """

    form: Form
    cases: tuple[Case, ...]
    remote: frozenset[str] = frozenset()
    helpers: tuple[CodeType, ...] = ()
    preamble: tuple[str, ...] = ()
    standard: Mapping[str, str] = field(default_factory=dict)
    uses_random: bool = False
    patches: bool = False
    source: str = ""
