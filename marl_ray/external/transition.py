"""From a joint action and its report to every agent's next prompt (the Dec-POMDP's observation function)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from marl_ray.config.schema import ExternalConfig
from marl_ray.core.messages import Observations, Task
from marl_ray.environments.diagnosis import Diagnosis, SandboxSlice
from marl_ray.external import feedback
from marl_ray.external.endpoints import endpoint_of
from marl_ray.external.expert import Expert
from marl_ray.sandbox import ExecutionReport, Program

FEEDBACK_MODES: dict[str, Callable[[Diagnosis, int], list[str]]] = {
    "level_feedback": feedback.level_feedback,
    "level_passed": feedback.level_passed,
    "passed": feedback.passed,
    "plain": feedback.plain,
}


class TransitionEnvironment(Protocol):
    """What a mode needs to know of an environment."""

    def function_names(self, task: Task) -> list[str]: ...
    def revisions(self, task: Task) -> list[str]: ...
    def previous_answers(self, task: Task, responses: Sequence[str]) -> list[str]: ...
    def program(self, task: Task, responses: Sequence[str]) -> Program: ...
    def diagnose(
        self, task: Task, responses: Sequence[str], report: ExecutionReport, sandbox_slice: SandboxSlice
    ) -> Diagnosis: ...


class ExternalTransition:
    """One external mode, for one environment.

    Raises ValueError, in one line, for `expert_edits` without an expert that can be asked.
    """

    def __init__(self, config: ExternalConfig, environment: TransitionEnvironment) -> None:
        self._config = config
        self._environment = environment
        self.expert: Expert | None = None
        if config.mode == "expert_edits":
            self.expert = Expert(endpoint_of(config), config.expert_timeout_s, config.expert_retries)

    async def next_prompts(
        self, task: Task, first_prompts: list[str], responses: Sequence[str], report: ExecutionReport
    ) -> Observations:
        """One prompt per agent. Waits only for the expert, and for that within its time-outs and retries."""
        config, environment = self._config, self._environment
        names = environment.function_names(task)
        previous = environment.previous_answers(task, responses)
        instructions = environment.revisions(task)
        lines: list[list[str]] = [[] for _ in names]
        edits: dict[str, str] | None = None
        metrics: dict[str, float] = {}
        if self.expert is not None:
            program = environment.program(task, responses).source
            edits = await self.expert.edits(task.prompt, program, names)
            metrics["expert/failures"] = float(not edits)
        else:
            diagnosis = environment.diagnose(task, responses, report, config.sandbox_slice)
            render = FEEDBACK_MODES[config.mode]
            lines = [render(diagnosis, agent) for agent in range(len(names))]
        prompts = [
            feedback.next_prompt(
                first_prompt=first_prompts[agent] if config.original_prompt else None,
                previous=previous[agent] if config.previous_response else None,
                feedback=lines[agent],
                edit=(edits or {}).get(name),
                instruction=instructions[agent],
            )
            for agent, name in enumerate(names)
        ]
        return Observations(prompts, metrics)
