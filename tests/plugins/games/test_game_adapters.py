"""Games through the adapters: seats, rewards, illegal actions and conversations."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from docs.examples import tic_tac_toe
from marl_ray.core.episode import Node, Task
from marl_ray.plugins.games.adapters import play_aec, play_parallel, play_text_arena, play_text_game
from marl_ray.plugins.gateway.program_episode import ProgramEpisode
from marl_ray.toy import BASE_PATH
from tests.factories import ROOT
from tests.plugins.gateway.scripted_agents import TASK, ScriptedAgent, gateway_config, play


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


def node_of(function: str, *answers: Callable[[str, int], str], task: Task = TASK, **gateway: Any) -> Node:
    agents = [ScriptedAgent(str(BASE_PATH), answer) for answer in answers]
    (episode,) = asyncio.run(play(gateway_config(function=function, **gateway), agents, task))
    assert episode.root is not None, episode.stops
    return episode.root


def test_a_text_game_is_one_conversation() -> None:
    count = iter(range(100))
    node = node_of("tests.plugins.games.test_game_adapters:guesses", lambda *_: str(next(count) // 2), lambda *_: "")
    assert sum(action.reward for action in node.joint_actions) > 0
    own = [call.prompt_ids for call in node.calls[0] if call.sibling == 0]
    assert all(later[: len(ids)] == ids for ids, later in pairwise(own))


@pytest.mark.parametrize(("second", "rewards"), [("1", (2.0, 2.0)), ("0", (0.0, 0.0)), ("x", (0.0, -1.0))])
def test_seats_of_a_parallel_game_act_at_the_same_time(second: str, rewards: tuple[float, float]) -> None:
    node = node_of("tests.plugins.games.test_game_adapters:matches", lambda *_: "1", lambda *_: second)
    assert [action.rewards for action in node.joint_actions] == [rewards, rewards]
    assert node.joint_actions[0].outcome.metrics["illegal"] == float(second == "x")


def test_the_example_plays_tic_tac_toe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    monkeypatch.setattr(importlib.import_module("tic_tac_toe"), "OPENING", 0)
    roles = {"roles": ["first", "second"]}

    def last_free(text: str, _: int) -> str:
        cells = [cell for cell in text.partition("Board:")[2].partition(". You")[0].split() if cell != "/"]
        return str(max(number for number, cell in enumerate(cells, 1) if cell == "-"))

    # The first seat takes 1, 2, 3, and the second 9, 8.
    node = node_of("tic_tac_toe:play", lambda *_: "123456789", last_free, **roles)
    assert node.joint_actions[0].rewards == (1.0, -1.0)
    assert [call.completion.text for call in node.calls[1]][:2] == ["9", "8"]
    node = node_of("tic_tac_toe:play", lambda *_: "none", last_free, **roles)
    assert node.joint_actions[0].rewards == (-2.0, 0.0)


def test_tic_tac_toe_begins_at_random_boards_without_a_line() -> None:
    game = tic_tac_toe.TicTacToe()
    game.reset()
    assert (game.board, game.moves) == ("123456789", 0)
    boards = []
    for seed in range(200):
        game.reset(seed)
        assert not game.ended
        assert game.board == tic_tac_toe.opening(seed)
        assert game.board.count("X") - game.board.count("O") == game.moves % 2
        boards.append(game.board)
    lengths = {sum(not cell.isdecimal() for cell in board) for board in boards}
    assert lengths == set(range(tic_tac_toe.OPENING + 1))
    assert len(set(boards)) > 100


def test_kuhn_poker_pays_both_players(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    poker = importlib.import_module("kuhn_poker")
    histories: list[tuple[str, ...]] = [()]
    for history in histories:
        histories += [(*history, move) for move in poker.MOVES if poker.gain("KJ", history) is None]
    gains = {" ".join(history): poker.gain("KJ", history) for history in histories}
    ends = {"pass pass": 1, "bet pass": 1, "bet bet": 2, "pass bet pass": -1, "pass bet bet": 2}
    assert {history: gain for history, gain in gains.items() if gain is not None} == ends
    assert poker.gain("JK", ("bet", "bet")) == -2
    task = Task("deal", "JK", {})
    node = node_of("kuhn_poker:play", lambda *_: "bet", lambda *_: "bet", task=task, roles=["first", "second"])
    assert node.joint_actions[0].rewards == (-2.0, 2.0)
    node = node_of("kuhn_poker:play", lambda *_: "pass", lambda *_: "fold", task=task, roles=["first", "second"])
    assert node.joint_actions[0].rewards == (0.0, -2.0)


def board_text(seat: str, observation: dict[str, Any]) -> str:
    return " ".join(str(number) for number, legal in enumerate(observation["action_mask"]) if legal)


def legal_cell(text: str, observation: dict[str, Any]) -> int | None:
    return int(text) if text.isdecimal() and observation["action_mask"][int(text)] else None


async def petting_zoo(episode: ProgramEpisode) -> dict[str, Any]:
    """Play PettingZoo's own tic-tac-toe."""
    env = importlib.import_module("pettingzoo.classic.tictactoe_v3").env()
    seats = {"player_1": "coder", "player_2": "tester"}
    return await play_aec(episode, env, seats=seats, show=board_text, read=legal_cell, remembers=False)


def test_the_adapter_plays_an_environment_of_petting_zoo() -> None:
    pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    first, last = (lambda text, _: text.split()[0]), (lambda text, _: text.split()[-1])
    node = node_of("tests.plugins.games.test_game_adapters:petting_zoo", first, last)
    # Cells are numbered by columns. The first seat takes 0, 1 and 2.
    assert node.joint_actions[0].rewards == (1.0, -1.0)
    assert [call.completion.text for call in node.calls[0]][:3] == ["0", "1", "2"]
    assert [call.completion.text for call in node.calls[1]][:2] == ["8", "7"]
    node = node_of("tests.plugins.games.test_game_adapters:petting_zoo", first, lambda *_: "no")
    assert node.joint_actions[0].rewards == (0.0, -1.0)
    assert node.joint_actions[0].outcome.metrics["illegal"] == 1.0


class Nim:
    """Three sticks with TextArena's interface: a player takes one or two, and who takes the last one wins."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.sticks, self.player, self.rewards = 3, 0, dict.fromkeys(range(num_players), 0)
        self.invalid = dict.fromkeys(range(num_players), False)
        self.messages = {player: [(-1, f"You are player {player}.", "prompt")] for player in range(num_players)}

    def get_observation(self) -> tuple[int, list[tuple[int, str, str]]]:
        found, self.messages[self.player] = self.messages[self.player], []
        return self.player, found

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        own, other = self.player, 1 - self.player
        for messages in self.messages.values():
            messages.append((own, action, "action"))
        self.invalid[own] = action not in ("1", "2")
        self.sticks -= 0 if self.invalid[own] else int(action)
        done = self.invalid[own] or self.sticks <= 0
        if done:
            self.rewards = {own: -1, other: 0} if self.invalid[own] else {own: 1, other: -1}
        self.player = other
        return done, {}

    def close(self) -> tuple[dict[int, int], dict[int, dict[str, Any]]]:
        return self.rewards, {player: {"invalid_move": invalid} for player, invalid in self.invalid.items()}


async def nim(episode: ProgramEpisode) -> dict[str, Any]:
    return await play_text_arena(episode, Nim(), seats={0: "coder", 1: "tester"})


async def text_arena(episode: ProgramEpisode) -> dict[str, Any]:
    """Play TextArena's own tic-tac-toe."""
    env = importlib.import_module("textarena").make("TicTacToe-v0-raw")
    return await play_text_arena(episode, env, seats={0: "coder", 1: "tester"})


def test_a_game_of_text_arena_has_one_conversation_per_player() -> None:
    node = node_of("tests.plugins.games.test_game_adapters:nim", lambda *_: "1", lambda *_: "1")
    assert node.joint_actions[0].rewards == (1.0, -1.0)
    first, second = (call.prompt_ids for call in node.calls[0][:2])
    assert second[: len(first)] == first
    node = node_of("tests.plugins.games.test_game_adapters:nim", lambda *_: "1", lambda *_: "3")
    assert node.joint_actions[0].rewards == (0.0, -1.0)
    assert node.joint_actions[0].outcome.metrics["illegal"] == 1.0


def test_the_adapter_plays_an_environment_of_text_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("textarena")
    monkeypatch.setattr("tests.plugins.gateway.scripted_agents.CONTEXT", 4096)

    def free(cells: Sequence[str]) -> Callable[[str, int], str]:
        """Return answers with the first of these cells that the last board has free."""
        return lambda text, _: next(f"[{cell}]" for cell in cells if f"'[{cell}]'" in text.rpartition("Available")[2])

    node = node_of("tests.plugins.games.test_game_adapters:text_arena", free("012345678"), free("876543210"))
    assert node.joint_actions[0].rewards == (1.0, -1.0)
    assert [call.completion.text for call in node.calls[0]][:3] == ["[0]", "[1]", "[2]"]
    node = node_of("tests.plugins.games.test_game_adapters:text_arena", lambda *_: "no", free("8"))
    assert node.joint_actions[0].outcome.metrics["illegal"] == 1.0
