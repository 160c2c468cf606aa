"""Scoring of given completions without a model and without Ray (`marl-ray score`).

Each line of the completions file is parsed, executed and rewarded by the same code as a joint action of a rollout, and
with a feedback mode it gets the prompts of the next turn. `reward_processor`, a run's affine map of rewards, is not
applied.

A line is a JSON object: `task_id`, `completions` (one text per agent, in the order of the roles) and optionally `turn`.
Several lines may be about one task.
"""

from __future__ import annotations

import asyncio
import difflib
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_ray.actors.sandbox_settings import sandbox_settings
from marl_ray.config import Config, from_tree
from marl_ray.core.episode import Task
from marl_ray.core.errors import UserError
from marl_ray.core.files import expand_home
from marl_ray.core.text import pluralize
from marl_ray.data.loading import load_rows, load_tasks, read_jsonl
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.base import Environment, Executor
from marl_ray.environments.plugin_checks import check_texts, qualified_method_name
from marl_ray.external.transition import Transition
from marl_ray.rollout.episode_runner import EpisodeRunner
from marl_ray.sandbox import SandboxSettings

KEYS = ("task_id", "completions", "turn")
FILE = "completions file"
LINES_PER_SANDBOX = 16
"""Lines in progress per sandbox, so that no sandbox waits while a slow line delays the output."""


@dataclass(frozen=True, slots=True)
class JointResponse:
    """A line of the completions file: its number (from 1), its task, one text per agent, and its turn if given."""

    line: int
    task: Task
    completions: tuple[str, ...]
    turn: int | None = None


def tasks_by_id(dataset: str, split: str, dataset_type: str) -> dict[str, Task]:
    """Return the tasks of a split by their ids and by the ids in the dataset's rows (MBPP: 11). Raises UserError."""
    tasks = load_tasks(dataset, split, dataset_type)
    row_ids = (str(row.get("task_id")) for row in load_rows(dataset, split))
    return dict(zip(row_ids, tasks, strict=True)) | {task.id: task for task in tasks}


def read_completions(path: Path, tasks: Mapping[str, Task]) -> list[JointResponse]:
    """Return the file's joint responses. Raises UserError with the first bad line and the number of other bad lines."""
    path = expand_home(path)
    responses: list[JointResponse] = []
    errors: list[str] = []
    try:
        for number, row in read_jsonl(path, FILE):
            try:
                responses.append(_joint_response(number, row, tasks))
            except UserError as error:
                errors.append(f"line {number}: {error}")
    except OSError as error:
        raise UserError(f"{FILE} {path} cannot be read ({error.strerror})") from None
    if errors:
        more = f" (and {pluralize(len(errors) - 1, 'more bad line')})" if len(errors) > 1 else ""
        raise UserError(f"{FILE} {path}, {errors[0]}{more}")
    if not responses:
        raise UserError(f"{FILE} {path} is empty")
    return responses


class CompletionScorer:
    """Scores joint responses to tasks of one dataset type.

    `mode` is the feedback mode that writes the prompts of the next turn; None for no prompts. `overrides` are settings
    by dotted key. The constructor checks settings and tasks, and raises UserError.
    """

    def __init__(
        self,
        dataset_type: str,
        responses: Sequence[JointResponse],
        mode: str | None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        self.mode = mode
        self._parts: dict[int, tuple[Config, Environment[Any], Transition]] = {}
        """Config, environment and transition by number of agents."""
        for number in sorted({len(response.completions) for response in responses}):
            config = _config(dataset_type, number, mode, overrides or {})
            environment = ENVIRONMENTS.get(config.environment).from_config(config)
            self._parts[number] = (config, environment, Transition(config.external, environment))
            self.sandbox: SandboxSettings = sandbox_settings(config)
        for response in responses:
            _, environment, _ = self._parts[len(response.completions)]
            environment.check_task(response.task)

    async def score_all(
        self, responses: Sequence[JointResponse], executor: Executor, limit: int
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the score of each joint response in order, with at most `limit` in progress."""
        runners = {number: EpisodeRunner(*parts, (), executor) for number, parts in self._parts.items()}
        waiting: deque[asyncio.Task[dict[str, Any]]] = deque()
        remaining = iter(responses)
        try:
            while True:
                while len(waiting) < limit and (response := next(remaining, None)) is not None:
                    waiting.append(asyncio.ensure_future(self.score(response, runners[len(response.completions)])))
                if not waiting:
                    return
                yield await waiting[0]
                waiting.popleft()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def score(self, response: JointResponse, player: EpisodeRunner) -> dict[str, Any]:
        """Return the score of a joint response as plain data.

        Keys: `task_id`, `turn` if given, `reward`, `rewards` if agents have rewards of their own, `levels`, `metrics`,
        the environment's evidence (`report` for code) and with a mode `prompts`. If the sandbox gave no verdict, only
        `task_id`, `turn` and `failure`.
        """
        environment = player.environment
        name: dict[str, Any] = {"task_id": response.task.id} | ({"turn": response.turn} if response.turn else {})
        attempt = environment.attempt(response.task, response.completions, last=self.mode is None)
        (outcome,) = await player.outcomes([attempt])
        if outcome.failure:
            return name | {"failure": outcome.failure}
        score = name | {"reward": outcome.reward}
        if outcome.rewards:
            score["rewards"] = list(outcome.rewards)
        score |= {"levels": dict(outcome.levels), "metrics": dict(outcome.metrics)}
        if outcome.evidence is not None:
            score |= outcome.evidence.data()
        if self.mode is not None:
            first = environment.first_prompts(response.task)
            check_texts(qualified_method_name(environment, "first_prompts"), first, environment.num_agents)
            observations = await player.transition.next_prompts(response.task, first, attempt, outcome)
            score["prompts"] = observations.prompts
        return score


def _joint_response(number: int, row: Mapping[str, Any], tasks: Mapping[str, Task]) -> JointResponse:
    for key in row:
        if key not in KEYS:
            raise UserError(f"unknown key {key!r}{_suggestion(key, KEYS)}")
    for key in ("task_id", "completions"):
        if key not in row:
            raise UserError(f"{key} is missing")
    name, texts, turn = str(row["task_id"]), row["completions"], row.get("turn")
    if name not in tasks:
        raise UserError(f"the dataset has no task {name!r}{_suggestion(name, list(tasks))}")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise UserError("completions should be a list of texts, one per agent")
    if turn is not None and (type(turn) is not int or turn < 1):
        raise UserError(f"turn should be a whole number from 1, got {turn!r}")
    return JointResponse(number, tasks[name], tuple(texts), turn)


def _suggestion(word: str, known: list[str] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {near[0]}?" if near else ""


def _config(dataset_type: str, num_agents: int, mode: str | None, overrides: Mapping[str, Any]) -> Config:
    """Return a config for environment, modes and sandbox. Raises UserError."""
    tree = {
        "model": {"name": "none"},  # required, and not used
        "dataset": {"name": "given", "type": dataset_type},
        "external": {"mode": mode or "plain"},
        "magrpo": {"num_agents": num_agents, "num_turns": 2},
    }
    return from_tree(tree, "magrpo", overrides)
