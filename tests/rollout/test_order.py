"""Agents that answer one after another: who reads what, which answers are siblings, and what they are credited with.

Environment and generators are small and run no code; runner, credit and records are the real ones.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import pytest
import torch

from marl_ray.config import Config, from_tree
from marl_ray.core.episode import Generation, JointAction, Node, Outcome, SamplingSpec, Task
from marl_ray.credit.estimators import marloo
from marl_ray.credit.groups import build_agent_batch
from marl_ray.credit.returns import action_returns, completion_returns
from marl_ray.external.transition import Transition
from marl_ray.reports.episode_text import episode_text
from marl_ray.rollout.episode_runner import EpisodeRunner
from marl_ray.rollout.joint_actions import JOINT_MODES
from marl_ray.rollout.turn import sample_turn
from marl_ray.telemetry.episode_records import episode_record
from tests.environments.talk import Said, Talk
from tests.factories import make_completion

TASK = Task("t", "Go.", {})


class Relay(Talk):
    """Speakers in stages; who answers later is asked by what was sample_turn before."""

    def __init__(self, stages: Any, agents: int | None = None) -> None:
        super().__init__(agents or sum(map(len, stages)))
        self.stages = stages

    def order(self, task: Task) -> list[list[int]]:
        return self.stages

    def prompt_after(self, task: Task, agent: int, prompt: str, answers: Mapping[int, str]) -> str:
        return f"{' and '.join(answers[other] for other in sorted(answers))}?"

    def outcome(self, attempt: Said, report: Any) -> Outcome:
        return Outcome(sum(map(len, attempt.texts)) / 100)


class Echo:
    """Stands in for an agent's generators: says its letter, a number, and after `<` what it was asked."""

    def __init__(self, letter: str, too_long_after: int = 99) -> None:
        self.letter, self.asked, self.too_long_after = letter, [], too_long_after
        self.specs: list[SamplingSpec] = []

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        self.asked.append(prompt)
        self.specs.append(sampling)
        await asyncio.sleep(0)
        if len(self.asked) > self.too_long_after:
            return Generation((1,), ())
        said = [f"{self.letter}{len(self.asked)}.{g}<{prompt}>" for g in range(sampling.num_generations)]
        return Generation(tuple(prompt.encode()), tuple(make_completion(text) for text in said))


def config(agents: int, **settings: Any) -> Config:
    own = {"num_agents": agents, "num_turns": 1, "num_generations": 3} | settings
    tree = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}, "external": {"mode": "passed"}, "magrpo": own}
    return from_tree(tree, "magrpo")


def play(stages: Any, echoes: Sequence[Echo] | None = None, of: int | None = None, **settings: Any) -> Any:
    environment = Relay(stages, of)
    agents = environment.num_agents
    echoes = echoes or [Echo(letter) for letter in "abcd"[:agents]]
    run = config(agents, **settings)
    runner = EpisodeRunner(run, environment, Transition(run.external, environment), echoes, Nobody())
    return asyncio.run(asyncio.wait_for(runner.run_episode(TASK, run.rollout.num_generations, "train", 0), timeout=10))


class Nobody:
    """There is nothing to execute."""

    async def execute(self, programs: Sequence[Any]) -> list[Any]:
        assert not programs
        return []


def texts(node: Node) -> list[list[str]]:
    """Of every joint action, each agent's answer."""
    return [[node.completions[agent][i].text for agent, i in enumerate(a.indices)] for a in node.joint_actions]


def test_whoever_answers_later_has_read_what_the_answer_is_joined_with() -> None:
    node = play([[1], [0]]).root
    assert len(node.joint_actions) == 2 * (3 - 1) + 1
    for late, early in texts(node):
        assert late.endswith(f"<{early}?>")
    assert [sum(early == "b1.0<Go. You are speaker 1.>" for _, early in texts(node))] == [3]


def test_a_group_is_what_was_answered_to_one_prompt() -> None:
    echoes = [Echo("a"), Echo("b")]
    episode = play([[1], [0]], echoes)
    node = episode.root
    late, early = echoes
    assert [spec.num_generations for spec in early.specs] == [3]
    assert [spec.num_generations for spec in late.specs] == [3, 1, 1]
    assert len({spec.seed for spec in late.specs + early.specs}) == 4
    assert node.prompts == [late.asked[0], early.asked[0]]
    assert node.prompt_ids[0] == tuple(late.asked[0].encode())
    assert node.other_prompts == [late.asked[1:], []]
    assert [node.prompt_of(0, index) for index in range(5)] == [late.asked[0]] * 3 + late.asked[1:]
    for agent in (0, 1):
        (group,) = build_agent_batch([episode], agent, 0, config(2)).mini_batches[0].groups
        assert [c.text for c in group.completions] == [c.text for c in node.completions[agent][:3]]
        assert group.prompt_ids == node.prompt_ids[agent]
    record = episode_record(episode)["nodes"][0]
    assert record["other_prompts"] == [late.asked[1:], []]
    assert late.asked[0] in episode_text(episode)


def test_agents_that_answer_at_the_same_time_have_no_other_prompts() -> None:
    episode = play([[0, 1]])
    assert [action.indices for action in episode.root.joint_actions] == [(0, 0), (1, 1), (2, 2)]
    assert "other_prompts" not in episode_record(episode)["nodes"][0]


@pytest.mark.parametrize(
    ("stages", "mode", "joint_actions"),
    [
        ([[0], [1], [2]], "aligned", 3 * 2 + 1),
        ([[2], [0, 1]], "aligned", 2 * 2 + 1),
        ([[2], [0, 1]], "cross", 9 + 2),
        ([[0, 1], [2]], "cross", 3 + 8),
    ],
)
def test_every_joint_action_was_played(stages: list[list[int]], mode: str, joint_actions: int) -> None:
    node = play(stages, joint_mode=mode).root
    assert len(node.joint_actions) == len(set(map(tuple, texts(node)))) == joint_actions
    for said in texts(node):
        for number, stage in enumerate(stages[1:], 1):
            heard = " and ".join(said[agent] for agent in sorted(a for earlier in stages[:number] for a in earlier))
            assert all(said[agent].endswith(f"<{heard}?>") for agent in stage)
    for agent in range(3):
        assert len(node.group(agent)) == 3
        assert {a.indices[agent] for a in node.joint_actions} == set(range(len(node.completions[agent])))


def test_an_answer_is_credited_with_all_that_continue_it() -> None:
    node = play([[0], [1]]).root
    rewards = [1.0, 2.0, 6.0, 4.0, 5.0]
    for action, reward in zip(list(node.joint_actions), rewards, strict=True):
        object.__setattr__(action, "rewards", (reward, -reward))
    first, second = (completion_returns(node, agent, action_returns(node, agent, 1.0, False)) for agent in (0, 1))
    assert first == [3.0, 4.0, 5.0]
    assert second == [-1.0, -2.0, -6.0], "what continues another answer has another prompt"


def test_advantages_follow_the_gradient_of_the_ordered_game() -> None:
    """Two words each; the second agent knows the first one's. The mean of advantage * d log pi over many nodes is
    the gradient of the expected reward, which is known; were answers joined that have not been read, it would not be.
    """
    reward = {("x", "x"): 0.0, ("x", "y"): 1.0, ("y", "x"): 3.0, ("y", "y"): 0.5}
    first, second = {"x": 0.7, "y": 0.3}, {"x": {"x": 0.4, "y": 0.6}, "y": {"x": 0.2, "y": 0.8}}
    rng = random.Random(5)

    async def ask(agent: int, prompt: str, line: int) -> Generation:
        policy = second[prompt] if agent else first
        said = rng.choices(list(policy), list(policy.values()), k=1 if line else 3)
        return Generation((1,), tuple(make_completion(word) for word in said))

    def slope(policy: Mapping[str, float], word: str) -> float:
        """Of log pi(word) by the logit of x."""
        return (word == "x") - policy["x"]

    async def gradients() -> list[tuple[float, float, float]]:
        found = []
        for _ in range(3000):
            said = await sample_turn([[0], [1]], ["", ""], ask, lambda a, p, heard: heard[0], JOINT_MODES["aligned"])
            assert said is not None
            node = Node(0, said.prompts, said.prompt_ids, said.completions, [], other_prompts=said.other_prompts)
            words = [[c.text for c in node.completions[agent]] for agent in (0, 1)]
            rewards = [reward[words[0][i], words[1][j]] for i, j in said.indices]
            node.joint_actions = [action(i, r) for i, r in zip(said.indices, rewards, strict=True)]
            grads = []
            for agent in (0, 1):
                policy = second[node.prompts[1]] if agent else first
                credit = advantages(completion_returns(node, agent, rewards))
                grads.append(fmean(a * slope(policy, w) for a, w in zip(credit, words[agent], strict=False)))
            on_x = node.prompts[1] == "x"
            found.append((grads[0], grads[1] * on_x, grads[1] * (not on_x)))
        return found

    drawn = asyncio.run(gradients())
    value = {word: sum(second[word][other] * reward[word, other] for other in "xy") for word in "xy"}
    spread = first["x"] * first["y"]
    expected = [spread * (value["x"] - value["y"])]
    for word in "xy":
        own = second[word]
        expected.append(first[word] * own["x"] * own["y"] * (reward[word, "x"] - reward[word, "y"]))
    for part, wanted in enumerate(expected):
        values = [one[part] for one in drawn]
        mean = fmean(values)
        error = (fmean((v - mean) ** 2 for v in values) / len(values)) ** 0.5
        assert abs(mean - wanted) < 4 * error, (part, mean, wanted, error)
        assert error < abs(wanted) / 10, "as exact as it has to be to tell"


def advantages(returns: Sequence[float]) -> list[float]:
    return marloo(torch.tensor(returns, dtype=torch.float64)).tolist()


def action(indices: tuple[int, ...], reward: float) -> Any:
    return JointAction(indices, Outcome(reward), reward, (reward, reward))


def test_a_continuation_that_does_not_fit_ends_the_episode() -> None:
    assert play([[0], [1]], [Echo("a"), Echo("b", too_long_after=2)]).stopped_by("prompt_too_long")


@pytest.mark.parametrize("order", [[[0]], [[0, 1], [1]], [[0], [], [1]], [[0], [2]], "01", [0, 1], [["0"], [1]]])
def test_an_order_that_is_none_is_named(order: Any) -> None:
    with pytest.raises(ValueError, match=r"Relay\.order must return lists that contain each agent from 0 to 1 once"):
        play(order, of=2)


def test_both_turns_keep_the_order() -> None:
    first, second = (node for _, node in play([[0], [1]], num_turns=2).nodes())
    for node in (first, second):
        assert all(late.endswith(f"<{early}?>") for early, late in texts(node))
