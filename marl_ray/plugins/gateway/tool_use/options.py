"""Section of a config for agents that call tools within a turn."""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.config.values import NonNegativeInt, PositiveFloat, PositiveInt, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUseConfig(Section):
    """Environment `tool_use`: agents of another environment call tools before they answer."""

    environment: str | None = None
    """Environment of the answers. null: the environment of dataset.type."""
    tools: tuple[str, ...] = ("python",)
    """Tools of the agents. python: run a program in the sandbox and return its output; run_tests: return the
    environment's feedback on an answer, by the visible tests; `module:function`: a Python function of yours, which runs
    in the driver process."""
    agents: tuple[NonNegativeInt, ...] = ()
    """Numbers of the agents that have tools. Empty: all agents."""
    max_tool_calls: PositiveInt = 4
    """Maximum number of tool calls per answer. A further call is not executed, and ends the answer."""
    max_result_chars: PositiveInt = 1000
    """Maximum length of a tool's result in characters. The middle of a longer result is left out."""
    timeout_s: PositiveFloat = 10.0
    """CPU limit in seconds of a program of tool python, and wall-clock limit of a function."""
