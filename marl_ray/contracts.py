"""What every plug-in has to keep to, as checks that any implementation can be run through.

Each raises AssertionError with a line that says what is wrong. They need no test framework, no model and no cluster;
docs/how-to/extend.md shows them at work.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.base import Environment, collect_programs, group_reports
from marl_ray.environments.plugin_checks import check_order

if TYPE_CHECKING:
    from torch import Tensor

    from marl_ray.data.convert import DatasetType
    from marl_ray.data.loading import DataRow
    from marl_ray.external.modes import Mode

Execute = Callable[[list[Any]], list[Any]]
"""Programs in, their reports out, as `Sandbox.run_batch` does."""

STRANGE = ("", "\0 \u2028 \r", "(" * 40_000, "`" * 3 + "\n" + '"' * 3, "7" * 5_000)
"""Responses that nobody would write. Nothing may raise on them."""


def check_environment(
    environment: Environment[Any],
    tasks: Sequence[Task],
    responses: Sequence[Sequence[str]],
    execute: Execute | None = None,
) -> None:
    """Play joint actions on every task: those of `responses`, one text an agent each, and strange ones.

    `execute` is needed where attempts have programs.
    """
    _that(len(tasks) > 0 and len(responses) > 0, "give at least one task and one joint action")
    joint = [*responses, *([text] * environment.num_agents for text in STRANGE)]
    names: set[tuple[str, ...]] = set()
    for task in tasks:
        environment.check_task(task)
        _check_texts(environment, task)
        _check_order(environment, task, joint)
        for attempt, report in _played(environment, task, joint, execute):
            outcome = environment.outcome(attempt, report)
            _check_outcome(outcome, environment.num_agents)
            _that(
                _content(outcome) == _content(environment.outcome(attempt, report)),
                "outcome is not a function of attempt and report: it gave two for the same",
            )
            _check_told(environment, task, attempt, outcome)
            more = _probed(environment, attempt, report, execute)
            if not outcome.failure:
                names.add((*outcome.levels, *outcome.metrics, *outcome.counts, *more))
    _that(len(names) <= 1, f"levels, metrics and counts must have the same names for every joint action: {names}")


def check_dataset(dataset: DatasetType, rows: Sequence[DataRow]) -> None:
    """Make a task of every row, twice, and of rows that hold nothing."""
    _that(isinstance(dataset.environment, str), "environment must be a registered name or module:Attr")
    ENVIRONMENTS.check(dataset.environment)
    tasks = [dataset.task(row, number) for number, row in enumerate(rows)]
    for number, (row, task) in enumerate(zip(rows, tasks, strict=True)):
        _that(isinstance(task, Task), f"row {number}: task must give a Task, not {task!r}")
        for name in ("id", "prompt"):
            text = getattr(task, name)
            _that(isinstance(text, str) and text.strip() != "", f"row {number}: the task's {name} must be a text")
        _that(isinstance(task.fields, Mapping), f"row {number}: fields must be a mapping")
        for name, value in task.fields.items():
            _that(isinstance(name, str), f"row {number}: the names of fields are texts, not {name!r}")
            try:
                hash(value)
            except TypeError:
                raise AssertionError(f"row {number}: field {name} must be hashable, as a tuple is") from None
        _that(task == dataset.task(row, number), f"row {number}: task gave two tasks for the same row")
    _that(len({task.id for task in tasks}) == len(tasks), "two rows have tasks of the same id")
    for empty in ({}, dict.fromkeys(rows[0])):
        try:
            dataset.task(empty, 0)
        except UserError:
            continue
        except Exception as error:
            raise AssertionError(f"a row without what is needed must be a UserError, not {error!r}") from error
        raise AssertionError(f"the row {empty} was taken for a task")


def check_mode(
    mode: Mode,
    environment: Environment[Any],
    tasks: Sequence[Task],
    responses: Sequence[Sequence[str]],
    execute: Execute | None = None,
) -> None:
    """Ask for the messages on joint actions that are played as in `check_environment`."""
    _that(isinstance(mode.note, str), "note must be a text")
    joint = [*responses, *([text] * environment.num_agents for text in STRANGE)]
    names: set[tuple[str, ...]] = set()
    for task in tasks:
        for attempt, report in _played(environment, task, joint, execute):
            messages, metrics = asyncio.run(mode.messages(task, attempt, environment.outcome(attempt, report)))
            _that(
                len(messages) == environment.num_agents,
                f"{len(messages)} messages for {environment.num_agents} agents: there must be one an agent",
            )
            for message in messages:
                _check_lines("messages", message.lines)
                _check_text("an edit", message.edit)
            _check_numbers("metrics", metrics)
            names.add(tuple(metrics))
    _that(len(names) <= 1, f"metrics must have the same names for every joint action: {names}")


def check_estimator(estimator: Callable[[Tensor], Tensor]) -> None:
    """Ask for the advantages of returns [..., G], where the last dimension holds siblings."""
    import torch

    rows = torch.tensor(
        [[0.0, 1.0, 2.5, 2.5], [4.0, -1.0, 0.5, 4.0], [2.0, 2.0, 2.0, 2.0], [0.1, 0.2, 0.3, 1e4]], dtype=torch.float64
    )
    given = rows.clone()
    advantages = estimator(given)
    _that(torch.equal(given, rows), "the estimator changes the returns it is given")
    _that(
        isinstance(advantages, torch.Tensor) and (advantages.shape, advantages.dtype) == (rows.shape, rows.dtype),
        f"advantages must be a {rows.dtype} tensor of the returns' shape {tuple(rows.shape)}",
    )
    _that(bool(torch.isfinite(advantages).all()), "advantages must be finite")
    _that(torch.equal(advantages, estimator(rows)), "the estimator gives two answers for the same returns")
    alone = torch.stack([estimator(row) for row in rows])
    _that(torch.allclose(advantages, alone), "a group's advantages must not depend on other groups")
    order = torch.tensor([2, 0, 3, 1])
    _that(
        torch.allclose(estimator(rows[:, order]), advantages[:, order]),
        "advantages must not depend on the siblings' order",
    )
    better = rows[:, :, None] > rows[:, None, :]
    _that(
        bool((advantages[:, :, None] >= advantages[:, None, :])[better].all()),
        "a sibling of higher return must not have the lower advantage",
    )


def _check_texts(environment: Environment[Any], task: Task) -> None:
    """What does not depend on responses."""
    lists = {name: getattr(environment, name)(task) for name in ("roles", "first_prompts", "revisions")}
    for name, texts in lists.items():
        _that(
            isinstance(texts, list) and len(texts) == environment.num_agents,
            f"{name} must be a list with one text for each of {environment.num_agents} agents, not {texts!r}",
        )
        for text in texts:
            _check_text(name, text)
            _that(text.strip() != "", f"{name}: a text is empty")
    _that(len(set(lists["roles"])) == len(lists["roles"]), f"two roles have one name: {lists['roles']}")


def _check_order(environment: Environment[Any], task: Task, joint: Sequence[Sequence[str]]) -> None:
    """Who answers when, and what is read by those who answer later."""
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
                _check_text("prompt_after", prompt)


def _played(
    environment: Environment[Any], task: Task, joint: Sequence[Sequence[str]], execute: Execute | None
) -> list[tuple[Any, Any]]:
    """Attempts with their reports, of a turn that another follows."""
    attempts = []
    for texts in joint:
        for last in (True, False):
            attempt = environment.attempt(task, texts, last)
            again = environment.attempt(task, texts, last)
            _that(attempt.program == again.program, "attempt made two programs of the same responses")
        attempts.append(attempt)
    programs = collect_programs(attempts)
    if programs and execute is None:
        raise AssertionError("the attempts have programs: give `execute`, for instance Sandbox().run_batch")
    return list(zip(attempts, group_reports(attempts, execute(programs) if execute else []), strict=True))


def _check_outcome(outcome: Outcome, num_agents: int) -> None:
    _that(isinstance(outcome, Outcome), f"outcome must give an Outcome, not {outcome!r}")
    _check_numbers("levels", outcome.levels)
    _check_numbers("metrics", outcome.metrics)
    _check_numbers("rewards", {"reward": outcome.reward} | {str(i): r for i, r in enumerate(outcome.rewards)})
    _that(
        not outcome.levels or math.isclose(sum(outcome.levels.values()), outcome.reward, abs_tol=1e-9),
        f"levels must add up to the reward: {dict(outcome.levels)} is not {outcome.reward}",
    )
    _that(
        all(isinstance(name, str) and type(count) is int and count >= 0 for name, count in outcome.counts.items()),
        f"counts must be whole numbers by name: {outcome.counts}",
    )
    _that(
        len(outcome.rewards) in (0, num_agents),
        f"rewards must be empty or one for each of {num_agents} agents: {outcome.rewards}",
    )
    _check_text("failure", outcome.failure)
    if outcome.evidence is not None:
        try:
            json.dumps(outcome.evidence.data())
        except (TypeError, ValueError) as error:
            raise AssertionError(f"evidence.data() must be plain data for JSON: {error}") from None
        for line in outcome.evidence.lines():
            _that(isinstance(line, str), f"evidence.lines() must be texts, not {line!r}")


def _check_told(environment: Environment[Any], task: Task, attempt: Any, outcome: Outcome) -> None:
    """What the next turn's prompts are made of."""
    answers = environment.previous_answers(attempt)
    _that(len(answers) == environment.num_agents, "previous_answers must have one text an agent")
    for answer in answers:
        _check_text("previous_answers", answer)
    question = environment.question(task, attempt)
    _check_text("question", question)
    for role in environment.roles(task):
        _that(role in question, f"question does not name {role}, whose edit it should ask for")
    if not outcome.failure:
        for mode in environment.modes:
            for agent in range(environment.num_agents):
                _check_lines(f"feedback of {mode}", environment.feedback(attempt, outcome, mode, agent))


def _probed(environment: Environment[Any], attempt: Any, report: Any, execute: Execute | None) -> tuple[str, ...]:
    """The names of metrics from probes."""
    programs = environment.probes(attempt, report)
    if programs and execute is None:
        raise AssertionError("there are probes: give `execute`, for instance Sandbox().run_batch")
    metrics = environment.probed(attempt, report, execute(programs) if programs and execute else [])
    _check_numbers("probed", metrics)
    return tuple(metrics)


def _content(outcome: Outcome) -> tuple[Any, ...]:
    evidence = outcome.evidence and (outcome.evidence.data(), outcome.evidence.lines())
    numbers = (outcome.reward, outcome.levels, outcome.metrics, outcome.counts, outcome.rewards)
    return (*numbers, outcome.failure, evidence)


def _check_numbers(what: str, numbers: Mapping[str, float]) -> None:
    for name, number in numbers.items():
        _that(
            isinstance(name, str) and type(number) in (int, float) and math.isfinite(number),
            f"{what} must be finite numbers by name: {name!r} is {number!r}",
        )


def _check_lines(what: str, lines: Sequence[str]) -> None:
    _that(isinstance(lines, list | tuple), f"{what}: a list of lines, not {lines!r}")
    for line in lines:
        _check_text(what, line)
        _that("\n" not in line, f"{what}: one fact a line, without a newline in {line!r}")


def _check_text(what: str, text: str) -> None:
    _that(isinstance(text, str), f"{what}: a text, not {text!r}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise AssertionError(f"{what}: a text that UTF-8 can hold, not {text!r:.80}") from None


def _that(holds: bool, line: str) -> None:
    if not holds:
        raise AssertionError(line)
