"""An environment from prompts and a reward function, the first step before an environment class."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import math
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from marl_ray.config.schema import Config
from marl_ray.core.chat import Prompt, as_text
from marl_ray.core.concurrency import DeadlineExceeded, gather, wait_within
from marl_ray.core.episode import Outcome, Task, bounded_outcome
from marl_ray.core.errors import UserError
from marl_ray.core.text import short_repr
from marl_ray.core.user_calls import call_user_function, call_user_function_blocking, result_of_user_function
from marl_ray.environments.abilities import ExecutesPrograms
from marl_ray.environments.base import Environment, Executor
from marl_ray.environments.chat_rows import NotAPrompt, copied, is_list, is_one_prompt, read_prompt
from marl_ray.environments.function_parameters import name_of, parameters_of

logger = logging.getLogger(__name__)

MAX_LATE_IN_A_ROW = 5
"""Number of calls of a plain function in a row that may overrun their deadline. The next call ends the run."""
PROMPT = "prompt"
"""Column of a row that holds the prompt."""


@dataclass(frozen=True, eq=False)
class TaskRow:
    """A prompt (one for all agents, or one per agent as a list or by name) and the other columns of its row. Rows are
    equal if their texts are, since values of columns need not be hashable."""

    prompt: Any
    columns: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.prompt!r} {sorted(self.columns.items(), key=str)!r}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskRow) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


@dataclass(frozen=True, slots=True)
class AnsweredPrompt:
    """One joint action: a row and one answer per agent."""

    row: TaskRow
    answers: tuple[str, ...]

    @property
    def program(self) -> AnsweredPrompt:
        """The input of the reward function."""
        return self


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call of the reward function that gave no value, for the reason."""

    reason: str


class FunctionHangs(UserError):
    """A reward function that no longer ends in time."""


class BadReward(ValueError):
    """A value of the reward function that is no reward."""


class RewardEnvironment(Environment[AnsweredPrompt], ExecutesPrograms):
    """A complete environment: prompts, the names of the agents, and a function from answers to a reward.

    `prompts` and `eval_prompts` are lists of prompts, or data sets. A prompt is a text, or a list of chat messages
    (mappings with `role` and `content`). An entry is one of
    - a prompt, which every agent receives;
    - one prompt per agent, as a list in the order of `agents` or as a mapping by their names;
    - a row: a mapping with the entry (as above) in column `prompt`, and other columns.

    `reward(prompt, answers)` receives the prompt as given and the list of answers in the order of `agents`. Further
    parameters receive the columns of their names: `def reward(prompt, answers, solution)`. A parameter with a default
    is optional: rows may lack its column. `**columns` receives all columns. The function returns
    - a number: the reward of every agent;
    - one number per agent, as a list or as a mapping by the names of all agents;
    - a mapping of named levels, whose sum is the reward and whose means are logged;
    - None: no reward. This joint action is left out of its group, and counted in `rollout/unscored`.

    A call that raises an exception, returns anything else, such as NaN, or takes longer than `timeout_s` seconds counts
    as None, and the first one is logged. More than the share `max_failed_rewards` of a step end the run.

    Calls of a plain function never overlap. Calls of an `async` function run concurrently. `feedback`, with the same
    parameters, returns the feedback between turns, as one text or one per agent; by default the feedback is the reward.

    The functions run in the main thread of the driver, so that `signal.alarm` works, and in no sandbox: do not execute
    answers in them. They receive copies of the prompt and of the columns.

    Example:
        >>> environment = RewardEnvironment(
        ...     prompts=["Name a fruit."], reward=lambda prompt, answers: len(answers[0]), agents=["writer"]
        ... )
    """

    modes = ("level_feedback",)

    def __init__(
        self,
        *,
        reward: Callable[..., Any],
        agents: Sequence[str],
        prompts: Iterable[Any] | None = None,
        eval_prompts: Iterable[Any] | None = None,
        feedback: Callable[..., Any] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        is_list = isinstance(agents, Sequence) and not isinstance(agents, str)
        if not is_list or not agents or not all(isinstance(name, str) and name for name in agents):
            raise UserError(f"agents should be a list of names like ['helper', 'main'], got {agents!r}")
        if len(set(agents)) < len(agents):
            raise UserError(f"agents should be distinct names, got {list(agents)}")
        super().__init__(len(agents))
        self.agents = list(agents)
        self.reward = reward
        self.feedback_function = feedback
        self.timeout_s = timeout_s
        self.splits: dict[str, list[Mapping[str, Any]]] = {}
        """Rows by split, for `dataset.name`. Without prompts, the config's data set provides the tasks."""
        if prompts is not None:
            self.splits["train"] = rows_of(prompts)
        if eval_prompts is not None:
            self.splits["eval"] = rows_of(eval_prompts)
        self._parameters = {reward: parameters_of(reward)}
        if feedback is not None:
            self._parameters[feedback] = parameters_of(feedback)
        self._levels: set[str] = set()
        """Names of the levels, from the first call that returned levels."""
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        """Held during a call, per event loop."""
        self._late_in_a_row = 0
        """Number of the last calls of a plain function that took too long."""
        self._warned = False
        """Whether a failed call has been logged."""

    def from_config(self, config: Config) -> RewardEnvironment:  # type: ignore[override]
        """Return this environment. Raises UserError if the run has another number of agents."""
        if config.num_agents != self.num_agents:
            raise UserError(
                f"environment {config.environment} has {self.num_agents} agents ({', '.join(self.agents)}), and the "
                f"run has {config.num_agents}: set {config.algorithm}.num_agents to {self.num_agents}"
            )
        return self

    def check_task(self, task: Task) -> None:
        row = _row(task)
        self._prompts(task)
        for function, parameters in self._parameters.items():
            for name in parameters.reserved:
                if name in row.columns:
                    raise UserError(
                        f"{task.id} has a column {name}, and the parameter {name} of {name_of(function)} receives the "
                        "prompt or the answers: rename the column or the parameter"
                    )
            for name in parameters.required:
                if name not in row.columns:
                    listed = ", ".join([PROMPT, *row.columns])
                    raise UserError(f"{name_of(function)} takes {name}, which {task.id} does not have, only {listed}")

    def roles(self, task: Task) -> list[str]:
        return self.agents

    def first_prompts(self, task: Task) -> list[Prompt]:
        return self._prompts(task)

    def revisions(self, task: Task) -> list[str]:
        return ["Improve your answer."] * self.num_agents

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> AnsweredPrompt:
        return AnsweredPrompt(_row(task), tuple(responses))

    async def execute(self, programs: Sequence[Any], sandbox: Executor) -> list[Any]:
        """Return the value of the reward function, or a FailedCall, for each joint action."""
        return await gather(*(self._rewarded(attempt) for attempt in programs))

    def outcome(self, attempt: AnsweredPrompt, report: Any) -> Outcome:
        if report is None:
            return Outcome(0.0, failure=f"{name_of(self.reward)} returned None", unscored="none")
        if isinstance(report, FailedCall):
            return self._failed(report.reason, attempt)
        try:
            outcome = bounded_outcome(self._outcome(report))
        except BadReward as error:
            return self._failed(str(error), attempt)
        if outcome.failure:  # the sum of the levels is not finite
            return self._failed(f"{name_of(self.reward)}: {outcome.failure}", attempt)
        return outcome

    def _outcome(self, report: Any) -> Outcome:
        """Return the outcome of a value of the reward function. Raises BadReward."""
        value = report
        if _is_by_name(report, self.agents):
            value = [report.get(name) for name in self.agents]
        if isinstance(value, Mapping):
            levels = {str(name): self._number(level, report) for name, level in value.items()}
            self._levels = self._levels or set(levels)
            # Means of levels over a step are means over its answers: all answers need the same levels.
            if not levels or set(levels) != self._levels:
                raise BadReward(
                    f"{name_of(self.reward)} should return the same levels for every answer, got {list(levels)}, and "
                    f"before {sorted(self._levels)}: return 0 for a level without a reward"
                )
            return Outcome(sum(levels.values()), levels)
        if is_list(value):
            if len(value) != self.num_agents:
                raise self._bad_reward(report)
            rewards = tuple(self._number(reward, report) for reward in value)
            return Outcome(sum(rewards) / len(rewards), rewards=rewards)
        return Outcome(self._number(value, report))

    def _failed(self, reason: str, attempt: AnsweredPrompt) -> Outcome:
        """Return the outcome of a failed call. Warn of the first one."""
        row = attempt.row
        failure = f"{reason}, for prompt {row.prompt!r:.80}"
        if row.columns:
            failure += f", row {dict(row.columns)!r:.300}"
        if not self._warned:
            self._warned = True
            logger.warning(f"{failure}. Its joint action is left out; more are only counted, in rollout/unscored")
        return Outcome(0.0, failure=failure, unscored="error")

    def feedback(self, attempt: AnsweredPrompt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        if self.feedback_function is None:
            rewards = outcome.rewards or (outcome.reward,) * self.num_agents
            lines = [f"reward: {rewards[agent]:g}"]
            for level, value in outcome.levels.items():
                lines.append(f"{level}: {value:g}")
            return lines
        call = partial(self._call, self.feedback_function, attempt)
        name = name_of(self.feedback_function)
        try:
            text = call_user_function_blocking(call, self.timeout_s, name)
        except Exception as error:  # of a function that this package does not know
            raise UserError(_describe(error, name)) from error
        if _is_by_name(text, self.agents):
            text = text[self.agents[agent]]
        elif is_list(text):
            text = text[agent]
        if not isinstance(text, str):
            raise UserError(f"{name} should return one text, or one per agent, got {text!r}")
        return text.splitlines()

    def _prompts(self, task: Task) -> list[Prompt]:
        given = _row(task).prompt
        if _is_by_name(given, self.agents):
            prompts = [given[name] for name in self.agents]
        elif is_one_prompt(given):
            prompts = [given] * self.num_agents
        else:
            prompts = given
        try:
            if not is_list(prompts) or len(prompts) != self.num_agents:
                raise NotAPrompt("it is neither")
            return [read_prompt(prompt) for prompt in prompts]
        except NotAPrompt as error:
            one = "one text or list of chat messages (role and content, at last of the user)"
            expected = f"{one}, or one per agent ({', '.join(self.agents)})"
            raise UserError(f"the prompt of {task.id} should be {expected}, got {given!r:.200}: {error}") from None

    def _call(self, function: Callable[..., Any], attempt: AnsweredPrompt) -> Any:
        columns = self._parameters[function].columns(attempt.row.columns)
        return function(copied(attempt.row.prompt), list(attempt.answers), **columns)

    async def _rewarded(self, attempt: AnsweredPrompt) -> Any:
        name = name_of(self.reward)
        deadline = partial(wait_within, self.timeout_s, f"{name} (timeout_s of RewardEnvironment)", "")
        try:
            # A lock belongs to one event loop.
            async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
                if self._late_in_a_row == MAX_LATE_IN_A_ROW:
                    # The calls wait for each other: a whole step of late calls would take hours.
                    raise FunctionHangs(
                        f"{name} took longer than {self.timeout_s:g} s in {MAX_LATE_IN_A_ROW} calls in a row"
                    )
                try:
                    result = await deadline(call_user_function(partial(self._call, self.reward, attempt)))
                except DeadlineExceeded:
                    self._late_in_a_row += 1
                    raise
                self._late_in_a_row = 0
            if inspect.isawaitable(result):
                # Outside of the lock: calls of an `async` function run concurrently.
                return await deadline(result_of_user_function(result))
            return result
        except FunctionHangs:
            raise
        except Exception as error:  # of a function that this package does not know
            return FailedCall(_describe(error, name))

    def _number(self, value: Any, report: Any) -> float:
        if isinstance(value, str):  # `float` would read a text
            raise self._bad_reward(report)
        try:
            number = float(value)  # scalars of numpy and torch convert
        except (TypeError, ValueError, OverflowError):
            raise self._bad_reward(report) from None
        if not math.isfinite(number):
            raise self._bad_reward(report)
        return number

    def _bad_reward(self, report: Any) -> BadReward:
        expected = f"a finite number, {self.num_agents} numbers (one per agent), a mapping of named levels, or None"
        return BadReward(f"{name_of(self.reward)} should return {expected}, got {short_repr(report, 80)}")


def rows_of(given: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Return prompts, or the rows of a data set, as rows with a column `prompt`. Raises UserError if there are none."""
    if isinstance(given, str | Mapping):
        raise UserError(f"prompts should be a list of prompts or a data set, got {given!r:.80}")
    rows = []
    for entry in given:
        is_row = isinstance(entry, Mapping) and PROMPT in entry
        rows.append(entry if is_row else {PROMPT: entry})
    if not rows:
        raise UserError("prompts is an empty list: give at least one prompt")
    return rows


def prompt_task(row: Mapping[str, Any], number: int) -> Task:
    """Return the task of a row with a column `prompt`. Raises UserError if the column is missing."""
    name = str(row.get("task_id") or f"prompt/{number}")
    if row.get(PROMPT) is None:
        listed = ", ".join(map(str, row)) or "none"
        raise UserError(
            f"task {name} has no column {PROMPT}; its columns: {listed}. Rename the column with the prompts"
        )
    prompt = row[PROMPT]
    columns = {str(key): value for key, value in row.items() if key != PROMPT}
    entries = prompt
    if isinstance(prompt, Mapping):
        entries = prompt.values()
    elif is_one_prompt(prompt):
        entries = [prompt]
    elif not isinstance(prompt, list | tuple):
        raise UserError(f"task {name}: {PROMPT} should be text, messages or a list of prompts, got {prompt!r:.80}")
    texts = []
    for entry in entries:
        try:
            texts.append(as_text(read_prompt(entry)))
        except NotAPrompt:  # `check_task` says why
            texts.append(str(entry))
    return Task(name, "\n".join(texts), {"row": TaskRow(prompt, columns)})


def fingerprint_of_rows(splits: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return eight letters that differ for data with other prompts, by which a resumed run recognises its data."""
    prompts_of_splits = []
    for name in sorted(splits):
        prompts = []
        for row in splits[name]:
            # Rows of a data set with its own columns stand for themselves by the columns' names.
            prompts.append(row[PROMPT] if PROMPT in row else sorted(map(str, row)))
        prompts_of_splits.append((name, prompts))
    return hashlib.sha256(repr(prompts_of_splits).encode()).hexdigest()[:8]


def _row(task: Task) -> TaskRow:
    row = task.fields.get("row")
    if not isinstance(row, TaskRow):
        raise UserError(f"task {task.id} has no prompt row: a RewardEnvironment needs dataset.type prompts")
    return row


def _is_by_name(value: Any, agents: Sequence[str]) -> bool:
    return isinstance(value, Mapping) and set(value) == set(agents)


def _describe(error: Exception, name: str) -> str:
    """Return the exception of a user's function as text, with its place."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, UserError) or not frames:
        return str(error)
    return f"{name} raised {type(error).__name__}: {error} ({frames[-1].filename}:{frames[-1].lineno})"
