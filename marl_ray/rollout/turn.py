"""Sampling one turn: the order of the agents, their prompts, the joint actions, and the handoff to the next turn.

The environment's order groups agents into rounds. Agents of one round answer at the same time; usually there is one
round. An agent of a later round reads earlier completions, so its prompt depends on the conversation branch, and
completions of different prompts are not siblings. Therefore one branch is followed:

- The next round reads the first completions (siblings are exchangeable) and samples G completions per agent of the
  resulting prompt. These are the agents' groups.
- Every other branch is continued by one completion per later agent, whose prompt contains that branch. This gives the
  earlier completions a reward; nothing is learned from the continuation.

Every agent then has one group per node, and every joint action was sampled as a whole. With k rounds and joint mode
aligned there are k (G - 1) + 1 joint actions, where a group per earlier completion would need G^k. The followed
completion is credited with the mean over its G continuations, its siblings with their single continuation; both are
unbiased.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from marl_ray.core.chat import Prompt
from marl_ray.core.concurrency import gather
from marl_ray.core.episode import AgentCall, Generation

Generate = Callable[[int, Prompt, int], Awaitable[Generation]]
"""Samples completions for an agent, a prompt and a branch number. Branch 0 is followed and gets a whole group."""
PromptAfter = Callable[[int, Prompt, Mapping[int, str]], Prompt]
"""Returns an agent's prompt from its initial prompt and the earlier completions' texts by agent."""
JointMode = Callable[[Sequence[int]], list[tuple[int, ...]]]
"""Returns joint actions from each agent's group size. Entry i of a joint action indexes agent i's completions."""
Handoff = Callable[[Sequence[float], random.Random], list[int]]
"""Returns the joint actions to expand, from their rewards and the node's random stream."""


@dataclass(slots=True)
class TurnResult:
    """The calls of one turn by agent, as in `Node`, and the `indices` of its joint actions."""

    calls: list[list[AgentCall]]
    indices: list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt of one agent, on one branch."""

    branch: int
    agent: int
    prompt: Prompt


async def sample_turn(
    order: Sequence[Sequence[int]],
    prompts: Sequence[Prompt],
    generate: Generate,
    prompt_after: PromptAfter,
    joint_mode: JointMode,
) -> TurnResult | None:
    """Sample the completions of all agents, round by round. Return None if a prompt is too long."""
    agents = range(len(prompts))
    calls: list[list[AgentCall]] = [[] for _ in agents]
    branches: list[dict[int, int]] = [{}]  # index of the call by agent; the first branch is followed
    for round_agents in order:
        requests: list[Request] = []
        for number, branch in enumerate(branches):
            earlier = {agent: calls[agent][index].completion.text for agent, index in branch.items()}
            for agent in round_agents:
                prompt = prompts[agent]
                if earlier:  # the first round reads nothing
                    prompt = prompt_after(agent, prompt, earlier)
                requests.append(Request(number, agent, prompt))
        generations = await gather(*(generate(asked.agent, asked.prompt, asked.branch) for asked in requests))
        if not all(generation.completions for generation in generations):
            return None
        for asked, generation in zip(requests, generations, strict=True):
            for place, completion in enumerate(generation.completions):
                sibling = place if asked.branch == 0 else None
                call = AgentCall(asked.agent, asked.prompt, generation.prompt_ids, completion, asked.branch, sibling)
                calls[asked.agent].append(call)
        # The requests of the followed branch come first. All others have one completion.
        sizes = [len(generation.completions) for generation in generations[: len(round_agents)]]
        branches = _extended(branches, round_agents, sizes, joint_mode)
    # A branch has its agents in the order of the rounds, a joint action in the order of their numbers.
    indices = [tuple(branch[agent] for agent in agents) for branch in branches]
    return TurnResult(calls, indices)


def _extended(
    branches: Sequence[dict[int, int]], round_agents: Sequence[int], sizes: Sequence[int], joint_mode: JointMode
) -> list[dict[int, int]]:
    """Return the branches after a round: the followed branch once per joint action of the round's groups, and every
    other branch with its single completion per agent, which comes after the group."""
    extended: list[dict[int, int]] = []
    for indices in joint_mode(sizes):
        extended.append(branches[0] | dict(zip(round_agents, indices, strict=True)))
    for number, branch in enumerate(branches[1:]):
        longer = dict(branch)
        for agent, size in zip(round_agents, sizes, strict=True):
            longer[agent] = size + number
        extended.append(longer)
    return extended


def aligned(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return G joint actions: joint action g consists of every agent's completion g."""
    return [(g,) * len(sizes) for g in range(min(sizes))]


def cross(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return all G^N combinations of completions."""
    return list(itertools.product(*map(range, sizes)))


def one_at_random(rewards: Sequence[float], rng: random.Random) -> list[int]:
    """Return the index of one joint action, drawn uniformly."""
    return [rng.randrange(len(rewards))]


def best(rewards: Sequence[float], rng: random.Random) -> list[int]:
    """Return the index of the highest reward, the first of equal rewards."""
    return [max(range(len(rewards)), key=rewards.__getitem__)]


def one_of_the_best(rewards: Sequence[float], rng: random.Random) -> list[int]:
    """Return the index of one of the joint actions with the highest reward, drawn uniformly."""
    highest = max(rewards)
    indices = range(len(rewards))
    best_indices = [index for index in indices if rewards[index] == highest]
    return [rng.choice(best_indices)]


def every_one(rewards: Sequence[float], rng: random.Random) -> list[int]:
    """Return all indices: the whole tree is grown, and the returns of continuations rank the siblings."""
    return list(range(len(rewards)))


def check_handoff(name: str, chosen: Sequence[int], actions: int) -> None:
    """Raise ValueError unless a handoff other than `all` has chosen one of `actions` joint actions."""
    if name != "all" and not (len(chosen) == 1 and chosen[0] in range(actions)):
        raise ValueError(f"handoff {name} must return a list of one index below {actions}, not {chosen!r}")
