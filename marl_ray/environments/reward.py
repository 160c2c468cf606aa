"""An environment from prompts and a reward function, the first step before an environment class."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from marl_ray.config.schema import Config
from marl_ray.core.chat import Prompt, as_text
from marl_ray.core.concurrency import gather, wait_within
from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.base import Environment, Executor
from marl_ray.environments.plugin_checks import ROLES

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


class RewardEnvironment(Environment[AnsweredPrompt]):
    """A complete environment: prompts, the names of the agents, and a function from answers to a reward.

    `prompts` and `eval_prompts` are lists of prompts, or data sets. A prompt is a text, or a list of chat messages
    (mappings with `role` and `content`). An entry is one of
    - a prompt, which every agent receives;
    - one prompt per agent, as a list in the order of `agents` or as a mapping by their names;
    - a row: a mapping with the entry (as above) in column `prompt`, and other columns.

    `reward(prompt, answers)` receives the prompt as given and the list of answers in the order of `agents`. Further
    parameters receive the columns of their names: `def reward(prompt, answers, solution)`. The function returns
    - a number: the reward of every agent;
    - one number per agent, as a list or as a mapping by the names of all agents;
    - a mapping of named levels, whose sum is the reward and whose means are logged.

    Calls of a plain function never overlap, because they take turns in a thread. Calls of an `async` function run
    concurrently. A call has a deadline of `timeout_s` seconds. `feedback`, with the same parameters, returns the
    feedback between turns, as one text or one per agent; by default the feedback is the reward.

    The functions run in the driver, in no sandbox: do not execute answers in them.

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
        self.agents, self.reward, self.feedback_function, self.timeout_s = list(agents), reward, feedback, timeout_s
        self.splits = {
            name: rows_of(given)
            for name, given in (("train", prompts), ("eval", eval_prompts))
            if given is not None  # without prompts, dataset.name provides the tasks
        }
        """Rows by split, for `dataset.name`."""
        self._columns = {function: _columns_of(function) for function in (reward, feedback) if function is not None}
        self._levels: set[str] = set()
        """Names of the levels, from the first call that returned levels."""
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
        """Held during a call, per event loop."""

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
        for function, (names, _) in self._columns.items():
            for name in names:
                if name not in row.columns:
                    listed = ", ".join([PROMPT, *row.columns])
                    raise UserError(f"{_name(function)} takes {name}, which {task.id} does not have, only {listed}")

    def roles(self, task: Task) -> list[str]:
        return self.agents

    def first_prompts(self, task: Task) -> list[Prompt]:
        return self._prompts(task)

    def revisions(self, task: Task) -> list[str]:
        return ["Improve your answer."] * self.num_agents

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> AnsweredPrompt:
        return AnsweredPrompt(_row(task), tuple(responses))

    async def execute(self, programs: Sequence[Any], sandbox: Executor) -> list[Any]:
        """Return the value of the reward function for each joint action. Raises UserError after `timeout_s`."""
        return await gather(*(self._rewarded(attempt) for attempt in programs))

    def outcome(self, attempt: AnsweredPrompt, report: Any) -> Outcome:
        own = [report.get(name) for name in self.agents] if _is_by_name(report, self.agents) else report
        if isinstance(own, Mapping):
            levels = {str(name): self._number(value, report, attempt) for name, value in own.items()}
            self._levels = self._levels or set(levels)
            if not levels or set(levels) != self._levels:
                raise UserError(
                    f"{_name(self.reward)} should return the same levels for every answer, got {list(levels)}, and "
                    f"before {sorted(self._levels)}: return 0 for a level without a reward"
                )
            return Outcome(sum(levels.values()), levels)
        if _is_list(own):
            if len(own) != self.num_agents:
                raise self._bad_reward(report, attempt)
            rewards = tuple(self._number(value, report, attempt) for value in own)
            return Outcome(sum(rewards) / len(rewards), rewards=rewards)
        return Outcome(self._number(own, report, attempt))

    def feedback(self, attempt: AnsweredPrompt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        if self.feedback_function is None:
            rewards = outcome.rewards or (outcome.reward,) * self.num_agents
            return [f"reward: {rewards[agent]:g}", *(f"{name}: {value:g}" for name, value in outcome.levels.items())]
        text = self._call(self.feedback_function, attempt)
        text = text[self.agents[agent]] if _is_by_name(text, self.agents) else text[agent] if _is_list(text) else text
        if not isinstance(text, str):
            raise UserError(f"{_name(self.feedback_function)} should return one text, or one per agent, got {text!r}")
        return text.splitlines()

    def previous_answers(self, attempt: AnsweredPrompt) -> list[str]:
        return list(attempt.answers)

    def _prompts(self, task: Task) -> list[Prompt]:
        given = _row(task).prompt
        prompts = [given] * self.num_agents if _is_prompt(given) else given
        prompts = [given[name] for name in self.agents] if _is_by_name(given, self.agents) else prompts
        if not _is_list(prompts) or len(prompts) != self.num_agents or not all(map(_is_prompt, prompts)):
            one = "one text or list of chat messages (role and content, at last of the user)"
            expected = f"{one}, or one per agent ({', '.join(self.agents)})"
            raise UserError(f"the prompt of {task.id} should be {expected}, got {given!r:.200}")
        return list(prompts)

    def _call(self, function: Callable[..., Any], attempt: AnsweredPrompt) -> Any:
        names, takes_all = self._columns[function]
        columns = attempt.row.columns
        chosen = columns if takes_all else {name: columns[name] for name in names}
        return function(attempt.row.prompt, list(attempt.answers), **chosen)

    async def _rewarded(self, attempt: AnsweredPrompt) -> Any:
        deadline = partial(wait_within, self.timeout_s, f"{_name(self.reward)} (timeout_s of RewardEnvironment)", "")
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            result = await deadline(_in_thread(partial(self._call, self.reward, attempt)))
        return await deadline(result) if inspect.isawaitable(result) else result

    def _number(self, value: Any, report: Any, attempt: AnsweredPrompt) -> float:
        try:
            number = float(value) if not isinstance(value, str) else float("nan")  # numpy and torch scalars convert
        except (TypeError, ValueError):
            number = float("nan")
        if not abs(number) < float("inf"):
            raise self._bad_reward(report, attempt)
        return number

    def _bad_reward(self, report: Any, attempt: AnsweredPrompt) -> UserError:
        expected = f"a finite number, {self.num_agents} numbers (one per agent), or a mapping of named levels"
        return UserError(
            f"{_name(self.reward)} should return {expected}, got {report!r:.80} for prompt {attempt.row.prompt!r:.80}"
        )


def rows_of(given: Iterable[Any]) -> list[Mapping[str, Any]]:
    """Return prompts, or the rows of a data set, as rows with a column `prompt`. Raises UserError if there are none."""
    if isinstance(given, str | Mapping):
        raise UserError(f"prompts should be a list of prompts or a data set, got {given!r:.80}")
    rows = [entry if isinstance(entry, Mapping) and PROMPT in entry else {PROMPT: entry} for entry in given]
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
    entries = prompt.values() if isinstance(prompt, Mapping) else [prompt] if _is_prompt(prompt) else prompt
    texts = (as_text(entry) if _is_prompt(entry) else str(entry) for entry in entries)
    return Task(name, "\n".join(texts), {"row": TaskRow(prompt, columns)})


def fingerprint_of_rows(splits: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return eight letters that differ for data with other prompts, by which a resumed run recognises its data."""
    prompts = {
        name: [row[PROMPT] if PROMPT in row else sorted(map(str, row)) for row in splits[name]] for name in splits
    }
    return hashlib.sha256(repr(sorted(prompts.items())).encode()).hexdigest()[:8]


def _row(task: Task) -> TaskRow:
    row = task.fields.get("row")
    if not isinstance(row, TaskRow):
        raise UserError(f"task {task.id} has no prompt row: a RewardEnvironment needs dataset.type prompts")
    return row


def _columns_of(function: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    """Return the parameters after prompt and answers, and whether the function takes any column. Raises UserError."""
    if not callable(function):
        raise UserError(f"reward and feedback should be functions of (prompt, answers), got {function!r:.80}")
    try:
        parameters = list(inspect.signature(function).parameters.values())
        inspect.signature(function).bind_partial(None, None)
    except ValueError:  # a built-in function without a signature
        return (), False
    except TypeError:
        parameters = []
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise UserError(f"{_name(function)} should take two parameters, (prompt, answers), and names of columns")
    further = [*positional[2:], *(p for p in parameters if p.kind is p.KEYWORD_ONLY)]
    required = tuple(p.name for p in further if p.default is p.empty)
    return required, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _name(function: Callable[..., Any]) -> str:
    return f"the function {getattr(function, '__qualname__', type(function).__qualname__)}"


def _is_prompt(value: Any) -> bool:
    """Return whether the value is a text, or a list of chat messages that ends with one of the user."""
    if isinstance(value, str):
        return True
    messages = value if isinstance(value, list | tuple) else ()
    return all(map(_is_message, messages)) and bool(messages) and messages[-1]["role"] == "user"


def _is_message(value: Any) -> bool:
    known = isinstance(value, Mapping) and value.keys() == {"role", "content"}
    return known and value["role"] in ROLES and isinstance(value["content"], str)


def _is_list(value: Any) -> bool:
    """Return whether the value is a list, tuple or array with one dimension."""
    return isinstance(value, list | tuple) or (getattr(value, "ndim", 0) == 1 and hasattr(value, "__getitem__"))


def _is_by_name(value: Any, agents: Sequence[str]) -> bool:
    return isinstance(value, Mapping) and set(value) == set(agents)


async def _in_thread(call: Callable[[], Any]) -> Any:
    """Return the result of a call in a thread of its own, which does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(method: str, value: Any) -> None:
        if not done.done():
            getattr(done, method)(value)

    def run() -> None:
        try:
            method, value = "set_result", call()
        except BaseException as error:
            method, value = "set_exception", error
        with suppress(RuntimeError):  # the loop has ended after a timeout
            loop.call_soon_threadsafe(settle, method, value)

    threading.Thread(target=run, name="reward function", daemon=True).start()
    return await done
