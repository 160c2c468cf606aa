"""Builders for tests of rollouts: a task with programs, executors, and a config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_ray.config import Config
from marl_ray.core.episode import Task
from marl_ray.sandbox import ExecutionReport, Program, Sandbox, failed_report
from tests.factories import make_config

TASK = Task(
    "t/1",
    'def add_twice(a, b):\n    """Return a plus two times b."""\n',
    {
        "entry_point": "add_twice",
        "tests": "def check(candidate):\n    assert candidate(1, 2) == 5\n    assert candidate(0, 0) == 0\n",
    },
)
AUX = "def aux(b):\n    return 2 * b\n"
GOOD = "def add_twice(a, b):\n    return a + aux(b)\n"
WRONG = "def add_twice(a, b):\n    return a - aux(b)\n"
BROKEN = "def add_twice(a, b:\n    return"


def rollout_config(sections: dict[str, Any] | None = None, seed: int = 42, **settings: Any) -> Config:
    """Return a config of two turns with groups of three, for the code generation environment."""
    base: dict[str, Any] = {"num_turns": 2, "num_generations": 3, "handoff": "best", "max_new_tokens": 16} | settings
    fixed = {"dataset": {"name": "humaneval"}, "code_generation": {"helper_reward": "static"}}
    return make_config(sections={"seed": seed, **fixed} | (sections or {}), **base)


class DirectExecutor:
    """An executor that uses a sandbox without the pool, and counts the programs of each batch."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.batches = sandbox, list[int]()

    async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        self.batches.append(len(programs))
        return self.sandbox.run_batch(list(programs))


class FailingExecutor:
    """An executor that fails like a pool without workers, after `batches` batches on `sandbox`."""

    def __init__(self, sandbox: Sandbox | None = None, batches: int = 0) -> None:
        self.sandbox, self.remaining = sandbox, batches

    async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        self.remaining -= 1
        if self.sandbox is not None and self.remaining >= 0:
            return self.sandbox.run_batch(list(programs))
        return [failed_report(program, "", infra_error="gone") for program in programs]


class NoExecutor:
    """An executor for environments without programs."""

    async def execute(self, programs: Sequence[Any]) -> list[Any]:
        assert not programs
        return []
