"""Two agents write a text, side by side: the end is to have `ratio` times as many words as the beginning."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.core.episode import Outcome, Task
from marl_ray.core.errors import UserError
from marl_ray.environments.base import Environment


@dataclass(frozen=True)
class Text:
    answers: tuple[str, ...]  # as the agents see them in the next turn
    words: tuple[int, ...]
    wanted: float  # words of the end
    program = None  # nothing is executed


class Ratio(Environment[Text]):
    modes = ("level_feedback",)  # the external modes that `feedback` supports

    def roles(self, task: Task) -> list[str]:
        return ["beginning", "end"]

    def first_prompts(self, task: Task) -> list[str]:
        return [f"{task.prompt} Write the {role} of the text.\n" for role in self.roles(task)]

    def revisions(self, task: Task) -> list[str]:
        return [f"Write the {role} again." for role in self.roles(task)]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Text:
        words = tuple(len(text.split()) for text in responses)
        return Text(tuple(responses), words, task.fields["ratio"] * words[0])

    def outcome(self, attempt: Text, report: None) -> Outcome:
        near = min(attempt.words[1], attempt.wanted) / max(attempt.words[1], attempt.wanted, 1)
        return Outcome(near, {"ratio": near}, {"words": float(sum(attempt.words))})

    def feedback(self, attempt: Text, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return [f"beginning: {attempt.words[0]} words", f"end: {attempt.words[1]} words of {attempt.wanted:g}"]


class Topics:
    environment = "ratio:Ratio"

    def task(self, row: Mapping[str, Any], number: int) -> Task:
        if not isinstance(row.get("topic"), str):
            raise UserError(f"row {number} has no topic")
        ratio = float(row.get("ratio") or 2)
        prompt = f"Write about {row['topic']}. The end has {ratio:g} times as many words as the beginning."
        return Task(f"topic/{number}", prompt, {"ratio": ratio})


TOPICS = Topics()
