"""Agents share out the letters of a word: each writes words, and every letter that begins one of them counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from marl_ray.config import Config, PositiveInt, Section
from marl_ray.core.episode import Outcome, Task
from marl_ray.data.convert import Conversion, text_of
from marl_ray.environments.text_environment import TextAttempt, TextEnvironment
from marl_ray.registry import PlugIn


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialsOptions(Section):
    """Words whose first letters share out a word."""

    max_words: PositiveInt = 3
    """Number of words of an answer that count."""


class Initials(TextEnvironment[TextAttempt]):
    @classmethod
    def from_config(cls, config: Config) -> "Initials":
        environment = cls(config.num_agents)
        environment.max_words = config.section(InitialsOptions).max_words
        return environment

    def roles(self, task: Task) -> list[str]:
        return [f"writer {number}" for number in range(1, self.num_agents + 1)]

    def first_prompts(self, task: Task) -> list[str]:
        return [f"Write {self.max_words} words that begin with letters of {task.prompt}.\n"] * self.num_agents

    def revisions(self, task: Task) -> list[str]:
        return ["Write other words."] * self.num_agents

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> TextAttempt:
        return TextAttempt((task.prompt, *responses))

    def outcome(self, attempt: TextAttempt, report: None) -> Outcome:
        word, *answers = attempt.answers
        first = {text[0] for answer in answers for text in answer.split()[: self.max_words]}
        share = len(first.intersection(word)) / len(set(word))
        return Outcome(share, {"letters": share}, {"all_passed": float(share == 1)})

    def facts(self, attempt: TextAttempt, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return [f"share of the letters: {outcome.reward:.2f}"]

    def previous_answers(self, attempt: TextAttempt) -> list[str]:
        return list(attempt.answers[1:])


WORDS = Conversion(environment="initials", task=lambda row, number: Task(f"word/{number}", text_of(row, "word"), {}))
PLUGIN = PlugIn(
    names={"environment": {"initials": "initials:Initials"}, "dataset.type": {"initials": "initials:WORDS"}},
    sections={"initials": "initials:InitialsOptions"},
    rows={"bundled:initials": Path(__file__).parent / "initials.jsonl"},
)
