"""What an environment has without writing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_ray.config import from_tree
from marl_ray.core.episode import Outcome, Task
from marl_ray.environments.base import Environment


class Said:
    program = None

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)


class Talk(Environment[Said]):
    """The smallest environment: whoever says more gets more."""

    modes = ("passed",)

    def roles(self, task: Task) -> list[str]:
        return [f"speaker {agent}" for agent in range(self.num_agents)]

    def first_prompts(self, task: Task) -> list[str]:
        return [f"{task.prompt} You are {role}." for role in self.roles(task)]

    def attempt(self, task: Task, responses: Sequence[str], last: bool) -> Said:
        return Said(responses)

    def outcome(self, attempt: Said, report: Any) -> Outcome:
        return Outcome(float(sum(map(len, attempt.texts))))

    def feedback(self, attempt: Said, outcome: Outcome, mode: str, agent: int) -> list[str]:
        return [f"{outcome.reward:g} characters"]

    def previous_answers(self, attempt: Said) -> list[str]:
        return attempt.texts

    def revisions(self, task: Task) -> list[str]:
        return ["Say more."] * self.num_agents


TASK = Task("t", "Talk.\n", {})


def test_the_environment_of_a_run_has_its_agents() -> None:
    tree = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, "magrpo": {"num_agents": 3}}
    talk = Talk.from_config(from_tree(tree, "magrpo"))
    assert talk.roles(TASK) == ["speaker 0", "speaker 1", "speaker 2"]


def test_an_expert_can_be_asked() -> None:
    talk = Talk(2)
    assert talk.question(TASK, talk.attempt(TASK, ["Hello.", "And you?"], last=False)) == (
        "A problem is answered in parts, and whoever writes a part does not see the others.\n\n"
        "Problem:\nTalk.\n\n"
        "Parts:\nspeaker 0:\nHello.\n\nspeaker 1:\nAnd you?\n\n"
        "Suggest an edit for each of these parts: speaker 0, speaker 1. Reply with one JSON object and nothing else. "
        "Its keys are the parts' names, its values are strings: a short suggestion, or the corrected part."
    )


def test_there_are_no_probes() -> None:
    talk = Talk(1)
    attempt = talk.attempt(TASK, [""], last=False)
    assert (talk.probes(attempt, None), talk.probed(attempt, None, [])) == ([], {})
