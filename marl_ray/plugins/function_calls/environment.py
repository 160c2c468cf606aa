"""Function calls in parallel: agents read one request at the same time, and their calls are collected.

Rows and reward follow CoMLRL's environment for the parallel categories of BFCL v4 (Patil et al., "The Berkeley Function
Calling Leaderboard", 2025). docs/reference/environments/function_calls.md describes them and the differences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.text_environment import TextAttempt, TextEnvironment
from marl_ray.plugins.function_calls import prompts
from marl_ray.plugins.function_calls.calls import FunctionCall, expected_calls, match, read_calls, unique

PARSED, FUNCTIONS, ARGUMENTS, COUNT, BALANCE, EXACT = 0.05, 0.25, 0.35, 0.10, 0.15, 0.20
OVERLAP, LAZY, EXTRA, DUPLICATES = 0.20, 0.15, 0.05, 0.05
"""Weights of the penalties."""
MAX_SHOWN = 200
"""Maximum characters of a call in feedback."""


@dataclass(frozen=True)
class CollectedCalls(TextAttempt):
    """The calls of one joint action. `written` are all calls of each agent, `own` the same without repetitions,
    `together` the calls of all agents without repetitions, `right` the indices of right ones in `together`."""

    written: tuple[tuple[FunctionCall, ...], ...]
    own: tuple[tuple[FunctionCall, ...], ...]
    together: tuple[FunctionCall, ...]
    expected: tuple[FunctionCall, ...]
    similarity: float
    right: frozenset[int]


class FunctionCalls(TextEnvironment[CollectedCalls]):
    """A request that several function calls serve. Tasks have the fields `functions` and `calls`, JSON texts: the
    schemas, and a list of `{name: {argument: [accepted values]}}`."""

    def roles(self, task: Task) -> list[str]:
        return prompts.roles(self.num_agents)

    def first_prompts(self, task: Task) -> list[str]:
        functions = task.fields["lines"]
        return [prompts.first_prompt(task.prompt, functions, role, self.num_agents) for role in self.roles(task)]

    def revisions(self, task: Task) -> list[str]:
        return [prompts.revision(role) for role in self.roles(task)]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> CollectedCalls:
        expected = expected_calls(task.fields["calls"])
        written = tuple(tuple(read_calls(text, task.fields["functions"])) for text in responses)
        own = tuple(tuple(unique(calls)) for calls in written)
        together = tuple(unique(call for calls in own for call in calls))
        return CollectedCalls(tuple(responses), written, own, together, expected, *match(together, expected))

    def outcome(self, attempt: CollectedCalls, report: None) -> Outcome:
        calls, wanted = len(attempt.together), len(attempt.expected)
        counts = [len(own) for own in attempt.own]
        overlap = sum(counts) - calls
        repeated = sum(map(len, attempt.written)) - calls
        lazy = counts.count(0) / len(counts)
        is_exact = len(attempt.right) == wanted == calls
        functions = function_f1(attempt.together, attempt.expected)
        balance = balance_of(counts, wanted)
        levels = {
            "parsed": PARSED * (calls > 0),
            "functions": FUNCTIONS * functions,
            "arguments": ARGUMENTS * attempt.similarity,
            "count": COUNT * max(0.0, 1 - abs(calls - wanted) / wanted),
            "balance": BALANCE * balance,
            "exact": EXACT * is_exact,
            "overlap": -OVERLAP * min(1.0, overlap / wanted),
            "lazy": -LAZY * lazy,
            "extra": -EXTRA * min(1.0, max(0, calls - wanted) / wanted),
            "duplicates": -DUPLICATES * min(1.0, repeated / wanted),
        }
        metrics = {
            "right_calls": len(attempt.right) / wanted,
            "calls": float(calls),
            "overlapping_calls": float(overlap),
            "lazy_agents": lazy,
            "balance": balance,
            "all_passed": float(is_exact),
        }
        return Outcome(math.fsum(levels.values()), levels, metrics)

    def facts(self, attempt: CollectedCalls, outcome: Outcome, mode: str, agent: int) -> list[str]:
        lines = [f"right calls together: {len(attempt.right)} of {len(attempt.expected)}"]
        if mode == "level_passed":
            return lines
        right = {attempt.together[number].key for number in attempt.right}
        others = {call.key for number, own in enumerate(attempt.own) if number != agent for call in own}
        for call in attempt.own[agent]:
            shown = " ".join(str(call).split())[:MAX_SHOWN]
            verdict = "right" if call.key in right else "not right"
            lines.append(f"{verdict}{', also made by a partner' if call.key in others else ''}: {shown}")
        return lines if attempt.own[agent] else [*lines, "no call in your answer"]


def function_f1(calls: Sequence[FunctionCall], expected: Sequence[FunctionCall]) -> float:
    """Return the F1 score of the functions' names, each as often as it is called."""
    common = (Counter(call.name for call in calls) & Counter(call.name for call in expected)).total()
    return 2 * common / (len(calls) + len(expected)) if common else 0.0


def balance_of(counts: Sequence[int], expected: int) -> float:
    """Return how equally the agents divide the expected number of calls, from 0 to 1. The first agents should make one
    more call than the others if the number cannot be divided.

    Example:
        >>> balance_of([2, 1], 3), balance_of([3, 0], 3)
        (1.0, 0.33333333333333337)
    """
    least, more = divmod(expected, len(counts))
    away = sum(abs(count - least - (number < more)) for number, count in enumerate(counts))
    return max(0.0, 1 - away / expected)
