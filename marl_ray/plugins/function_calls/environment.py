"""Function calls in parallel: agents read one request at the same time, and their calls are collected.

Rows and reward follow CoMLRL's environment for the parallel categories of BFCL v4 (Patil et al., "The Berkeley Function
Calling Leaderboard", 2025). docs/reference/environments/function_calls.md describes them and the differences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.text_environment import TextAttempt, TextEnvironment
from marl_ray.plugins.function_calls import prompts
from marl_ray.plugins.function_calls.calls import FunctionCall, expected_calls, match, read_calls, unique

# Weights of the levels.
PARSED = 0.05
FUNCTIONS = 0.25
ARGUMENTS = 0.35
COUNT = 0.10
BALANCE = 0.15
EXACT = 0.20
# Weights of the penalties.
OVERLAP = 0.20
LAZY = 0.15
EXTRA = 0.05
DUPLICATES = 0.05
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
        texts = []
        for role in self.roles(task):
            texts.append(prompts.first_prompt(task.prompt, functions, role, self.num_agents))
        return texts

    def revisions(self, task: Task) -> list[str]:
        return list(map(prompts.revision, self.roles(task)))

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> CollectedCalls:
        expected = expected_calls(task.fields["calls"])
        written = []
        own = []
        for response in responses:
            calls = read_calls(response, task.fields["functions"])
            written.append(tuple(calls))
            own.append(tuple(unique(calls)))
        together = tuple(unique(chain.from_iterable(own)))
        right = match(together, expected)
        return CollectedCalls(tuple(responses), tuple(written), tuple(own), together, expected, *right)

    def outcome(self, attempt: CollectedCalls, report: None) -> Outcome:
        calls = len(attempt.together)
        wanted = len(attempt.expected)
        counts = list(map(len, attempt.own))
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
        partners = chain.from_iterable((*attempt.own[:agent], *attempt.own[agent + 1 :]))
        of_partners = {call.key for call in partners}
        for call in attempt.own[agent]:
            verdict = "not right"
            if call.key in right:
                verdict = "right"
            if call.key in of_partners:
                verdict += ", also made by a partner"
            shown = " ".join(str(call).split())[:MAX_SHOWN]
            lines.append(f"{verdict}: {shown}")
        if not attempt.own[agent]:
            lines.append("no call in your answer")
        return lines


def function_f1(calls: Sequence[FunctionCall], expected: Sequence[FunctionCall]) -> float:
    """Return the F1 score of the functions' names, each as often as it is called."""
    called = Counter(call.name for call in calls)
    wanted = Counter(call.name for call in expected)
    common = (called & wanted).total()
    if not common:
        return 0.0
    return 2 * common / (len(calls) + len(expected))


def balance_of(counts: Sequence[int], expected: int) -> float:
    """Return how equally the agents divide the expected number of calls, from 0 to 1. The first agents should make one
    more call than the others if the number cannot be divided.

    Example:
        >>> balance_of([2, 1], 3), balance_of([3, 0], 3)
        (1.0, 0.33333333333333337)
    """
    least, more = divmod(expected, len(counts))
    away = 0
    for number, count in enumerate(counts):
        fair = least + (number < more)
        away += abs(count - fair)
    return max(0.0, 1 - away / expected)
