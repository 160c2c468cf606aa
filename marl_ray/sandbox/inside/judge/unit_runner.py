"""Evaluation of unittest methods in the judge, with the program's classes as proxies."""

from __future__ import annotations

import unittest
from types import CodeType
from typing import Any

from .evaluation_context import CONTEXT, GuestFault, Refused
from .guest_session import GuestSession
from .zygote_client import ZygoteError


class UnitRunner:
    """Runner of the test methods of one module, for one guest. Fixtures of a class run once, around its methods.

    As in CPython, an error of the module or of `setUpClass` is the error of every method, and an error of a class's
    `tearDownClass` is the error of no method.
    """

    def __init__(self, session: GuestSession, code: CodeType, names: dict[str, Any]) -> None:
        self.session = session
        self._code: CodeType | None = code
        self._names = names
        self._class: Any = None
        self._errors: dict[Any, BaseException] = {}
        """Errors of the module (key None) and of classes; refused operations too, even if the fixture caught them."""

    def run(self, class_name: str, method: str) -> None:
        """Evaluate one method. Raises its first exception, or `unittest.SkipTest`."""
        code = self._code
        if code is not None:
            self._code = None
            self._prepare(None, lambda: exec(code, self._names))
            self._prepare(None, self._names.get("setUpModule", lambda: None))
        self._raise_error(None)
        kind = self._names[class_name]
        if kind is not self._class:
            self._enter(kind)
        self._raise_error(kind)
        result = _FirstProblem()
        kind(method).run(result)
        if result.problem is not None:
            raise result.problem

    def _enter(self, kind: Any) -> None:
        """Run the fixtures between two classes."""
        previous = self._class
        self._class = kind
        if previous is not None and not getattr(previous, "__unittest_skip__", False):
            for clean_up in (previous.tearDownClass, previous.doClassCleanups):
                self._prepare(previous, clean_up)
        if not getattr(kind, "__unittest_skip__", False):
            self._prepare(kind, kind.setUpClass)

    def _prepare(self, key: Any, action: Any) -> None:
        try:
            action()
        except (GuestFault, ZygoteError):
            raise
        except BaseException as error:
            self._errors.setdefault(key, error)
        if CONTEXT.refusal is not None:
            self._errors[key] = CONTEXT.refuse(CONTEXT.refusal)

    def _raise_error(self, key: Any) -> None:
        error = self._errors.get(key)
        if isinstance(error, Refused):
            CONTEXT.refuse(str(error))
        if error is not None:
            raise error


class _FirstProblem(unittest.TestResult):
    """Result of one test method: its first failure or error, else its skip. Failures of the guest are raised at once,
    although `unittest` catches all exceptions."""

    def __init__(self) -> None:
        super().__init__()
        self.problem: BaseException | None = None

    def addError(self, test: Any, err: Any) -> None:
        error = err[1]
        if isinstance(error, (GuestFault, ZygoteError)):
            raise error
        if self.problem is None or isinstance(self.problem, unittest.SkipTest):
            self.problem = error

    addFailure = addError

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addError(subtest, err)

    def addSkip(self, test: Any, reason: str) -> None:
        self.problem = self.problem or unittest.SkipTest(reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        if isinstance(err[1], (GuestFault, ZygoteError)):
            raise err[1]

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.problem = self.problem or AssertionError("unexpected success")
