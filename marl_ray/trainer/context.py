"""Inputs of a run, and state that the tasks of the training loop share."""

from __future__ import annotations

from dataclasses import dataclass

from marl_ray.config import Config
from marl_ray.core.chat import as_text
from marl_ray.core.concurrency import Condition
from marl_ray.core.episode import Task
from marl_ray.core.text import pluralize
from marl_ray.environments.base import BaseEnvironment
from marl_ray.external.transition import Transition
from marl_ray.storage.resume import ResumeState
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.timing import Timeline
from marl_ray.trainer.batch_scheduling import SchedulingGate
from marl_ray.trainer.health import HealthMonitor

PROBE_TEXTS = 64
"""Number of prompts on which tokenizers are compared."""
EXCERPT_CHARS = 60
"""Number of characters at each end of a rendered prompt that the console shows."""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """An agent's first prompt as its model reads it, with special tokens, and its number of tokens."""

    agent: int
    task: str
    text: str
    tokens: int

    @property
    def title(self) -> str:
        return f"agent {self.agent}: first prompt of task {self.task}, {pluralize(self.tokens, 'token')}"

    @property
    def excerpt(self) -> str:
        """The title with the beginning and the end of the text on one line."""
        if len(self.text) <= 2 * EXCERPT_CHARS:
            return f"{self.title}: {self.text!r}"
        beginning = self.text[:EXCERPT_CHARS]
        end = self.text[-EXCERPT_CHARS:]
        return f"{self.title}: {beginning!r} ... {end!r}"


@dataclass(slots=True)
class RunInputs:
    """The tasks of a run, their environment, and the transition between turns, None for programs without turns."""

    environment: BaseEnvironment
    transition: Transition | None
    train_tasks: list[Task]
    eval_tasks: list[Task]
    prompt_notes: tuple[str, ...] = ()
    """One line per agent: how its prompts reach its model."""
    rendered_prompts: tuple[RenderedPrompt, ...] = ()
    """One first prompt per agent, of agents whose tokenizer is known."""

    def probe_texts(self, agent: int) -> list[str]:
        """Return the texts on which an agent's tokenizers are compared: its first prompts of the first tasks."""
        return [as_text(self.environment.first_prompts(task)[agent]) for task in self.train_tasks[:PROBE_TEXTS]]


@dataclass(frozen=True, slots=True)
class LoopContext:
    """State shared by the rollout and learner tasks. `condition` is notified when `gate` or a recorded step changes."""

    config: Config
    folder: RunFolder
    resume_state: ResumeState
    gate: SchedulingGate
    condition: Condition
    health: HealthMonitor
    timeline: Timeline
