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
from marl_ray.core.episode import Completion, Generation

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
    """The prompts and completions of one turn, as in `Node`, and the `indices` of its joint actions."""

    prompts: list[Prompt]
    prompt_ids: list[tuple[int, ...]]
    completions: list[list[Completion]]
    other_prompts: list[list[Prompt]]
    other_prompt_ids: list[list[tuple[int, ...]]]
    indices: list[tuple[int, ...]]


async def sample_turn(
    order: Sequence[Sequence[int]],
    prompts: Sequence[Prompt],
    generate: Generate,
    prompt_after: PromptAfter,
    joint_mode: JointMode,
) -> TurnResult | None:
    """Sample the completions of all agents, round by round. Return None if a prompt is too long."""
    agents = range(len(prompts))
    turn = TurnResult(
        prompts=list(prompts),
        prompt_ids=[() for _ in agents],
        completions=[[] for _ in agents],
        other_prompts=[[] for _ in agents],
        other_prompt_ids=[[] for _ in agents],
        indices=[],
    )
    branches: list[dict[int, int]] = [{}]  # completion index by agent; the first branch is followed
    for round_agents in order:
        earlier = [{agent: turn.completions[agent][index].text for agent, index in b.items()} for b in branches]
        requests = [
            (branch, agent, prompt_after(agent, prompts[agent], texts) if texts else prompts[agent])
            for branch, texts in enumerate(earlier)
            for agent in round_agents
        ]
        generations = await gather(*(generate(agent, prompt, branch) for branch, agent, prompt in requests))
        if not all(generation.completions for generation in generations):
            return None
        sizes = [len(generation.completions) for generation in generations[: len(round_agents)]]
        extended = [branches[0] | dict(zip(round_agents, indices, strict=True)) for indices in joint_mode(sizes)]
        for number, branch_indices in enumerate(branches[1:]):
            last = {agent: size + number for agent, size in zip(round_agents, sizes, strict=True)}
            extended.append(branch_indices | last)
        for (branch, agent, prompt), generation in zip(requests, generations, strict=True):
            if branch == 0:
                turn.prompts[agent], turn.prompt_ids[agent] = prompt, generation.prompt_ids
            else:
                turn.other_prompts[agent].append(prompt)
                turn.other_prompt_ids[agent].append(generation.prompt_ids)
            turn.completions[agent] += generation.completions
        branches = extended
    turn.indices = [tuple(branch_indices[agent] for agent in agents) for branch_indices in branches]
    return turn


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


def every_one(rewards: Sequence[float], rng: random.Random) -> list[int]:
    """Return all indices: the whole tree is grown, and the returns of continuations rank the siblings."""
    return list(range(len(rewards)))


def check_handoff(name: str, chosen: Sequence[int], actions: int) -> None:
    """Raise ValueError unless a handoff other than `all` has chosen one of `actions` joint actions."""
    if name != "all" and not (len(chosen) == 1 and chosen[0] in range(actions)):
        raise ValueError(f"handoff {name} must return a list of one index below {actions}, not {chosen!r}")
