"""Random batches for tests of the batch log."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from marl_ray.core.batch import Batch, CriticSample, Group, MiniBatch
from marl_ray.core.episode import Completion
from marl_ray.storage.batch_log import LoggedStep

IDS = st.integers(0, 2**31 - 1)
REALS = st.floats(allow_nan=False)
TEXTS = st.text(max_size=5)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    tokens = draw(st.lists(st.tuples(IDS, REALS), max_size=4))
    spans = draw(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)), max_size=3))
    ids, logprobs = zip(*tokens, strict=True) if tokens else ((), ())
    reason, schema = draw(st.sampled_from(["stop", "length", "é\0"])), draw(st.sampled_from(["", '{"type": "object"}']))
    return Completion(ids, draw(TEXTS), logprobs, reason, tuple(spans), schema)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    rows = draw(st.lists(st.tuples(completions(), REALS, REALS), max_size=3))
    siblings, returns, weights = zip(*rows, strict=True) if rows else ((), (), ())
    turn, prompt = draw(st.integers(0, 20)), tuple(draw(st.lists(IDS, max_size=4)))
    baselines = draw(st.just(()) | st.lists(REALS, min_size=len(rows), max_size=len(rows)).map(tuple))
    return Group(turn, prompt, siblings, returns, weights, baselines)


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
    mini_batches = (replace(m, groups=tuple(replace(g, agent=number) for g in m.groups)) for m in batch.mini_batches)
    return replace(batch, mini_batches=tuple(mini_batches))


def without_texts(batch: Batch) -> Batch:
    """Return the batch as the log returns it."""

    def group(of: Group) -> Group:
        return replace(of, completions=tuple(replace(c, text="") for c in of.completions))

    return replace(
        batch, mini_batches=tuple(replace(m, groups=tuple(map(group, m.groups))) for m in batch.mini_batches)
    )


def synthetic(step: int, agents: int, group_count: int, size: int, tokens: int, prompt: int) -> LoggedStep:
    """Return a step of one mini-batch whose completions have `tokens` tokens each."""
    logprobs = tuple(-math.sqrt(2 + i) for i in range(tokens))
    one = Completion(tuple(range(tokens)), "", logprobs, "stop", ((step, tokens),))
    group = Group(0, tuple(range(prompt)), (one,) * size, (0.5,) * size, (0.125,) * size)
    batch = Batch(step, (MiniBatch((group,) * group_count, group_count),))
    batches = tuple(of_agent(number, batch) for number in range(agents))
    return LoggedStep(step, batches, group_count * size, {"turn_1/reward_mean": 0.5}, ({"task": "t/1"},))
