"""Conformance checks for plug-ins of every kind (docs/reference/plugins.md).

Each check raises AssertionError with one line that describes the violation. The checks need no test framework, no model
and no cluster; docs/how-to/extend.md shows examples. `check_critic` loads a bundled model of 3 MB.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marl_ray.core.chat import as_messages, as_text
from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.credit.estimators.base import SiblingValues, make_estimator
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.base import Environment, collect_programs, group_reports
from marl_ray.environments.plugin_checks import check_order, check_prompts
from marl_ray.training_contracts import (
    check_critic,
    check_handoff,
    check_joint_mode,
    check_loss,
    check_optimizer,
    check_sampler,
    check_sink,
    require,
)

if TYPE_CHECKING:
    from torch import Tensor

    from marl_ray.data.convert import DatasetType
    from marl_ray.data.loading import DataRow
    from marl_ray.external.modes import Mode

__all__ = [
    "check_critic",
    "check_dataset",
    "check_environment",
    "check_estimator",
    "check_handoff",
    "check_joint_mode",
    "check_loss",
    "check_mode",
    "check_optimizer",
    "check_sampler",
    "check_sink",
]

Execute = Callable[[list[Any]], list[Any]]
"""A function from programs to their reports, such as `Sandbox.run_batch`."""

UNUSUAL_RESPONSES = ("", "\0 \u2028 \r", "(" * 40_000, "`" * 3 + "\n" + '"' * 3, "7" * 5_000)
"""Unusual responses, on which no plug-in may raise."""


def check_environment(
    environment: Environment[Any],
    tasks: Sequence[Task],
    responses: Sequence[Sequence[str]],
    execute: Execute | None = None,
) -> None:
    """Check an environment on every task with joint actions, one text per agent each, and with unusual responses.

    `execute` is required if attempts have programs.
    """
    require(len(tasks) > 0 and len(responses) > 0, "pass at least one task and one joint action")
    joint = [*responses, *([text] * environment.num_agents for text in UNUSUAL_RESPONSES)]
    names: set[tuple[str, ...]] = set()
    for task in tasks:
        environment.check_task(task)
        _check_texts(environment, task)
        _check_order(environment, task, joint)
        if environment.interchangeable_agents:
            _check_interchangeable(environment, task, joint, execute)
        for attempt, report in _attempts(environment, task, joint, execute):
            outcome = environment.outcome(attempt, report)
            _check_outcome(outcome, environment.num_agents)
            again = environment.outcome(attempt, report)
            problem = "outcome is not a function of attempt and report: two calls returned different outcomes"
            require(_content(outcome) == _content(again), problem)
            _check_prompt_parts(environment, task, attempt, outcome)
            probed = _probed(environment, attempt, report, outcome, execute)
            _check_numbers("probed", probed.metrics)
            _check_outcome(probed, environment.num_agents)
            if not outcome.failure:
                names.add((*probed.levels, *probed.metrics, *probed.counts))
    require(len(names) <= 1, f"levels, metrics and counts must have the same names for every joint action: {names}")


def check_dataset(dataset: DatasetType, rows: Sequence[DataRow]) -> None:
    """Check a dataset type on every row, and on rows without values."""
    require(isinstance(dataset.environment, str), "environment must be a registered name or module:Attr")
    if dataset.environment:
        ENVIRONMENTS.check(dataset.environment)
    tasks = [dataset.task(row, number) for number, row in enumerate(rows)]
    for number, (row, task) in enumerate(zip(rows, tasks, strict=True)):
        require(isinstance(task, Task), f"row {number}: task must return a Task, not {task!r}")
        for name in ("id", "prompt"):
            text = getattr(task, name)
            is_valid = isinstance(text, str) and text.strip() != ""
            require(is_valid, f"row {number}: the task's {name} must be a non-empty string")
        require(isinstance(task.fields, Mapping), f"row {number}: fields must be a mapping")
        for name, value in task.fields.items():
            require(isinstance(name, str), f"row {number}: the names of fields must be strings, not {name!r}")
            try:
                hash(value)
            except TypeError:
                raise AssertionError(f"row {number}: field {name} must be hashable, for example a tuple") from None
        require(task == dataset.task(row, number), f"row {number}: task returned two different tasks for the same row")
    require(len({task.id for task in tasks}) == len(tasks), "two tasks have the same id")
    for empty in ({}, dict.fromkeys(rows[0])):
        try:
            dataset.task(empty, 0)
        except UserError:
            continue
        except Exception as error:
            raise AssertionError(f"a row without values must raise a UserError, not {error!r}") from error
        raise AssertionError(f"the row {empty} must raise a UserError")


def check_mode(
    mode: Mode,
    environment: Environment[Any],
    tasks: Sequence[Task],
    responses: Sequence[Sequence[str]],
    execute: Execute | None = None,
) -> None:
    """Check an external mode on the joint actions of `check_environment`."""
    require(isinstance(mode.note, str), "note must be a string")
    joint = [*responses, *([text] * environment.num_agents for text in UNUSUAL_RESPONSES)]
    names: set[tuple[str, ...]] = set()
    for task in tasks:
        for attempt, report in _attempts(environment, task, joint, execute):
            messages, metrics = asyncio.run(mode.messages(task, attempt, environment.outcome(attempt, report)))
            expected = f"one entry for each of {environment.num_agents} agents"
            require(len(messages) == environment.num_agents, f"messages must have {expected}, not {len(messages)}")
            for message in messages:
                _check_lines("messages", message.lines)
                _check_text("an edit", message.edit)
            _check_numbers("metrics", metrics)
            names.add(tuple(metrics))
    require(len(names) <= 1, f"metrics must have the same names for every joint action: {names}")


def check_estimator(plugin: Any) -> None:
    """Check an estimator: a function from returns [..., G] to advantages, where the last dimension holds siblings, or a
    subclass of `Estimator`.

    An estimator that `requires` a greedy or counterfactual sample, lengths or reward levels also receives these
    [..., G]; the last dimension of one that requires the whole batch holds all completions of a turn.
    """
    import torch

    estimator = make_estimator(plugin)

    def apply(returns: Tensor) -> Tensor:
        inputs = {name: torch.full_like(returns, 0.75) for name in estimator.requirements.inputs}
        return estimator.advantages(SiblingValues(returns, **inputs))

    rows = torch.tensor(
        [[0.0, 1.0, 2.5, 2.5], [4.0, -1.0, 0.5, 4.0], [2.0, 2.0, 2.0, 2.0], [0.1, 0.2, 0.3, 1e4]], dtype=torch.float64
    )
    returns = rows.clone()
    advantages = apply(returns)
    require(torch.equal(returns, rows), "the estimator modifies its input")
    require(
        isinstance(advantages, torch.Tensor) and (advantages.shape, advantages.dtype) == (rows.shape, rows.dtype),
        f"advantages must be a {rows.dtype} tensor of the returns' shape {tuple(rows.shape)}",
    )
    require(bool(torch.isfinite(advantages).all()), "advantages must be finite")
    again = apply(rows)
    require(torch.equal(advantages, again), "the estimator returns different advantages for the same returns")
    alone = torch.stack([apply(row) for row in rows])
    require(torch.allclose(advantages, alone), "a group's advantages must not depend on other groups")
    order = torch.tensor([2, 0, 3, 1])
    in_order = torch.allclose(apply(rows[:, order]), advantages[:, order])
    require(in_order, "advantages must not depend on the siblings' order")
    higher = rows[:, :, None] > rows[:, None, :]
    is_monotonic = bool((advantages[:, :, None] >= advantages[:, None, :])[higher].all())
    require(is_monotonic, "a sibling with a higher return must not have a lower advantage")


def _check_texts(environment: Environment[Any], task: Task) -> None:
    """Check the texts that do not depend on responses."""
    lists = {name: getattr(environment, name)(task) for name in ("roles", "first_prompts", "revisions")}
    for name, texts in lists.items():
        entry = "prompt" if name == "first_prompts" else "string"
        require(
            isinstance(texts, list) and len(texts) == environment.num_agents,
            f"{name} must be a list with one {entry} for each of {environment.num_agents} agents, not {texts!r}",
        )
        for text in texts:
            if name == "first_prompts":
                _check_prompt(name, text)
                text = as_text(text)
            else:
                _check_text(name, text)
            require(text.strip() != "", f"{name} must not contain an empty string")
    require(len(set(lists["roles"])) == len(lists["roles"]), f"two roles have the same name: {lists['roles']}")


def _check_interchangeable(
    environment: Environment[Any], task: Task, joint: Sequence[Sequence[str]], execute: Execute | None
) -> None:
    """Check that the reward does not depend on who gives an answer."""
    turned = [[*texts[1:], texts[0]] for texts in joint]
    rewards = (
        [environment.outcome(*pair).reward for pair in _attempts(environment, task, answers, execute)]
        for answers in (joint, turned)
    )
    for texts, own, other in zip(joint, *rewards, strict=True):
        problem = f"agents are not interchangeable: {own} for {texts!r:.200}, and {other} if the agents exchange them"
        require(math.isclose(own, other, abs_tol=1e-9), problem)


def _check_order(environment: Environment[Any], task: Task, joint: Sequence[Sequence[str]]) -> None:
    """Check the order of answers, and the prompts of agents that answer after others."""
    order = environment.order(task)
    try:
        check_order("order", order, environment.num_agents)
    except ValueError as error:
        raise AssertionError(str(error)) from None
    for texts in joint if len(order) > 1 else ():
        for number, stage in enumerate(order):
            answers = {agent: texts[agent] for earlier in order[:number] for agent in earlier}
            for agent in stage if answers else ():
                prompt = environment.prompt_after(task, agent, environment.first_prompts(task)[agent], answers)
                _check_prompt("prompt_after", prompt)


def _attempts(
    environment: Environment[Any], task: Task, joint: Sequence[Sequence[str]], execute: Execute | None
) -> list[tuple[Any, Any]]:
    """Return the attempts, of a turn that another turn follows, with their reports."""
    attempts = []
    for texts in joint:
        for last in (True, False):
            attempt = environment.attempt(task, texts, last)
            again = environment.attempt(task, texts, last)
            require(attempt.program == again.program, "attempt returned two different programs for the same responses")
            has_program = environment.runs_programs or attempt.program is None
            require(has_program, "runs_programs is False, and an attempt has a program")
        attempts.append(attempt)
    programs = collect_programs(attempts)
    if programs and execute is None:
        raise AssertionError("the attempts have programs: pass `execute`, for instance Sandbox().run_batch")
    return list(zip(attempts, group_reports(attempts, execute(programs) if execute else []), strict=True))


def _check_outcome(outcome: Outcome, num_agents: int) -> None:
    require(isinstance(outcome, Outcome), f"outcome must return an Outcome, not {outcome!r}")
    _check_numbers("levels", outcome.levels)
    _check_numbers("metrics", outcome.metrics)
    _check_numbers("rewards", {"reward": outcome.reward} | {str(i): r for i, r in enumerate(outcome.rewards)})
    require(
        not outcome.levels or math.isclose(sum(outcome.levels.values()), outcome.reward, abs_tol=1e-9),
        f"levels must add up to the reward: {dict(outcome.levels)} is not {outcome.reward}",
    )
    require(
        all(isinstance(name, str) and type(count) is int and count >= 0 for name, count in outcome.counts.items()),
        f"counts must be non-negative integers by name: {outcome.counts}",
    )
    require(
        len(outcome.rewards) in (0, num_agents),
        f"rewards must be empty or have one entry for each of {num_agents} agents: {outcome.rewards}",
    )
    _check_text("failure", outcome.failure)
    if outcome.evidence is not None:
        try:
            json.dumps(outcome.evidence.data())
        except (TypeError, ValueError) as error:
            raise AssertionError(f"evidence.data() must be plain data for JSON: {error}") from None
        for line in outcome.evidence.lines():
            require(isinstance(line, str), f"evidence.lines() must be strings, not {line!r}")


def _check_prompt_parts(environment: Environment[Any], task: Task, attempt: Any, outcome: Outcome) -> None:
    """Check the parts of the next turn's prompts."""
    answers = environment.previous_answers(attempt)
    require(len(answers) == environment.num_agents, "previous_answers must have one string per agent")
    for answer in answers:
        _check_text("previous_answers", answer)
    question = environment.question(task, attempt)
    _check_text("question", question)
    for role in environment.roles(task):
        require(role in question, f"question must name {role} and ask for its edit")
    if not outcome.failure:
        for mode in environment.modes:
            for agent in range(environment.num_agents):
                _check_lines(f"feedback of {mode}", environment.feedback(attempt, outcome, mode, agent))


def _probed(
    environment: Environment[Any], attempt: Any, report: Any, outcome: Outcome, execute: Execute | None
) -> Outcome:
    """Return the outcome after the attempt's probes."""
    programs = environment.probes(attempt, report)
    if programs and execute is None:
        raise AssertionError("the attempt has probes: pass `execute`, for instance Sandbox().run_batch")
    return environment.probed_outcome(attempt, report, outcome, execute(programs) if programs and execute else [])


def _content(outcome: Outcome) -> tuple[Any, ...]:
    evidence = outcome.evidence and (outcome.evidence.data(), outcome.evidence.lines())
    numbers = (outcome.reward, outcome.levels, outcome.metrics, outcome.counts, outcome.rewards)
    return (*numbers, outcome.failure, evidence)


def _check_numbers(what: str, numbers: Mapping[str, float]) -> None:
    for name, number in numbers.items():
        require(
            isinstance(name, str) and type(number) in (int, float) and math.isfinite(number),
            f"{what} must be finite numbers by name: {name!r} is {number!r}",
        )


def _check_lines(what: str, lines: Sequence[str]) -> None:
    require(isinstance(lines, list | tuple), f"{what} must be a list of lines, not {lines!r}")
    for line in lines:
        _check_text(what, line)
        require("\n" not in line, f"{what} must have one fact per line, without a newline as in {line!r}")


def _check_prompt(what: str, prompt: Any) -> None:
    """Check a text, or chat messages."""
    try:
        check_prompts(what, [prompt])
    except (TypeError, ValueError) as error:
        raise AssertionError(str(error)) from None
    for message in as_messages(prompt):
        _check_text(what, message["content"])


def _check_text(what: str, text: str) -> None:
    require(isinstance(text, str), f"{what} must be a string, not {text!r}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise AssertionError(f"{what} must be encodable as UTF-8, not {text!r:.80}") from None
