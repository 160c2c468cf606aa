"""Solver and verifiers: the last agent solves a problem, all others then read its answer and judge or correct it.

docs/reference/environments/math.md describes prompts, rewards and their degenerate optima.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.abilities import AnswersInOrder
from marl_ray.environments.code_generation.prompts import numbered_names
from marl_ray.plugins.math import prompts
from marl_ray.plugins.math.answers import normal_form
from marl_ray.plugins.math.options import MathConfig
from marl_ray.plugins.math.problem import MathAttempt, MathEnvironment, MathEvidence, final_answer

VERDICTS = {True: "right", False: "wrong", None: ""}


class SolverVerifier(MathEnvironment, AnswersInOrder):
    """A solver, and verifiers that read its answer. A single agent is a solver alone.

    The solver earns 1 if its answer is right, and nothing for the verifier's opinion. A verifier earns 1 if it is right
    itself: with `judges` about the solver's answer, with `corrects` by its own answer, which is the final one.
    """

    def __init__(self, num_agents: int, options: MathConfig | None = None) -> None:
        super().__init__(num_agents, options)
        self.verifiers = num_agents - 1
        self._verifier_names = numbered_names("verifier", self.verifiers)
        self.corrects = self.verifiers > 0 and self.options.verifier == "corrects"
        if self.corrects and self.verifiers > 1:
            raise UserError("math.verifier: corrects has one final answer: set num_agents to 2")

    def roles(self, task: Task) -> list[str]:
        return [*self._verifier_names, prompts.SOLVER]

    def order(self, task: Task) -> list[list[int]]:
        """Return the solver first, then all verifiers."""
        if not self.verifiers:
            return [[0]]
        return [[self.verifiers], list(range(self.verifiers))]

    def first_prompts(self, task: Task) -> list[str]:
        check = prompts.first_prompt(task.prompt, prompts.CHECK[self.options.verifier])
        return [check] * self.verifiers + [prompts.first_prompt(task.prompt, prompts.SOLVE)]

    def prompt_after(self, task: Task, agent: int, prompt: str, answers: Mapping[int, str]) -> str:
        return f"A solver's answer:\n{prompts.shown_response(answers[self.verifiers])}\n\n{prompt}"

    def revisions(self, task: Task) -> list[str]:
        return [prompts.CHECK[self.options.verifier]] * self.verifiers + [prompts.SOLVE_AGAIN]

    def judged(self, attempt: MathAttempt, right: list[bool]) -> Outcome:
        solved = right[-1]
        solution = attempt.stated[-1]
        final = final_answer(solution, solved)
        earned: list[float] = []
        verdicts: list[bool | None] = []
        said: list[tuple[str, str]] = []
        for number, name in enumerate(self._verifier_names):
            stated = attempt.stated[number]
            if self.corrects:
                # A verifier that repeats the solver's answer accepts it.
                verdict = normal_form(stated) == normal_form(solution) if stated else None
                earned.append(float(right[number]))
                final = final_answer(stated, right[number])
                said.append((name, stated))
            else:
                verdict = prompts.read_verdict(attempt.answers[number])
                earned.append(float(verdict == solved))
                said.append((name, VERDICTS[verdict]))
            verdicts.append(verdict)
        said.append((prompts.SOLVER, solution))
        levels = {"solution": float(solved)}
        metrics = {
            "solution_right": float(solved),
            "answered": float(solution != ""),
            "all_passed": float(final[1]),
        }
        if self.verifiers:
            levels["verification"] = fmean(earned)
            metrics["verdict_right"] = fmean(verdict == solved for verdict in verdicts)
            metrics["accepted"] = verdicts.count(True) / self.verifiers
        accepted = verdicts.count(True) == self.verifiers
        evidence = MathEvidence((final,), accepted, tuple(said))
        rewards = (*earned, float(solved))
        return Outcome(math.fsum(levels.values()), levels, metrics, rewards=rewards, evidence=evidence)

    def heard(self, attempt: MathAttempt, agent: int) -> list[str]:
        lines: list[str] = []
        if agent < self.verifiers:  # a verifier reads the solver's next answer
            return lines
        for name, response in zip(self._verifier_names, attempt.answers, strict=False):
            lines += prompts.quoted(name, response)
        return lines
