"""Defaults of environments."""

from __future__ import annotations

from marl_ray.config import from_tree
from marl_ray.environments import abilities
from tests.environments.talk import TASK, Talk


def test_the_default_from_config_sets_the_number_of_agents() -> None:
    tree = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, "magrpo": {"num_agents": 3}}
    talk = Talk.from_config(from_tree(tree, "magrpo"))
    assert talk.roles(TASK) == ["speaker 0", "speaker 1", "speaker 2"]


def test_the_default_question_to_an_expert() -> None:
    talk = Talk(2)
    assert abilities.question(talk, TASK, talk.attempt(TASK, ["Hello.", "And you?"], last=False)) == (
        "A problem is answered in parts, and whoever writes a part does not see the others.\n\n"
        "Problem:\nTalk.\n\n"
        "Parts:\nspeaker 0:\nHello.\n\nspeaker 1:\nAnd you?\n\n"
        "Suggest an edit for each of these parts: speaker 0, speaker 1. Reply with one JSON object and nothing else. "
        "Its keys are the parts' names, its values are strings: a short suggestion, or the corrected part."
    )


def test_there_are_no_probes_by_default() -> None:
    talk = Talk(1)
    attempt = talk.attempt(TASK, [""], last=False)
    assert abilities.probes(talk, attempt, None) == []
    outcome = talk.outcome(attempt, None)
    assert abilities.probed_outcome(talk, attempt, None, outcome, []) == outcome
