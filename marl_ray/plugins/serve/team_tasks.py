"""The tasks of requests to the model `team`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from marl_ray.core.episode import Task
from marl_ray.http.request_formats import ApiError, TeamFields, TestCase
from marl_ray.sandbox import StdioCase, count_tests, stdio_tests

DEFAULT_ENTRY_POINT = "solution"
MAX_TEST_BYTES = 1 << 16
PARSER = ThreadPoolExecutor(1, "parse_tests")
"""One thread: with more of them, the event loop would wait longer for its turn."""
DEFINITION = re.compile(r"^\s*def\s+([A-Za-z_]\w*)\s*\(", re.MULTILINE)
EVALPLUS_MESSAGE = re.compile(
    r"Please provide an? [^\n]*self-contained Python script [^\n]*\n```python\n(.*)\n```\s*", re.DOTALL
)
"""A message of EvalPlus's client, which puts an instruction and a fence around a task's prompt."""


def task_text(message: str) -> str:
    """Return the task in a message: the message, or the code in a message of EvalPlus's client."""
    found = EVALPLUS_MESSAGE.fullmatch(message)
    if found is None:
        return message
    return found[1] + "\n"


async def read_tasks(prompts: Sequence[str], given: TeamFields) -> list[Task]:
    """Return the task of each prompt of a request. Parsing takes seconds for thousands of tests, so a thread parses,
    one request after the other. Raises ApiError for tests that cannot be parsed."""
    return await asyncio.get_running_loop().run_in_executor(PARSER, _make_tasks, prompts, given)


def _make_tasks(prompts: Sequence[str], given: TeamFields) -> list[Task]:
    tasks: list[Task] = []
    parsed: set[str] = set()
    for prompt in prompts:
        task = _make_task(prompt, given)
        entry_point = task.fields["entry_point"]
        # All prompts of a request have the same tests, whose parse depends on the entry point alone.
        if task.fields["tests"] and entry_point not in parsed:
            _check_tests(task)
        parsed.add(entry_point)
        tasks.append(task)
    return tasks


def _check_tests(task: Task) -> None:
    """Raise ApiError for tests that cannot be parsed."""
    try:
        count_tests(task.fields["tests"], task.fields["entry_point"])
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ApiError(400, f"tests: {str(error)[:200]}", "invalid_value", "marl_ray.tests") from None


def _make_task(prompt: str, given: TeamFields) -> Task:
    """Return the task of a prompt. Without an entry point the last function that the prompt begins, or `solution`, is
    the entry point. Raises ApiError for tests that are too large."""
    fields: dict[str, Any] = {}
    for name, value in given.fields.items():
        fields[name] = tuple(value) if isinstance(value, list) else value
    definitions = DEFINITION.findall(prompt) or [DEFAULT_ENTRY_POINT]
    tests: Any = given.tests or ()
    size = len(tests)
    if not isinstance(tests, str):
        if tests and isinstance(tests[0], TestCase):
            tests = stdio_tests([StdioCase(case.stdin, case.stdout) for case in tests])
            fields["script"] = True
        tests = tuple(map(str, tests))
        size = sum(map(len, tests))
    if size > MAX_TEST_BYTES:
        message = f"tests have {size} characters, more than {MAX_TEST_BYTES}"
        raise ApiError(400, message, "too_large", "marl_ray.tests")
    fields["entry_point"] = given.entry_point or definitions[-1]
    fields["tests"] = tests
    return Task("request", prompt, fields)
