"""A class to complete, and solutions of its methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_ray.core.episode import Outcome, Task
from marl_ray.plugins.code_completion.attempt import ClassAttempt
from marl_ray.plugins.code_completion.environment import CodeCompletion
from marl_ray.sandbox import ExecutionReport, SyntaxDiagnosis, TestResult

SKELETON = '''\
import math


class Stack:
    """A stack of numbers."""

    def __init__(self):
        self.items = []

    def push(self, item):
        """
        Put an item on top.
        >>> Stack().push(1)
        """

    def pop(self):
        """Take the top item away, and return it."""

    def replace(self, item, count=1):
        """Put an item in the place of the top ones."""

    @staticmethod
    def root(x):
        """The square root."""
'''
TESTS = '''\
import unittest


class TestPush(unittest.TestCase):
    def test_push(self):
        stack = Stack()
        stack.push(1)
        self.assertEqual(stack.items, [1])


class TestPop(unittest.TestCase):
    def setUp(self):
        self.stack = Stack()
        self.stack.push(1)

    def test_pop(self):
        self.assertEqual(self.stack.pop(), 1)


class TestReplace(unittest.TestCase):
    def test_replace(self):
        """Two by one."""
        stack = Stack()
        stack.push(1)
        stack.push(2)
        stack.replace(3, 2)
        self.assertEqual(stack.items, [3])


class TestRoot(unittest.TestCase):
    def test_root(self):
        self.assertEqual(Stack.root(9), 3)
'''
METHODS = ("push", "pop", "replace", "root")
TASK = Task("c/1", SKELETON, {"class_name": "Stack", "tests": TESTS, "methods": METHODS, "lengths": (40, 30, 90, 50)})

PUSH = "def push(self, item):\n    self.items.append(item)"
POP = "def pop(self):\n    return self.items.pop()"
REPLACE = "def replace(self, item, count=1):\n    for _ in range(count):\n        self.pop()\n    self.push(item)"
ROOT = "@staticmethod\ndef root(x):\n    return math.sqrt(x)"
SHARES = (("pop", "root"), ("push", "replace"))
"""The assignment of param_count to two agents."""
RIGHT = (f"{POP}\n\n{ROOT}\n", f"{PUSH}\n\n{REPLACE}\n")


def report(failing: Sequence[str] = (), syntax: SyntaxDiagnosis | None = None) -> ExecutionReport:
    """Return a report of the sandbox on TESTS."""
    names = ("TestPush.test_push", "TestPop.test_pop", "TestReplace.test_replace", "TestRoot.test_root")
    tests = tuple(
        TestResult("fail", "AssertionError", "1 != 2", 9, name, trusted=False)
        if name in failing
        else TestResult("pass", source=name, trusted=False)
        for name in names
    )
    return ExecutionReport(tests, syntax, "", 0.0, 0.0, "none", False)


def play(*responses: str, found: ExecutionReport | None = None, **settings: Any) -> tuple[ClassAttempt, Outcome]:
    """Return attempt and outcome of one joint action, with a made-up report."""
    environment = CodeCompletion(len(responses), **settings)
    attempt = environment.attempt(TASK, responses, last=False)
    return attempt, environment.outcome(attempt, found or report())
