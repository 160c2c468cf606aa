"""Recombined answers of evaluated models: readers of a text, whose words are scored without a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from marl_ray.config import from_tree
from marl_ray.core.episode import Episode, Task, sibling_calls
from marl_ray.environments import ENVIRONMENTS
from marl_ray.evaluation.recombination import Recombiner
from marl_ray.rollout.scorer import Scorer
from tests.factories import make_completion, make_node
from tests.rollout.helpers import NoExecutor

TEXT = Task(
    "t", "The ferry leaves before sunrise, and the crew counts tickets while a child waves from the harbour.", {}
)


def episodes(answers: Sequence[tuple[str, str]], rewards: Sequence[float]) -> list[Episode]:
    """Return one episode per joint answer of a first and a second reader."""
    found = []
    for texts, reward in zip(answers, rewards, strict=True):
        node = make_node(0, [reward])
        for agent, prompt in enumerate(["Tags of the first reader:", "Tags of the second reader:"]):
            node.calls[agent] = list(sibling_calls((), [make_completion(texts[agent])], agent, prompt))
        found.append(Episode(TEXT, node))
    return found


DIVIDED = episodes([("ferry, sunrise", "child, harbour"), ("ferry, leaves", "waves, harbour")], [4 / 6, 4 / 6])
ALIKE = episodes([("ferry, sunrise", "ferry, sunrise"), ("ferry, leaves", "ferry, leaves")], [2 / 6, 2 / 6])


def recombiner(enabled: bool = True) -> Recombiner:
    tree = {"model": {"name": "m"}, "dataset": {"name": "bundled:tags", "type": "tags"}}
    config = from_tree(tree, "magrpo")
    environment = ENVIRONMENTS.get("tags").from_config(config)
    scorer = Scorer(config, environment, NoExecutor()) if enabled else None
    return Recombiner(environment, scorer, config.training.discount, [TEXT])


@pytest.mark.plugins("tags")
def test_readers_are_compared_with_one_reader_asked_twice() -> None:
    # A reader asked twice names three different words: ferry, sunrise and leaves; or child, harbour and waves.
    (found,) = asyncio.run(recombiner().measure("divided", [DIVIDED]))
    assert found["cooperation/one_agent_twice"] == pytest.approx(3 / 6)
    assert found["cooperation/over_one_agent_twice"] == pytest.approx(1 / 6)
    assert found["reward_per_token/all"] == pytest.approx(4 / 6 / 4)
    (found,) = asyncio.run(recombiner().measure("alike", [ALIKE]))
    assert found["cooperation/over_one_agent_twice"] == pytest.approx(-1 / 6)
    assert found["cooperation/agent_1_contribution"] == 0


@pytest.mark.plugins("tags")
def test_agents_of_two_models_play_together() -> None:
    both = recombiner()
    for label, given in (("divided", DIVIDED), ("alike", ALIKE)):
        asyncio.run(both.measure(label, [given]))
    matrix = {pair: rewards[0] for pair, rewards in asyncio.run(both.cross_play()).items()}
    assert matrix == {
        ("divided", "divided"): pytest.approx(4 / 6),
        ("divided", "alike"): pytest.approx(3 / 6),
        ("alike", "divided"): pytest.approx(4 / 6),
        ("alike", "alike"): pytest.approx(3 / 6),
    }


@pytest.mark.plugins("tags")
def test_only_tokens_are_counted_unless_measures_are_asked_for() -> None:
    off = recombiner(enabled=False)
    (found,) = asyncio.run(off.measure("divided", [DIVIDED]))
    assert {name.partition("/")[0] for name in found} == {"tokens", "reward_per_token"}
    assert asyncio.run(off.cross_play()) == {}
