"""Writing tasks: two agents write the two parts of a text at the same time, and the parts should fit together.

Tasks and reward levels follow CoMLRL's writing environments (Liu et al., "LLM Collaboration With Multi-Agent
Reinforcement Learning", 2025). docs/reference/environments/writing.md describes them and shows their limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.text_environment import TextAttempt, TextEnvironment
from marl_ray.plugins.writing.levels import ARXIV, TLDR, Comparison, Rule, compare, level_rewards
from marl_ray.plugins.writing.prompts import ARXIV_PROMPTS, SPLIT, TLDR_PROMPTS, WritingPrompts

COMPLETE = 2.5
"""Reward from which a joint action counts as passed: all levels but half of the style."""


@dataclass(frozen=True)
class WrittenParts(TextAttempt):
    """The answers of one joint action, and the numbers of the two parts."""

    found: Comparison


class SummaryAndDetails(TextEnvironment[WrittenParts]):
    """A short and a detailed summary of a post (TLDR). A single agent writes both, with a separator. Tasks have no
    fields."""

    modes = ("level_feedback", "passed")
    rule: ClassVar[Rule] = TLDR
    texts: ClassVar[WritingPrompts] = TLDR_PROMPTS

    def __init__(self, num_agents: int) -> None:
        super().__init__(num_agents)
        if num_agents > 2:
            raise UserError("writing tasks have two parts: set num_agents to 1 or 2")

    def roles(self, task: Task) -> list[str]:
        return self.texts.roles(self.num_agents)

    def first_prompts(self, task: Task) -> list[str]:
        return self.texts.first_prompts(task.prompt, self.num_agents)

    def revisions(self, task: Task) -> list[str]:
        return self.texts.revisions(self.num_agents)

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> WrittenParts:
        if self.num_agents == 2:
            first, second = responses
        else:
            first, _, second = responses[0].partition(SPLIT)
        return WrittenParts(tuple(responses), compare(first.strip(), second.strip(), self.rule))

    def outcome(self, attempt: WrittenParts, report: None) -> Outcome:
        found = attempt.found
        levels = level_rewards(found, self.rule)
        reward = math.fsum(levels.values())
        metrics = {
            "first_words": float(found.words[0]),
            "second_words": float(found.words[1]),
            "length_ratio": found.length_ratio,
            "unique_ratio": found.unique_ratio,
            "transition_kinds": float(len(found.kinds)),
            "similarity": found.jaccard,
            "all_passed": float(reward >= COMPLETE),
        }
        return Outcome(reward, levels, metrics)

    def facts(self, attempt: WrittenParts, outcome: Outcome, mode: str, agent: int) -> list[str]:
        found = attempt.found
        rule = self.rule
        low, high = rule.words
        lines = []
        for part, count in zip(self.texts.parts, found.words, strict=True):
            lines.append(f"{part}: {count} words (from {low} to {high})")
        return [
            *lines,
            f"length ratio: {found.length_ratio:.2f} (best from {rule.length.best_low} to {rule.length.best_high})",
            f"ratio of different words: {found.unique_ratio:.2f} (best from {rule.unique.best_low})",
            f"kinds of transition words: {', '.join(found.kinds) or 'none'}",
            f"shared vocabulary: {found.jaccard:.2f} (best from {rule.jaccard})",
        ]


class PaperIntroduction(SummaryAndDetails):
    """The two parts of a paper's introduction, from its abstract (arXiv)."""

    rule = ARXIV
    texts = ARXIV_PROMPTS
