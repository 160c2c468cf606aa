"""Scoring of given completions without a model and without Ray (`marl-ray score`).

A line of the completions file is a JSON object: `task_id`, `completions` (one text per agent, in the order of roles)
and optionally `turn`. Each line is parsed, executed and rewarded like a joint action of a rollout, but without
`reward_processor`; with a feedback mode it gets the prompts of the next turn. A line with `program` in place of
`completions` is a program of another system, which is run as it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from marl_ray.actors.sandbox_settings import sandbox_settings
from marl_ray.config import Config, from_tree
from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.core.stop_signals import StopSignals
from marl_ray.core.text import did_you_mean, pluralize
from marl_ray.data import DATASETS
from marl_ray.data.loading import load_rows, load_tasks_by_row, read_jsonl
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.base import Environment, Executor
from marl_ray.environments.plugin_checks import check_prompts, qualified_method_name
from marl_ray.evaluation.requests import ScoreRequest
from marl_ray.evaluation.whole_programs import WholePrograms
from marl_ray.external.transition import Transition
from marl_ray.rollout.scorer import Scorer
from marl_ray.sandbox import ExecutionReport, Program, Sandbox, SandboxSettings, SandboxUnavailable
from marl_ray.telemetry.logs import progress_bar_disabled, tqdm

logger = logging.getLogger(__name__)
KEYS = ("task_id", "completions", "program", "turn")
FILE = "completions file"
LINES_PER_SANDBOX = 16
"""Lines in progress per sandbox. Further lines run while a slow line delays the output."""


@dataclass(frozen=True, slots=True)
class JointResponse:
    """A line of the completions file: its task, one text per agent, and its turn if given. `is_program`: the only text
    is a whole program."""

    task: Task
    completions: tuple[str, ...]
    turn: int | None = None
    is_program: bool = False

    @property
    def kind(self) -> int:
        """The number of agents, 0 for a whole program. Lines of one kind share an environment."""
        return 0 if self.is_program else len(self.completions)


def tasks_by_id(dataset: str, split: str, dataset_type: str) -> dict[str, Task]:
    """Return the tasks of a split by their ids and by the ids in the dataset's rows (MBPP: 11). Raises UserError."""
    rows = load_rows(dataset, split)
    by_row_id = {}
    by_id = {}
    for number, task in load_tasks_by_row(dataset, split, dataset_type).items():
        by_id[task.id] = task
        if "task_id" in rows[number]:
            by_row_id[str(rows[number]["task_id"])] = task
    return by_row_id | by_id


def read_completions(path: Path, tasks: Mapping[str, Task]) -> list[JointResponse]:
    """Return the file's joint responses. Raises UserError with the first bad line and the number of other bad lines."""
    path = expand_home(path)
    responses: list[JointResponse] = []
    errors: list[str] = []
    try:
        for number, row in read_jsonl(path, FILE):
            try:
                responses.append(_joint_response(row, tasks))
            except UserError as error:
                errors.append(f"line {number}: {error}")
    except OSError as error:
        raise UserError(f"{FILE} {path} cannot be read ({error.strerror})") from None
    if errors:
        others = pluralize(len(errors) - 1, "more bad line")
        more = f" (and {others})" if len(errors) > 1 else ""
        raise UserError(f"{FILE} {path}, {errors[0]}{more}")
    if not responses:
        raise UserError(f"{FILE} {path} is empty")
    return responses


class CompletionScorer:
    """Scores joint responses to tasks of one dataset type.

    `mode` is the feedback mode of the next turn's prompts (None: no prompts), `overrides` are settings by dotted key.
    The constructor checks settings and tasks, and raises UserError.
    """

    def __init__(
        self, dataset_type: str, responses: Sequence[JointResponse], mode: str | None, overrides: Mapping[str, Any]
    ) -> None:
        self.mode = mode
        self._parts: dict[int, tuple[Config, Environment[Any], Transition]] = {}
        """Config, environment and transition by kind of line."""
        for kind in sorted({response.kind for response in responses}):
            if kind == 0 and mode is not None:
                raise UserError("a whole program gets no feedback: leave out --feedback, or give completions")
            tree = {
                "model": {"name": "none"},  # required, and not used
                "dataset": {"name": "given", "type": dataset_type},
                "external": {"mode": mode or "plain"},
                "magrpo": {"num_agents": max(1, kind), "num_turns": 2},
            }
            config = from_tree(tree, "magrpo", overrides)
            environment_class = ENVIRONMENTS.get(config.environment) if kind else WholePrograms
            environment = environment_class.from_config(config)
            self._parts[kind] = (config, environment, Transition(config.external, environment))
            self.sandbox: SandboxSettings = sandbox_settings(config.sandbox)
        for response in responses:
            _, environment, _ = self._parts[response.kind]
            environment.check_task(response.task)

    async def score_all(
        self, responses: Sequence[JointResponse], executor: Executor, limit: int
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the score of each joint response in order, with at most `limit` in progress."""
        scorers: dict[int, Scorer] = {}
        for kind, (config, environment, _) in self._parts.items():
            scorers[kind] = Scorer(config, environment, executor)
        waiting: deque[asyncio.Task[dict[str, Any]]] = deque()
        remaining = iter(responses)
        try:
            while True:
                for response in islice(remaining, limit - len(waiting)):
                    scorer = scorers[response.kind]
                    waiting.append(asyncio.ensure_future(self._score(response, scorer)))
                if not waiting:
                    return
                yield await waiting[0]
                waiting.popleft()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _score(self, response: JointResponse, scorer: Scorer) -> dict[str, Any]:
        """Return the score as plain data; only `task_id`, `turn` and `failure` if the sandbox gave no verdict."""
        environment = scorer.environment
        score: dict[str, Any] = {"task_id": response.task.id}
        if response.turn is not None:
            score["turn"] = response.turn
        attempt = environment.attempt(response.task, response.completions, last=self.mode is None)
        (outcome,) = await scorer.outcomes([attempt])
        if outcome.failure:
            return score | {"failure": outcome.failure}
        score["reward"] = outcome.reward
        if outcome.rewards:
            score["rewards"] = list(outcome.rewards)
        score["levels"] = dict(outcome.levels)
        score["metrics"] = dict(outcome.metrics)
        if outcome.evidence is not None:
            score |= outcome.evidence.data()
        if self.mode is not None:
            first = environment.first_prompts(response.task)
            check_prompts(qualified_method_name(environment, "first_prompts"), first, environment.num_agents)
            _, _, transition = self._parts[response.kind]
            observations = await transition.next_prompts(response.task, first, attempt, outcome)
            score["prompts"] = observations.prompts
        return score


def score_completions(request: ScoreRequest, on_line: Callable[[dict[str, Any]], None]) -> int:
    """Score all completions, call `on_line` with each score in order, and return the number of completions without a
    verdict. Raises UserError."""
    DATASETS.check(request.type)
    tasks = tasks_by_id(request.dataset, request.split, request.type)
    given = request.completions
    responses = read_completions(given, tasks) if isinstance(given, Path) else joint_responses(given, tasks)
    scorer = CompletionScorer(request.type, responses, request.feedback, request.overrides)
    workers = min(request.workers or os.cpu_count() or 1, len(responses))
    rewards: list[float] = []

    async def score() -> None:
        hidden = progress_bar_disabled()
        with tqdm(total=len(responses), unit="line", disable=hidden, dynamic_ncols=True, leave=False) as bar:
            async for line in scorer.score_all(responses, sandboxes, LINES_PER_SANDBOX * workers):
                with tqdm.external_write_mode():
                    on_line(line)
                bar.update()
                if "failure" not in line:
                    rewards.append(line["reward"])

    with StopSignals() as signals, LocalSandboxPool(scorer.sandbox, workers) as sandboxes:
        logger.info(sandboxes.describe())
        signals.run(score)
    if rewards:
        logger.info(f"{len(rewards)} lines scored, mean reward {sum(rewards) / len(rewards):.4f}")
    return len(responses) - len(rewards)


def joint_responses(rows: Sequence[Mapping[str, Any]], tasks: Mapping[str, Task]) -> list[JointResponse]:
    """Return the joint responses of rows like the lines of a completions file. Raises UserError for the first bad
    row."""
    responses = []
    for number, row in enumerate(rows):
        try:
            responses.append(_joint_response(row, tasks))
        except UserError as error:
            raise UserError(f"completions, row {number}: {error}") from None
    if not responses:
        raise UserError("completions is an empty list")
    return responses


def _joint_response(row: Mapping[str, Any], tasks: Mapping[str, Task]) -> JointResponse:
    if not isinstance(row, Mapping):
        raise UserError(f"expected a mapping with task_id and completions, got {row!r:.80}")
    for key in row:
        if key not in KEYS:
            hint = did_you_mean(key, KEYS) or ": a row has task_id, completions or program, and optionally turn"
            raise UserError(f"unknown key {key!r}{hint}")
    if "task_id" not in row:
        raise UserError("task_id is missing")
    if ("completions" in row) == ("program" in row):
        raise UserError("a row has either completions or a program")
    is_program = "program" in row
    texts = [row["program"]] if is_program else row["completions"]
    name = str(row["task_id"])
    if name not in tasks:
        hint = did_you_mean(name, tasks) or f"; its first is {next(iter(tasks))!r}"
        raise UserError(f"the dataset has no task {name!r}{hint}")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        if is_program:
            raise UserError("program should be a text")
        raise UserError("completions should be a list of texts, one per agent")
    turn = row.get("turn")
    if turn is not None and (type(turn) is not int or turn < 1):
        raise UserError(f"turn should be a whole number from 1, got {turn!r}")
    return JointResponse(tasks[name], tuple(texts), turn, is_program)


class LocalSandboxPool:
    """An `Executor` with `workers` sandboxes, each served by a thread.

    Leaving the context with an exception does not wait for running programs: the threads are daemons, and a sandbox's
    processes end with the process that started them.
    """

    def __init__(self, settings: SandboxSettings, workers: int) -> None:
        self._work: queue.SimpleQueue[tuple[Program, Future[ExecutionReport]] | None] = queue.SimpleQueue()
        """Programs to run; None ends one thread."""
        self._sandboxes = []
        self._threads = []
        for _ in range(workers):
            sandbox = Sandbox(settings)
            self._sandboxes.append(sandbox)
            self._threads.append(threading.Thread(target=self._serve, args=(sandbox,), daemon=True))

    def __enter__(self) -> Self:
        """Start the sandboxes. Raises UserError if no acceptable isolation is available."""
        for sandbox in self._sandboxes:
            try:
                sandbox.start()
            except SandboxUnavailable as error:
                raise UserError(f"sandbox: {error}. See marl-ray sandbox doctor") from None
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for _ in self._threads:
            self._work.put(None)
        if kind is None:
            for thread, sandbox in zip(self._threads, self._sandboxes, strict=True):
                thread.join()
                sandbox.close()

    def describe(self) -> str:
        return self._sandboxes[0].describe()

    async def execute(self, programs: Sequence[Any]) -> list[ExecutionReport]:
        waiting: list[Future[ExecutionReport]] = []
        for program in programs:
            report: Future[ExecutionReport] = Future()
            self._work.put((program, report))
            waiting.append(report)
        return [await asyncio.wrap_future(report) for report in waiting]

    def _serve(self, sandbox: Sandbox) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            program, report = work
            if not report.set_running_or_notify_cancel():
                continue
            try:
                report.set_result(sandbox.run(program))
            except Exception as error:  # passed to the waiting caller
                report.set_exception(error)
