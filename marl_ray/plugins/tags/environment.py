"""Tags: agents read the same short text at the same time and name words of it; different words count.

docs/reference/environments/tags.md describes prompts and rewards. No agent sees the words of another, so agents can
avoid equal words only by a division of the text that they have learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Self

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.abilities import InterchangeableAgents
from marl_ray.environments.text_environment import TextAttempt, TextEnvironment
from marl_ray.plugins.tags import prompts
from marl_ray.plugins.tags.options import TagsConfig
from marl_ray.plugins.tags.words import content_words, relative_positions, split_parts, split_words

if TYPE_CHECKING:
    from marl_ray.config import Config

DEFAULT_TOTAL = 6
"""Number of words that all agents together are asked for, unless `tags.words` is set."""
NO_POSITION = 0.5
"""Position of an agent without valid words."""


@dataclass(frozen=True)
class Tags(TextAttempt):
    """The words of one joint action. `named` are each agent's words, at most as many as it was asked for; `valid` are
    the different content words of the text among them; `positions` are mean relative positions of valid words."""

    named: tuple[tuple[str, ...], ...]
    valid: tuple[tuple[str, ...], ...]
    positions: tuple[float, ...]


class Tagging(TextEnvironment[Tags], InterchangeableAgents):
    """Readers of one text, each asked for `words` words. None: six words are divided equally between the agents.
    `commas`: only single words between commas count. Tasks have no fields."""

    def __init__(self, num_agents: int, words: int | None = None, commas: bool = False) -> None:
        super().__init__(num_agents)
        if num_agents > len(prompts.ROLES):
            raise UserError(f"environment tags has at most {len(prompts.ROLES)} readers: lower num_agents")
        if words is None:
            if DEFAULT_TOTAL % num_agents:
                raise UserError(
                    f"environment tags divides {DEFAULT_TOTAL} words equally: set num_agents to 1, 2, 3 or 6, or set "
                    "tags.words"
                )
            words = DEFAULT_TOTAL // num_agents
        self.words_per_agent = words
        self.total = words * num_agents
        self._split = split_words
        if commas:
            self._split = split_parts

    @classmethod
    def from_config(cls, config: Config) -> Self:
        settings = config.section(TagsConfig)
        return cls(config.num_agents, settings.words, settings.commas)

    def check_task(self, task: Task) -> None:
        """Raise UserError if the text has too few words to name."""
        if len(content_words(task.prompt)) < self.total:
            raise UserError(f"task {task.id}: its text has fewer than {self.total} words that can be named")

    def roles(self, task: Task) -> list[str]:
        if self.num_agents == 1:
            return ["reader"]
        return prompts.ROLES[: self.num_agents]

    def first_prompts(self, task: Task) -> list[str]:
        texts = []
        for role in self.roles(task):
            texts.append(prompts.first_prompt(task.prompt, role, self.words_per_agent))
        return texts

    def revisions(self, task: Task) -> list[str]:
        return [prompts.revision(task.prompt, role) for role in self.roles(task)]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Tags:
        """Read the words on the first line of each response."""
        content = content_words(task.prompt)
        places = relative_positions(task.prompt)
        named = []
        valid = []
        positions = []
        for response in responses:
            line = prompts.first_line(response)
            words = self._split(line)[: self.words_per_agent]
            # A word that an agent repeats counts once.
            counting = tuple(dict.fromkeys(word for word in words if word in content))
            position = NO_POSITION
            if counting:
                position = fmean(places[word] for word in counting)
            named.append(tuple(words))
            valid.append(counting)
            positions.append(position)
        answers = tuple(map(", ".join, named))
        return Tags(answers, tuple(named), tuple(valid), tuple(positions))

    def outcome(self, attempt: Tags, report: None) -> Outcome:
        said = sum(map(len, attempt.valid))
        different = len(set().union(*attempt.valid))
        levels = {"valid": said / self.total, "shared": (different - said) / self.total}
        metrics = {
            "different_words": float(different),
            "shared_words": float(said - different),
            "all_passed": float(different == self.total),
        }
        for number, position in enumerate(attempt.positions, 1):
            metrics[f"position_{number}"] = position
        return Outcome(different / self.total, levels, metrics)

    def facts(self, attempt: Tags, outcome: Outcome, mode: str, agent: int) -> list[str]:
        lines = [f"different words together: {outcome.metrics['different_words']:.0f} of {self.total}"]
        if mode == "level_passed":
            return lines
        valid = attempt.valid[agent]
        of_others = set().union(*attempt.valid[:agent], *attempt.valid[agent + 1 :])
        for word in valid:
            if word in of_others:
                lines.append(f"also named by another reader: {word}")
        for word in dict.fromkeys(attempt.named[agent]):
            if word not in valid:
                lines.append(f"does not count: {word}")
        return lines
