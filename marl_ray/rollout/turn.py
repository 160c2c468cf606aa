"""One turn: who is asked when, with which prompt, and which answers make joint actions.

Agents of one stage of the environment's order answer at the same time; with a single stage that is all there is. An
agent of a later stage reads what was answered before it, so its prompt depends on which of the earlier answers it is
told of, and answers to different prompts are no siblings. Therefore one line of earlier answers is followed:

- the first answers (as random as any: siblings are independent draws) are told to the next stage, whose agents give G
  answers each to the prompt that holds them. Those are their groups;
- every other line is continued with one answer of each later agent, which read that line. It gives the earlier answers
  a reward, and is not learned from.

So every agent has one group at a node, G answers to one prompt, and every joint action is one that was played: who
answered later has read the answers it is joined with. With k stages, joint mode aligned, there are k (G - 1) + 1 joint
actions, where a group for each earlier answer would take G^k. The answer that is followed is credited with the mean
over its G continuations, its siblings with their only one; either is an unbiased value of the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from marl_ray.core.concurrency import gather
from marl_ray.core.episode import Completion, Generation

Ask = Callable[[int, str, int], Awaitable[Generation]]
"""Asks an agent, with a prompt, on the line of a number: 0 is the one that is followed, whose answer is a group."""
PromptAfter = Callable[[int, str, Mapping[int, str]], str]
"""An agent's prompt, of the one that it would read alone and the earlier answers by agent."""
JointMode = Callable[[Sequence[int]], list[tuple[int, ...]]]


@dataclass(slots=True)
class TurnResult:
    """What a turn's agents read and answered, as in `Node`; `indices` are those of its joint actions."""

    prompts: list[str]
    prompt_ids: list[tuple[int, ...]]
    completions: list[list[Completion]]
    other_prompts: list[list[str]]
    indices: list[tuple[int, ...]]


async def sample_turn(
    order: Sequence[Sequence[int]], prompts: Sequence[str], ask: Ask, prompt_after: PromptAfter, joint: JointMode
) -> TurnResult | None:
    """Ask all agents; None where a prompt is too long."""
    agents = range(len(prompts))
    turn = TurnResult(list(prompts), [() for _ in agents], [[] for _ in agents], [[] for _ in agents], [])
    lines: list[dict[int, int]] = [{}]  # the answers of earlier stages, by agent; the first is the one that is followed
    for stage in order:
        told = [{agent: turn.completions[agent][index].text for agent, index in line.items()} for line in lines]
        asked = [
            (number, agent, prompt_after(agent, prompts[agent], texts) if texts else prompts[agent])
            for number, texts in enumerate(told)
            for agent in stage
        ]
        generations = await gather(*(ask(agent, prompt, number) for number, agent, prompt in asked))
        if not all(generation.completions for generation in generations):
            return None
        sizes = [len(generation.completions) for generation in generations[: len(stage)]]
        longer = [lines[0] | dict(zip(stage, indices, strict=True)) for indices in joint(sizes)]
        for number, line in enumerate(lines[1:]):
            longer.append(line | {agent: size + number for agent, size in zip(stage, sizes, strict=True)})
        for (number, agent, prompt), generation in zip(asked, generations, strict=True):
            if number == 0:
                turn.prompts[agent], turn.prompt_ids[agent] = prompt, generation.prompt_ids
            else:
                turn.other_prompts[agent].append(prompt)
            turn.completions[agent] += generation.completions
        lines = longer
    turn.indices = [tuple(line[agent] for agent in agents) for line in lines]
    return turn
