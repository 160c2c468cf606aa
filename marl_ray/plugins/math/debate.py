"""A debate: solvers answer at the same time, and read each other's answers before the next turn.

The form is that of Du et al., "Improving Factuality and Reasoning in Language Models through Multiagent Debate", 2023.
docs/reference/environments/math.md describes prompts and rewards.
"""

from __future__ import annotations

from collections import Counter
from statistics import fmean

from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.abilities import InterchangeableAgents
from marl_ray.environments.code_generation.prompts import numbered_names
from marl_ray.plugins.math import prompts
from marl_ray.plugins.math.problem import MathAttempt, MathEnvironment, MathEvidence, final_answer


class Debate(MathEnvironment, InterchangeableAgents):
    """Solvers of one problem. Each earns 1 if its own answer is right. The metric `all_passed` is 1 if the right answer
    has more votes than every other answer, so a tie is a failure."""

    def roles(self, task: Task) -> list[str]:
        return numbered_names(prompts.SOLVER, self.num_agents)

    def first_prompts(self, task: Task) -> list[str]:
        return [prompts.first_prompt(task.prompt, prompts.SOLVE)] * self.num_agents

    def revisions(self, task: Task) -> list[str]:
        return [prompts.SOLVE_AGAIN] * self.num_agents

    def judged(self, attempt: MathAttempt, right: list[bool]) -> Outcome:
        finals = tuple(map(final_answer, attempt.stated, right))
        share = fmean(right)
        wrong = Counter(answer for answer, is_right in finals if answer and not is_right)
        most = max(wrong.values(), default=0)
        agreed = len(set(finals)) == 1 and finals[0][0] != ""
        metrics = {
            "solution_right": share,
            "answered": fmean(answer != "" for answer in attempt.stated),
            "agreed": float(agreed),
            "all_passed": float(sum(right) > most),
        }
        names = numbered_names(prompts.SOLVER, self.num_agents)
        evidence = MathEvidence(finals, agreed, tuple(zip(names, attempt.stated, strict=True)))
        rewards = tuple(map(float, right))
        return Outcome(share, {"solution": share}, metrics, rewards=rewards, evidence=evidence)

    def heard(self, attempt: MathAttempt, agent: int) -> list[str]:
        names = numbered_names(prompts.SOLVER, self.num_agents)
        lines: list[str] = []
        for other, response in enumerate(attempt.answers):
            if other != agent:
                lines += prompts.quoted(names[other], response)
        return lines
