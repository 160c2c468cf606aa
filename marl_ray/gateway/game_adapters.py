"""Games with several seats as async functions of an episode: PettingZoo (AEC and parallel), and text games with `reset`
and `step`. The adapters use the methods of these interfaces only, and import none of the packages.

Each seat is played by one agent (`seats` maps seats to roles), in one conversation: an observation is a user message,
and the agent's answer is its action. An agent with several seats gets the mean of their rewards. In a zero-sum game the
mean is always 0: give the seats of such a game different roles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from marl_ray.core.random_streams import stream_seed
from marl_ray.gateway.program_episode import ProgramEpisode

Show = Callable[[str, Any], str]
"""Returns the text of a seat's observation."""
Read = Callable[[str, Any], Any]
"""Returns the action in an agent's answer, given the observation; None if there is no legal action."""
ILLEGAL_REWARD = -1.0
"""Reward of the seat that gives no legal action, which ends the game."""


@dataclass(slots=True)
class SeatConversations:
    """The conversation of each seat. With `remembers` False, every request has the last observation only."""

    episode: ProgramEpisode
    seats: Mapping[str, str]
    remembers: bool = True
    messages: dict[str, list[dict[str, str]]] = field(default_factory=dict)

    async def answer(self, seat: str, text: str) -> str:
        """Return the answer of a seat's agent to an observation."""
        messages = self.messages.setdefault(seat, [])
        if not self.remembers:
            messages.clear()
        messages.append({"role": "user", "content": text})
        answer = await self.episode.ask(self.seats[seat], list(messages))
        messages.append({"role": "assistant", "content": answer})
        return answer


def result_of(rewards: Mapping[str, float], seats: Mapping[str, str], illegal: int = 0) -> dict[str, Any]:
    """Return the result of an episode from the total reward of each seat: each role's mean over its seats.

    Example:
        >>> result_of({"x": 1.0, "o": -1.0}, {"x": "first", "o": "second"})["rewards"]
        {'first': 1.0, 'second': -1.0}
    """
    by_role = {role: [rewards.get(seat, 0.0) for seat, own in seats.items() if own == role] for role in seats.values()}
    means = {role: fmean(own) for role, own in by_role.items()}
    return {"rewards": means, "reward": fmean(means.values()), "metrics": {"illegal": float(illegal)}}


async def play_aec(
    episode: ProgramEpisode,
    env: Any,
    *,
    seats: Mapping[str, str],
    show: Show,
    read: Read,
    seed: int | None = None,
    remembers: bool = True,
    illegal_reward: float = ILLEGAL_REWARD,
) -> dict[str, Any]:
    """Play an AEC environment of PettingZoo and return the result. `seed` None: the result of `seed_of`."""
    conversations, totals = SeatConversations(episode, seats, remembers), dict.fromkeys(seats, 0.0)
    env.reset(seed=seed_of(episode) if seed is None else seed)
    try:
        for seat in env.agent_iter():
            observation, reward, terminated, truncated, _ = env.last()
            totals[seat] += float(reward)
            if terminated or truncated:
                env.step(None)
                continue
            action = read(await conversations.answer(seat, show(seat, observation)), observation)
            if action is None:
                totals[seat] = illegal_reward
                return result_of(totals, seats, illegal=1)
            env.step(action)
    finally:
        env.close()
    return result_of(totals, seats)


async def play_parallel(
    episode: ProgramEpisode,
    env: Any,
    *,
    seats: Mapping[str, str],
    show: Show,
    read: Read,
    seed: int | None = None,
    remembers: bool = True,
    illegal_reward: float = ILLEGAL_REWARD,
) -> dict[str, Any]:
    """Play a parallel environment of PettingZoo, whose agents act at the same time, and return the result."""
    conversations, totals = SeatConversations(episode, seats, remembers), dict.fromkeys(seats, 0.0)
    observations, _ = env.reset(seed=seed_of(episode) if seed is None else seed)

    async def action_of(seat: str) -> Any:
        observation = observations[seat]
        return read(await conversations.answer(seat, show(seat, observation)), observation)

    try:
        while env.agents:
            acting = list(env.agents)
            actions = dict(zip(acting, await asyncio.gather(*map(action_of, acting)), strict=True))
            illegal = [seat for seat, action in actions.items() if action is None]
            if illegal:
                totals |= dict.fromkeys(illegal, illegal_reward)
                return result_of(totals, seats, len(illegal))
            observations, rewards, _, _, _ = env.step(actions)
            for seat, reward in rewards.items():
                totals[seat] += float(reward)
    finally:
        env.close()
    return result_of(totals, seats)


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
    conversations, total = SeatConversations(episode, {"player": role}, remembers), 0.0
    observation, _ = env.reset(seed=seed_of(episode) if seed is None else seed)
    try:
        for _ in range(max_steps):
            answer = await conversations.answer("player", str(observation))
            observation, reward, terminated, truncated, _ = env.step(answer)
            total += float(reward)
            if terminated or truncated:
                break
    finally:
        env.close()
    return {"reward": total}


def seed_of(episode: ProgramEpisode) -> int:
    """Return the seed of an episode's environment. Siblings have the same seed, so that they begin in one state."""
    seed, key = episode.key
    return stream_seed(seed, "game", *key[:-1]) % 2**31
