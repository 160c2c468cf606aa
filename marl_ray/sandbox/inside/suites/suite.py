"""The tests of one problem, split into cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Literal

from .variable_flow import VariableFlow

Form = Literal["auto", "check", "asserts", "stdio", "unittest"]

COMPARE = "__sandbox_compare__"
TRUTH = "__sandbox_truth__"
SAME = "__sandbox_same__"
OPERATE = "__sandbox_operate__"
ALL = "__sandbox_all__"
"""Names of the judge's own functions, which instrumented tests call."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test. `source` is shown in reports; `code` (instrumented) is for the judge, `plain` for the guest.

    The form "stdio" has `stdin` and `stdout` instead of code, "unittest" has the `unit` (class, method). `in_guest`
    says why the judge cannot evaluate this test, or is empty. `compares`: whether it compares the program's objects
    with each other, so that the program has to be asked. `variables`: what it may hand on to others.
    """

    source: str
    code: CodeType | None = None
    plain: str = ""
    stdin: str = ""
    stdout: str = ""
    unit: tuple[str, str] | None = None
    in_guest: str = ""
    compares: bool = False
    variables: VariableFlow = field(default_factory=VariableFlow)


@dataclass(frozen=True, slots=True)
class Suite:
    """All cases of a problem.

    `remote` are the names the tests take from the program, `standard` those of the standard library that they use
    without an import (see `trust_analysis.standard_names`). `helpers` is the code of what the prompt defines, run in the judge
    before the tests; `preamble` is the same as source, with what of the tests' own definitions those in the guest need.
    `draws`: whether they may draw random numbers; `patches`: whether they may change modules, which have to be put
    right afterwards. `source` is the whole test source, for unittest.
    """

    form: Form
    cases: tuple[Case, ...]
    remote: frozenset[str] = frozenset()
    helpers: tuple[CodeType, ...] = ()
    preamble: tuple[str, ...] = ()
    standard: Mapping[str, str] = field(default_factory=dict)
    draws: bool = False
    patches: bool = False
    source: str = ""
