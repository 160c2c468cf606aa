"""Games through the adapters: seats, rewards, illegal actions and conversations."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from marl_ray.core.episode import Node
from marl_ray.gateway.game_adapters import play_parallel, play_text_game
from marl_ray.gateway.program_episode import ProgramEpisode
from marl_ray.toy import BASE_PATH
from tests.factories import ROOT
from tests.gateway.scripted_agents import ScriptedAgent, gateway_config, play


class Guessing:
    """A text game: name the number, with a hint after each guess."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.guesses = 0
        return "Guess.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.guesses += 1
        return "More.", float(action == "3"), action == "3", self.guesses == 5, {}

    def close(self) -> None:
        pass


class Matching:
    """A parallel game of two rounds: equal actions pay 1."""

    def reset(self, seed: int | None = None) -> tuple[dict[str, int], dict[str, Any]]:
        self.agents, self.round = ["a", "b"], 0
        return {"a": 0, "b": 0}, {}

    def step(self, actions: dict[str, str]) -> tuple[Any, dict[str, float], Any, Any, Any]:
        self.round += 1
        pay = float(len(set(actions.values())) == 1)
        if self.round == 2:
            self.agents = []
        return {"a": self.round, "b": self.round}, {"a": pay, "b": pay}, {}, {}, {}

    def close(self) -> None:
        pass


async def guesses(episode: ProgramEpisode) -> dict[str, Any]:
    return await play_text_game(episode, Guessing(), role="coder")


async def matches(episode: ProgramEpisode) -> dict[str, Any]:
    seats = {"a": "coder", "b": "tester"}
    show, read = (lambda seat, seen: f"{seat}: round {seen}"), (lambda text, seen: text if text in "01" else None)
    return await play_parallel(episode, Matching(), seats=seats, show=show, read=read)


def node_of(function: str, *answers: Callable[[str, int], str], **gateway: Any) -> Node:
    agents = [ScriptedAgent(str(BASE_PATH), answer) for answer in answers]
    (episode,) = asyncio.run(play(gateway_config(function=function, **gateway), agents))
    assert episode.root is not None, episode.stops
    return episode.root


def test_a_text_game_is_one_conversation() -> None:
    count = iter(range(100))
    node = node_of("tests.gateway.test_game_adapters:guesses", lambda *_: str(next(count) // 2), lambda *_: "")
    assert sum(action.reward for action in node.joint_actions) > 0
    prompts = node.other_prompt_ids[0]
    own = [ids for ids, caller in zip(prompts, node.callers[0], strict=True) if caller == 0]
    assert all(later[: len(ids)] == ids for ids, later in pairwise(own))


@pytest.mark.parametrize(("second", "rewards"), [("1", (2.0, 2.0)), ("0", (0.0, 0.0)), ("x", (0.0, -1.0))])
def test_seats_of_a_parallel_game_act_at_the_same_time(second: str, rewards: tuple[float, float]) -> None:
    node = node_of("tests.gateway.test_game_adapters:matches", lambda *_: "1", lambda *_: second)
    assert [action.rewards for action in node.joint_actions] == [rewards, rewards]
    assert node.joint_actions[0].outcome.metrics["illegal"] == float(second == "x")


def test_the_example_plays_tic_tac_toe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    importlib.import_module("tic_tac_toe")
    roles = {"roles": ["first", "second"]}

    def last_free(text: str, _: int) -> str:
        return next(letter for letter in reversed(text.split("You are")[0]) if letter.isdecimal())

    # The first seat takes 1, 2, 3, and the second 9, 8.
    node = node_of("tic_tac_toe:play", lambda *_: "123456789", last_free, **roles)
    assert node.joint_actions[0].rewards == (1.0, -1.0)
    assert [c.text for c in node.completions[1]][:2] == ["9", "8"]
    node = node_of("tic_tac_toe:play", lambda *_: "none", last_free, **roles)
    assert node.joint_actions[0].rewards == (-1.0, 0.0)
