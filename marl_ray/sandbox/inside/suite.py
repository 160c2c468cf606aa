"""The tests of one problem, split into cases."""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import Literal

Form = Literal["auto", "check", "asserts", "stdio", "unittest"]

COMPARE = "__sandbox_compare__"
TRUTH = "__sandbox_truth__"
"""Names of the judge's recording functions, which instrumented asserts call."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test. `source` is shown in reports; `code` (instrumented) is for the judge, `plain` for the guest.

    The form "stdio" has `stdin` and `stdout` instead of code, "unittest" has the `unit` (class, method).
    """

    source: str
    code: CodeType | None = None
    plain: str = ""
    stdin: str = ""
    stdout: str = ""
    unit: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Suite:
    """All cases of a problem.

    `remote` are the names the tests take from the program. `helpers` is the code of what the prompt defines,
    run in the judge before the tests; `preamble` is the same as source. `in_guest` says why the judge cannot
    evaluate these tests itself, or is empty. `source` is the whole test source, for unittest.
    """

    form: Form
    cases: tuple[Case, ...]
    remote: frozenset[str] = frozenset()
    helpers: tuple[CodeType, ...] = ()
    preamble: tuple[str, ...] = ()
    in_guest: str = ""
    source: str = ""
