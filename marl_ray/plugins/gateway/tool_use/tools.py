"""Tools that an agent may call: programs and tests in the sandbox, and functions of the user."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, get_type_hints

from marl_ray.config import ExternalConfig
from marl_ray.config.sections import SandboxConfig
from marl_ray.core.concurrency import DeadlineExceeded, wait_within
from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.core.text import json_or
from marl_ray.core.user_calls import call_in_daemon_thread, result_of_user_function
from marl_ray.environments import abilities
from marl_ray.environments.base import Environment, Executor, collect_programs, group_reports
from marl_ray.plugins.gateway.tool_calls import tool_schema
from marl_ray.plugins.gateway.tool_use.options import ToolUseConfig
from marl_ray.registry import Registry
from marl_ray.sandbox import ExecutionReport, Limits, Program, StdioCase, stdio_tests

FUNCTIONS = Registry("tool_use.tools", {})
"""Functions of the user, by `module:function`."""
TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
"""JSON type by annotation of an argument. Other annotations have no type."""


class ToolFailed(Exception):
    """A call without a result, for the reason in the message, which the agent reads."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The circumstances of a call: the task, and the agent that calls."""

    task: Task
    agent: int


class Tool(Protocol):
    """A tool. `schema` is its description in OpenAI's format. `call` returns the text of a result, and raises
    ToolFailed for arguments or programs that fail."""

    schema: Mapping[str, Any]

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> str: ...


def code_schema(name: str, about: str) -> Mapping[str, Any]:
    """Return the description of a tool that takes code."""
    properties = {"code": {"type": "string"}}
    return tool_schema(name, about, {"type": "object", "properties": properties, "required": ["code"]})


class PythonTool:
    """Runs a program without input in the sandbox. The result is its standard output."""

    schema = code_schema("python", "Run a Python program and return its printed output.")

    def __init__(self, executor: Executor, timeout_s: float, memory_mb: int) -> None:
        self._executor = executor
        self._limits = Limits(timeout_s, 3 * timeout_s, 3 * timeout_s, max_timeouts=1, memory_mb=memory_mb)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> str:
        code = _text(arguments, "code")
        tests = stdio_tests([StdioCase("", "")])
        program = Program(code, tests, "", form="stdio", limits=self._limits)
        report: ExecutionReport
        (report,) = await self._executor.execute([program])
        if report.infra_error:
            raise ToolFailed(f"the program could not be run: {report.infra_error}")
        (result,) = report.tests
        # The only test is the run itself. Its verdict `fail` means that something was printed.
        if result.status in ("pass", "fail"):
            return report.stdout or "(no output)"
        problem = f"{result.error_type or result.status}: {result.message or ''}"
        if result.line:
            problem = f"line {result.line}: {problem}"
        if report.stdout:
            problem = f"{report.stdout}\n{problem}"
        raise ToolFailed(problem.strip())


class FeedbackTool:
    """Returns the environment's feedback on an answer, before it is given. Only visible tests run, as between turns.
    The answers of the other agents are empty, because all agents of a turn answer at the same time."""

    schema = code_schema("run_tests", "Run the visible tests on an answer and return the result.")

    def __init__(self, executor: Executor, environment: Environment[Any], mode: str) -> None:
        self._executor = executor
        self._environment = environment
        self._mode = mode

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> str:
        environment = self._environment
        answers = [""] * environment.num_agents
        answers[context.agent] = _text(arguments, "code")
        attempt = environment.attempt(context.task, answers, last=False)
        reports = await abilities.execute(environment, collect_programs([attempt]), self._executor)
        (report,) = group_reports([attempt], reports)
        outcome = environment.outcome(attempt, report)
        if outcome.failure:
            raise ToolFailed(f"the tests could not be run: {outcome.failure}")
        lines = environment.feedback(attempt, outcome, self._mode, context.agent)
        return "\n".join(lines) or "(no feedback)"


class FunctionTool:
    """Calls a function of the user: a plain function in a thread of its own, an `async` function in the main thread.
    Raises UserError unless it takes keyword arguments."""

    def __init__(self, function: Callable[..., Any], timeout_s: float) -> None:
        self._function = function
        self._timeout_s = timeout_s
        schema = function_schema(function)
        self.schema: Mapping[str, Any] = schema
        self._names = set(schema["function"]["parameters"]["properties"])

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> str:
        unknown = sorted(set(arguments) - self._names)
        if unknown:
            raise ToolFailed(f"unknown argument {unknown[0]!r}: there are {', '.join(sorted(self._names)) or 'none'}")
        try:
            return str(await wait_within(self._timeout_s, "the function", "", self._result(arguments)))
        except DeadlineExceeded:
            raise ToolFailed(f"no result within {self._timeout_s:g} s") from None
        except Exception as error:  # of a function that this package does not know
            raise ToolFailed(f"{type(error).__name__}: {error}") from error

    async def _result(self, arguments: Mapping[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self._function):
            return await result_of_user_function(self._function(**arguments))
        # Agents call tools at the same time, so that each call has a thread of its own.
        result = await call_in_daemon_thread(partial(self._function, **arguments))
        if inspect.isawaitable(result):
            return await result_of_user_function(result)
        return result


def function_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the description of a function: its name, docstring and arguments. Raises UserError for arguments that
    cannot be given by name.

    Example:
        >>> def add(a: int, b: int = 0): "Add two numbers."
        >>> function_schema(add)["function"]["parameters"]["required"]
        ['a']
    """
    name = getattr(function, "__name__", type(function).__name__)
    hints: dict[str, Any] = {}
    if inspect.isroutine(function):  # an object that can be called has the hints of its attributes
        hints = get_type_hints(function)
    properties = {}
    required = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UserError(f"tool_use.tools: {name} has the argument {parameter}, which has no name of its own")
        kind = TYPES.get(hints.get(parameter.name, object))
        properties[parameter.name] = {"type": kind} if kind else {}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    return tool_schema(name, inspect.getdoc(function) or "", parameters)


def make_tools(
    settings: ToolUseConfig,
    sandbox: SandboxConfig,
    external: ExternalConfig,
    environment: Environment[Any],
    executor: Executor,
) -> dict[str, Tool]:
    """Return the tools of a run by name. Raises UserError."""
    tools: dict[str, Tool] = {}
    for name in settings.tools:
        tool: Tool
        if name == "python":
            tool = PythonTool(executor, settings.timeout_s, sandbox.memory_mb)
        elif name == "run_tests":
            tool = FeedbackTool(executor, environment, external.mode)
        elif ":" in name:
            tool = FunctionTool(FUNCTIONS.get(name), settings.timeout_s)
        else:
            raise UserError(f"unknown tool {name!r} in tool_use.tools: use python, run_tests, or module:function")
        called = tool.schema["function"]["name"]
        if called in tools:
            raise UserError(f"tool_use.tools has two tools of the name {called}: rename one of the functions")
        tools[called] = tool
    return tools


def read_arguments(text: str) -> Mapping[str, Any]:
    """Return the arguments of a call. Raises ToolFailed."""
    arguments = json_or(text, None)
    if not isinstance(arguments, Mapping):
        raise ToolFailed("the arguments should be a JSON object")
    return arguments


def _text(arguments: Mapping[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ToolFailed(f"the argument {name!r} should be a text")
    return value
