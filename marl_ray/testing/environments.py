"""Checks of environments and external modes, on given and on unusual responses."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from marl_ray.core.chat import as_text
from marl_ray.core.episode import Outcome, Task
from marl_ray.environments import abilities
from marl_ray.environments.base import Environment, collect_programs, group_reports
from marl_ray.environments.plugin_checks import check_order
from marl_ray.testing.values import (
    require,
    require_lines,
    require_numbers,
    require_outcome,
    require_prompt,
    require_text,
)

if TYPE_CHECKING:
    from marl_ray.external.modes import Mode

Execute = Callable[[list[Any]], list[Any]]
"""A function from programs to their reports, such as `Sandbox.run_batch`."""
JointAnswers = Sequence[Sequence[str]]
"""Joint actions, each with one text per agent."""

UNUSUAL_RESPONSES = ("", "\0 \u2028 \r", "(" * 40_000, "`" * 3 + "\n" + '"' * 3, "7" * 5_000)
"""Unusual responses, on which no plug-in may raise."""


def check_environment(
    environment: Environment[Any], tasks: Sequence[Task], responses: JointAnswers, execute: Execute | None = None
) -> None:
    """Check an environment on every task with joint actions, one text per agent each, and with unusual responses.

    `execute` is required if attempts have programs.
    """
    require(len(tasks) > 0 and len(responses) > 0, "pass at least one task and one joint action")
    joint = _with_unusual(environment, responses)
    names: set[tuple[str, ...]] = set()
    for task in tasks:
        environment.check_task(task)
        _check_texts(environment, task)
        _check_order(environment, task, joint)
        if isinstance(environment, abilities.InterchangeableAgents):
            _check_interchangeable(environment, task, joint, execute)
        for attempt, report in _attempts(environment, task, joint, execute):
            outcome = environment.outcome(attempt, report)
            require_outcome(outcome, environment.num_agents)
            again = environment.outcome(attempt, report)
            problem = "outcome is not a function of attempt and report: two calls returned different outcomes"
            require(_content(outcome) == _content(again), problem)
            _check_prompt_parts(environment, task, attempt, outcome)
            probed = _probed(environment, attempt, report, outcome, execute)
            require_numbers("probed", probed.metrics)
            require_outcome(probed, environment.num_agents)
            if not outcome.failure:
                names.add((*probed.levels, *probed.metrics, *probed.counts))
    require(len(names) <= 1, f"levels, metrics and counts must have the same names for every joint action: {names}")


def check_mode(
    mode: Mode,
    environment: Environment[Any],
    tasks: Sequence[Task],
    responses: JointAnswers,
    execute: Execute | None = None,
) -> None:
    """Check an external mode on the joint actions of `check_environment`."""
    require(isinstance(mode.note, str), "note must be a string")
    num_agents = environment.num_agents
    joint = _with_unusual(environment, responses)
    names: set[tuple[str, ...]] = set()
    for task in tasks:
        for attempt, report in _attempts(environment, task, joint, execute):
            messages, metrics = asyncio.run(mode.messages(task, attempt, environment.outcome(attempt, report)))
            is_complete = len(messages) == num_agents
            require(is_complete, f"messages must have one entry for each of {num_agents} agents, not {len(messages)}")
            for message in messages:
                require_lines("messages", message.lines)
                require_text("an edit", message.edit)
            require_numbers("metrics", metrics)
            names.add(tuple(metrics))
    require(len(names) <= 1, f"metrics must have the same names for every joint action: {names}")


def _with_unusual(environment: Environment[Any], responses: JointAnswers) -> list[Sequence[str]]:
    """Return the joint actions, and those in which every agent gives the same unusual response."""
    joint = list(responses)
    for text in UNUSUAL_RESPONSES:
        joint.append([text] * environment.num_agents)
    return joint


def _check_texts(environment: Environment[Any], task: Task) -> None:
    """Check the texts that do not depend on responses."""
    roles = environment.roles(task)
    _require_one_per_agent("roles", "string", roles, environment.num_agents)
    for role in roles:
        _require_content("roles", role)
    require(len(set(roles)) == len(roles), f"two roles have the same name: {roles}")
    prompts = environment.first_prompts(task)
    _require_one_per_agent("first_prompts", "prompt", prompts, environment.num_agents)
    for prompt in prompts:
        require_prompt("first_prompts", prompt)
        _require_content("first_prompts", as_text(prompt))
    revisions = environment.revisions(task)
    _require_one_per_agent("revisions", "string", revisions, environment.num_agents)
    for revision in revisions:
        _require_content("revisions", revision)


def _require_one_per_agent(name: str, entry: str, texts: Any, num_agents: int) -> None:
    fits = isinstance(texts, list) and len(texts) == num_agents
    require(fits, f"{name} must be a list with one {entry} for each of {num_agents} agents, not {texts!r}")


def _require_content(name: str, text: str) -> None:
    require_text(name, text)
    require(text.strip() != "", f"{name} must not contain an empty string")


def _check_order(environment: Environment[Any], task: Task, joint: JointAnswers) -> None:
    """Check the order of answers, and the prompts of agents that answer after others."""
    order = abilities.order(environment, task)
    try:
        check_order("order", order, environment.num_agents)
    except ValueError as error:
        raise AssertionError(str(error)) from None
    for texts in joint:
        answers: dict[int, str] = {}
        for agents in order:
            if answers:
                for agent in agents:
                    first_prompt = environment.first_prompts(task)[agent]
                    # A copy: the environment must not see answers of its own round.
                    prompt = abilities.prompt_after(environment, task, agent, first_prompt, dict(answers))
                    require_prompt("prompt_after", prompt)
            for agent in agents:
                answers[agent] = texts[agent]


def _check_interchangeable(
    environment: Environment[Any], task: Task, joint: JointAnswers, execute: Execute | None
) -> None:
    """Check that the reward does not depend on who gives an answer."""
    exchanged = [[*texts[1:], texts[0]] for texts in joint]
    rewards = _rewards(environment, task, joint, execute)
    rewards_exchanged = _rewards(environment, task, exchanged, execute)
    for texts, reward, other in zip(joint, rewards, rewards_exchanged, strict=True):
        is_same = math.isclose(reward, other, abs_tol=1e-9)
        exchange = f"{reward} for {texts!r:.200}, and {other} if the agents exchange them"
        require(is_same, f"agents are not interchangeable: {exchange}")


def _rewards(environment: Environment[Any], task: Task, joint: JointAnswers, execute: Execute | None) -> list[float]:
    attempts = _attempts(environment, task, joint, execute)
    return [environment.outcome(attempt, report).reward for attempt, report in attempts]


def _attempts(
    environment: Environment[Any], task: Task, joint: JointAnswers, execute: Execute | None
) -> list[tuple[Any, Any]]:
    """Return the attempts, of a turn that another turn follows, with their reports."""
    attempts = []
    for texts in joint:
        for is_last_turn in (True, False):
            attempt = environment.attempt(task, texts, is_last_turn)
            again = environment.attempt(task, texts, is_last_turn)
            require(attempt.program == again.program, "attempt returned two different programs for the same responses")
            if isinstance(environment, abilities.WithoutPrograms):
                require(attempt.program is None, "the environment is WithoutPrograms, and an attempt has a program")
        attempts.append(attempt)
    reports = _execute("attempts have programs", collect_programs(attempts), execute)
    return list(zip(attempts, group_reports(attempts, reports), strict=True))


def _probed(
    environment: Environment[Any], attempt: Any, report: Any, outcome: Outcome, execute: Execute | None
) -> Outcome:
    """Return the outcome after the attempt's probes."""
    programs = abilities.probes(environment, attempt, report)
    reports = _execute("attempt has probes", programs, execute) if programs else []
    return abilities.probed_outcome(environment, attempt, report, outcome, reports)


def _execute(what: str, programs: list[Any], execute: Execute | None) -> list[Any]:
    if execute is not None:
        return execute(programs)
    require(not programs, f"the {what}: pass `execute`, for instance Sandbox().run_batch")
    return []


def _check_prompt_parts(environment: Environment[Any], task: Task, attempt: Any, outcome: Outcome) -> None:
    """Check the parts of the next turn's prompts."""
    answers = abilities.previous_answers(environment, attempt)
    require(len(answers) == environment.num_agents, "answers of an attempt must have one string per agent")
    for answer in answers:
        require_text("answers of an attempt", answer)
    question = abilities.question(environment, task, attempt)
    require_text("question", question)
    for role in environment.roles(task):
        require(role in question, f"question must name {role} and ask for its edit")
    if outcome.failure:
        return  # an attempt without a verdict gets no feedback
    for mode in environment.modes:
        for agent in range(environment.num_agents):
            require_lines(f"feedback of {mode}", environment.feedback(attempt, outcome, mode, agent))


def _content(outcome: Outcome) -> tuple[Any, ...]:
    """Return the outcome's values for a comparison; evidence need not define equality."""
    evidence = None
    if outcome.evidence is not None:
        evidence = (outcome.evidence.data(), outcome.evidence.lines())
    numbers = (outcome.reward, outcome.levels, outcome.metrics, outcome.counts, outcome.rewards)
    return (*numbers, outcome.failure, evidence)
