"""Games as async functions of an episode: PettingZoo (AEC and parallel), TextArena, and text games with `reset` and
`step`. The adapters use the methods of these interfaces only, and import none of the packages.

Each seat is played by one agent (`seats` maps seats to roles), in one conversation: an observation is a user message,
and the agent's answer is its action. An agent with several seats gets the mean of their rewards. In a zero-sum game the
mean is always 0: give the seats of such a game different roles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, Unpack

from marl_ray.core.concurrency import gather
from marl_ray.core.random_streams import stream_seed

if TYPE_CHECKING:  # episodes are made by the gateway, another plug-in
    from marl_ray.plugins.gateway.program_episode import ProgramEpisode

Show = Callable[[str, Any], str]
"""Returns the text of a seat's observation."""
Read = Callable[[str, Any], Any]
"""Returns the action in an agent's answer, given the observation; None if there is no legal action."""


class GameRules(TypedDict):
    """The keyword arguments of `play_aec` and `play_parallel`: the fields of `SeatedGame`."""

    seats: Mapping[str, str]
    show: Show
    read: Read
    remembers: NotRequired[bool]
    illegal_reward: NotRequired[float]


@dataclass(slots=True)
class SeatedGame:
    """A game of one episode: the conversation and the total reward of each seat."""

    episode: ProgramEpisode
    seats: Mapping[str, str]
    """Role by seat."""
    show: Show = lambda seat, observation: str(observation)
    read: Read = lambda answer, observation: answer
    remembers: bool = True
    """Whether a request has all earlier observations and answers of the seat, or the last observation only."""
    illegal_reward: float = -1.0
    """Total reward of a seat that gives no legal action, which ends the game."""
    totals: dict[str, float] = field(default_factory=dict)
    _messages: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    async def action(self, seat: str, observation: Any) -> Any:
        """Return the action of a seat's agent, None if it is not legal."""
        messages = self._messages.setdefault(seat, [])
        if not self.remembers:
            messages.clear()
        messages.append({"role": "user", "content": self.show(seat, observation)})
        answer = await self.episode.ask(self.seats[seat], list(messages))
        messages.append({"role": "assistant", "content": answer})
        return self.read(answer, observation)

    def add(self, seat: str, reward: float) -> None:
        self.totals[seat] = self.totals.get(seat, 0.0) + float(reward)

    def result(self, *illegal: str) -> dict[str, Any]:
        """Return the result of the episode: each role's mean over its seats. `illegal` are the seats without a legal
        action."""
        totals = self.totals | dict.fromkeys(illegal, self.illegal_reward)
        by_role: dict[str, list[float]] = {}
        for seat, role in self.seats.items():
            by_role.setdefault(role, []).append(totals.get(seat, 0.0))
        means = {}
        for role, role_totals in by_role.items():
            means[role] = fmean(role_totals)
        return {
            "rewards": means,
            "reward": fmean(means.values()),
            "metrics": {"illegal": float(len(illegal))},
        }


async def play_aec(
    episode: ProgramEpisode, env: Any, *, seed: int | None = None, **rules: Unpack[GameRules]
) -> dict[str, Any]:
    """Play an AEC environment of PettingZoo and return the result. `seed` None: the result of `seed_of`."""
    game = SeatedGame(episode, **rules)
    env.reset(seed=_seed(episode, seed))
    try:
        for seat in env.agent_iter():
            observation, reward, terminated, truncated, _ = env.last()
            game.add(seat, reward)
            action = None
            if not (terminated or truncated):
                action = await game.action(seat, observation)
                if action is None:
                    return game.result(seat)
            env.step(action)
    finally:
        env.close()
    return game.result()


async def play_parallel(
    episode: ProgramEpisode, env: Any, *, seed: int | None = None, **rules: Unpack[GameRules]
) -> dict[str, Any]:
    """Play a parallel environment of PettingZoo, whose agents act at the same time, and return the result."""
    game = SeatedGame(episode, **rules)
    observations, _ = env.reset(seed=_seed(episode, seed))
    try:
        while env.agents:
            acting = list(env.agents)
            asked = [game.action(seat, observations[seat]) for seat in acting]
            actions = dict(zip(acting, await gather(*asked), strict=True))
            illegal = [seat for seat, action in actions.items() if action is None]
            if illegal:
                return game.result(*illegal)
            observations, rewards, _, _, _ = env.step(actions)
            for seat, reward in rewards.items():
                game.add(seat, reward)
    finally:
        env.close()
    return game.result()


async def play_text_arena(
    episode: ProgramEpisode, env: Any, *, seats: Mapping[int, str], seed: int | None = None, remembers: bool = True
) -> dict[str, Any]:
    """Play a game of TextArena, `textarena.make("NAME-raw")`, and return the result.

    `seats` maps players to roles. An environment without `-raw` repeats all earlier messages in each observation, so it
    needs `remembers=False`. TextArena shuffles with the random numbers of the process, which games at the same time
    share: repeated games of chance differ.
    """
    roles = {str(player): role for player, role in seats.items()}
    game = SeatedGame(episode, roles, _text_arena_messages, remembers=remembers)
    env.reset(num_players=len(seats), seed=_seed(episode, seed))
    done = False
    while not done:
        player, observation = env.get_observation()
        action = await game.action(str(player), observation)
        done, _ = env.step(action)
    rewards, players = env.close()
    for player, reward in rewards.items():
        game.add(str(player), reward)
    result = game.result()
    invalid_moves = sum(player["invalid_move"] for player in players.values())
    result["metrics"]["illegal"] = float(invalid_moves)
    return result


def _text_arena_messages(seat: str, observation: Any) -> str:
    """Return the messages to a player. Its own actions are its answers."""
    if isinstance(observation, str):
        return observation
    texts = []
    for sender, text, _ in observation:
        if str(sender) != seat:
            texts.append(text)
    return "\n".join(texts)


async def play_text_game(
    episode: ProgramEpisode,
    env: Any,
    *,
    role: str,
    seed: int | None = None,
    max_steps: int = 100,
    remembers: bool = True,
) -> dict[str, Any]:
    """Play a text game of one seat with Gymnasium's interface, whose observations and actions are texts."""
    game = SeatedGame(episode, {"player": role}, remembers=remembers)
    observation, _ = env.reset(seed=_seed(episode, seed))
    try:
        for _ in range(max_steps):
            action = await game.action("player", observation)
            observation, reward, terminated, truncated, _ = env.step(action)
            game.add("player", reward)
            if terminated or truncated:
                break
    finally:
        env.close()
    return {"reward": game.totals.get("player", 0.0)}


def seed_of(episode: ProgramEpisode) -> int:
    """Return the seed of an episode's environment. Siblings have the same seed, so that they begin in one state."""
    seed, key = episode.key
    return stream_seed(seed, "game", *key[:-1]) % 2**31


def _seed(episode: ProgramEpisode, given: int | None) -> int:
    if given is None:
        return seed_of(episode)
    return given
