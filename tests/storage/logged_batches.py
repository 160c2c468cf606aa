"""Random batches for tests of the batch log."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from marl_ray.core.batch import Batch, CriticSample, Group, MiniBatch
from marl_ray.core.episode import AgentCall, Completion, sibling_calls
from marl_ray.storage.batch_log import LoggedStep

IDS = st.integers(0, 2**31 - 1)
REALS = st.floats(allow_nan=False)
TEXTS = st.text(max_size=5)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    tokens = draw(st.lists(st.tuples(IDS, REALS), max_size=4))
    spans = draw(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)), max_size=3))
    ids, logprobs = zip(*tokens, strict=True) if tokens else ((), ())
    reason = draw(st.sampled_from(["stop", "length", "é\0"]))
    schema = draw(st.sampled_from(["", '{"type": "object"}', "\ud800"]))
    return Completion(ids, draw(TEXTS), logprobs, reason, tuple(spans), schema)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    rows = draw(st.lists(st.tuples(completions(), REALS, REALS), min_size=1, max_size=3))
    sampled, returns, weights = zip(*rows, strict=True)
    prompts = st.lists(IDS, max_size=4).map(tuple)
    calls = sibling_calls(draw(prompts), sampled, prompt=draw(TEXTS))
    if draw(st.booleans()):  # calls of a program
        siblings = draw(st.lists(st.integers(0, 99), min_size=len(rows), max_size=len(rows)))
        calls = tuple(
            replace(call, prompt_ids=draw(prompts), branch=number, sibling=siblings[number])
            for number, call in enumerate(calls)
        )
    values = st.lists(REALS, min_size=len(rows), max_size=len(rows)).map(tuple)
    inputs = draw(st.dictionaries(st.sampled_from(["lengths", "é"]), values))
    return Group(draw(st.integers(0, 20)), calls, returns, weights, inputs)


@st.composite
def groups_with_critic_samples(draw: st.DrawFn) -> Group:
    """Add a critic sample to a group."""
    group, states = draw(groups()), st.lists(IDS, max_size=3).map(tuple)
    size = len(group.completions)
    rewards = draw(st.lists(REALS, min_size=size, max_size=size))
    successors = draw(st.lists(st.lists(states, max_size=2).map(tuple), min_size=size, max_size=size))
    return replace(group, critic_sample=CriticSample(draw(states), tuple(rewards), tuple(successors)))


@st.composite
def steps(draw: st.DrawFn) -> LoggedStep:
    step = draw(st.integers(0, 10**7))
    one = draw(st.sampled_from([groups(), groups_with_critic_samples()]))
    mini_batches = st.lists(st.builds(MiniBatch, st.lists(one, max_size=3).map(tuple), st.integers(1, 10**9)))
    batches = draw(st.lists(st.builds(Batch, st.just(step), mini_batches.map(tuple)), max_size=3))
    row = draw(st.dictionaries(TEXTS, REALS | st.integers() | TEXTS, max_size=3))
    episodes = draw(st.lists(st.dictionaries(TEXTS, st.none() | TEXTS | st.lists(REALS, max_size=2)), max_size=2))
    skipped = tuple(draw(st.lists(st.integers(0, 10**9), max_size=3)))
    samples, draws = draw(st.integers(0, 10**9)), draw(st.integers(0, 10**6))
    numbered = tuple(of_agent(number, batch) for number, batch in enumerate(batches))
    return LoggedStep(step, numbered, samples, row, tuple(episodes), draws, skipped)


def of_agent(number: int, batch: Batch) -> Batch:
    """Return the batch with groups of agent `number`."""
    return _with_calls(batch, lambda call: replace(call, agent=number))


def without_texts(batch: Batch) -> Batch:
    """Return the batch as the log returns it."""
    return _with_calls(batch, lambda call: replace(call, prompt="", completion=replace(call.completion, text="")))


def _with_calls(batch: Batch, change: Callable[[AgentCall], AgentCall]) -> Batch:
    """Return the batch with every call changed."""
    mini_batches = []
    for mini_batch in batch.mini_batches:
        changed = (replace(group, calls=tuple(map(change, group.calls))) for group in mini_batch.groups)
        mini_batches.append(replace(mini_batch, groups=tuple(changed)))
    return replace(batch, mini_batches=tuple(mini_batches))


def synthetic(step: int, agents: int, group_count: int, size: int, tokens: int, prompt: int) -> LoggedStep:
    """Return a step of one mini-batch whose completions have `tokens` tokens each."""
    logprobs = tuple(-math.sqrt(2 + i) for i in range(tokens))
    one = Completion(tuple(range(tokens)), "", logprobs, "stop", ((step, tokens),))
    group = Group(0, sibling_calls(tuple(range(prompt)), [one] * size), (0.5,) * size, (0.125,) * size)
    batch = Batch(step, (MiniBatch((group,) * group_count, group_count),))
    batches = tuple(of_agent(number, batch) for number in range(agents))
    return LoggedStep(step, batches, group_count * size, {"turn_1/reward_mean": 0.5}, ({"task": "t/1"},))
