"""Rewards, levels and feedback of the cases in `reward_cases` and `reward_cases_by_structure`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.evaluation.scoring import LocalSandboxPool
from marl_ray.sandbox import SandboxSettings
from marl_ray.sandbox.inside.protocol.messages import Limits
from tests.environments.code_generation import reward_cases as worked
from tests.environments.code_generation.reward_cases import TASK, RewardCase
from tests.environments.code_generation.reward_cases_by_structure import PARTLY, SINGLE, THREE

TWO_AGENTS = tuple(group for group in vars(worked).values() if isinstance(group, RewardCase))
GROUPS = (*TWO_AGENTS, *PARTLY, *SINGLE, *THREE)
WORTH = {"A": 0.4, "M": 0.6, "S": 0.5, "C": 0.5, "W": 1.0, "X": -0.5}
LEVELS = {"A": "aux", "M": "main", "S": "syntax", "C": "aux_called", "W": "not_thin", "X": "misused"}


@pytest.fixture(scope="module")
def sandboxes() -> Iterator[LocalSandboxPool]:
    with LocalSandboxPool(
        SandboxSettings(limits=Limits(test_cpu_s=0.3, test_wall_s=5.0, max_timeouts=1)), 1
    ) as running:
        yield running


def worth(levels: str) -> dict[str, float]:
    """Return the reward of each level in a case's notation."""
    found = dict.fromkeys([*LEVELS.values(), "tests"], 0.0)
    for word in levels.rpartition(": ")[2].split():
        code, _, parts = word.partition("/")
        if code.isdigit():
            found["tests"] = int(code) / int(parts)
        else:
            found[LEVELS[code]] = WORTH[code] / int(parts or 1)
    return found


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.levels)
def test_reward_levels_and_feedback_of_each_case(group: RewardCase, sandboxes: LocalSandboxPool) -> None:
    environment = CodeGeneration(len(group.answers[0]), sandbox_slice="all")
    attempts = [environment.attempt(TASK, answers, last=False) for answers in group.answers]
    reports = asyncio.run(sandboxes.execute([attempt.program for attempt in attempts]))
    main = environment.num_agents - 1
    for answers, attempt, report in zip(group.answers, attempts, reports, strict=True):
        outcome = environment.outcome(attempt, report)
        said = "\n".join(answers)
        assert outcome.reward == pytest.approx(group.reward), said
        expected = {name: value for name, value in worth(group.levels).items() if name in outcome.levels}
        assert outcome.levels == pytest.approx(expected), said
        received = environment.feedback(attempt, outcome, "level_feedback", main)
        assert _begin(received, group.feedback), f"{said}\nhears {received}"
        assert environment.feedback(attempt, outcome, "level_passed", main)[0] == group.brief, said
        one = "All levels passed" if group.solved else "Not all levels passed"
        assert environment.feedback(attempt, outcome, "passed", 0) == [one], said


def test_the_cases_are_complete_and_their_rewards_add_up() -> None:
    answers = [answer for group in GROUPS for answer in group.answers]
    assert len(set(answers)) == len(answers) >= 120
    for group in GROUPS:
        assert sum(worth(group.levels).values()) == pytest.approx(group.reward), group.levels


def _begin(lines: list[str], starts: tuple[str, ...]) -> bool:
    """Return whether lines have these prefixes in this order, the first two at the top."""
    if not all(line.startswith(start) for line, start in zip(lines, starts[:2], strict=False)):
        return False
    rest = iter(lines)
    return all(any(line.startswith(start) for line in rest) for start in starts)
