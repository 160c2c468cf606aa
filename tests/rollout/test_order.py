"""Agents that answer one after another: their prompts, groups and returns.

Environment and generators are small and run no code; runner, credit and records are real.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import pytest
import torch

from marl_ray.core.episode import Generation, JointAction, Node, Outcome, SamplingSpec, Task
from marl_ray.credit.estimators.base import SiblingValues
from marl_ray.credit.estimators.magrpo import Marloo
from marl_ray.credit.returns import action_returns, completion_returns
from marl_ray.results.run_summary import episode_text
from marl_ray.rollout import JOINT_MODES
from marl_ray.rollout.turn import sample_turn
from marl_ray.rollout.turn_player import TurnPlayer
from marl_ray.telemetry.episode_records import episode_record
from tests.credit.whole_batches import build_agent_batch
from tests.environments.talk import Said, Talk
from tests.factories import make_completion, make_config
from tests.rollout.helpers import NoExecutor

TASK = Task("t", "Go.", {})


class Relay(Talk):
    """Speakers in rounds; the prompt of a later round consists of the earlier completions."""

    def __init__(self, rounds: Any, agents: int | None = None) -> None:
        super().__init__(agents or sum(map(len, rounds)))
        self.rounds = rounds

    def order(self, task: Task) -> list[list[int]]:
        return self.rounds

    def prompt_after(self, task: Task, agent: int, prompt: str, answers: Mapping[int, str]) -> str:
        return f"{' and '.join(answers[other] for other in sorted(answers))}?"

    def outcome(self, attempt: Said, report: Any) -> Outcome:
        return Outcome(sum(map(len, attempt.texts)) / 100)


class Echo:
    """A generator whose texts are a letter, a number, and after `<` the prompt."""

    def __init__(self, letter: str, too_long_after: int = 99) -> None:
        self.letter, self.prompts, self.too_long_after = letter, list[str](), too_long_after
        self.specs: list[SamplingSpec] = []

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        self.prompts.append(prompt)
        self.specs.append(sampling)
        await asyncio.sleep(0)
        if len(self.prompts) > self.too_long_after:
            return Generation((1,), ())
        said = [f"{self.letter}{len(self.prompts)}.{g}<{prompt}>" for g in range(sampling.num_generations)]
        return Generation(tuple(prompt.encode()), tuple(make_completion(text) for text in said))


def run_episode(rounds: Any, echoes: Sequence[Echo] | None = None, of: int | None = None, **settings: Any) -> Any:
    environment = Relay(rounds, of)
    agents = environment.num_agents
    echoes = echoes or [Echo(letter) for letter in "abcd"[:agents]]
    base = {"num_agents": agents, "num_turns": 1, "num_generations": 3}
    run = make_config(sections={"external": {"mode": "passed"}}, **(base | settings))
    runner = TurnPlayer(run, environment, echoes, NoExecutor())
    return asyncio.run(asyncio.wait_for(runner.run_episode(TASK, run.training.num_generations, "train", 0), timeout=10))


def texts(node: Node) -> list[list[str]]:
    """Return the completions of every joint action, one per agent."""
    return [list(node.texts(action)) for action in node.joint_actions]


def test_a_later_completion_answers_the_completion_it_is_joined_with() -> None:
    node = run_episode([[1], [0]]).root
    assert len(node.joint_actions) == 2 * (3 - 1) + 1
    for late, early in texts(node):
        assert late.endswith(f"<{early}?>")
    assert [sum(early == "b1.0<Go. You are speaker 1.>" for _, early in texts(node))] == [3]


def test_a_group_consists_of_completions_of_one_prompt() -> None:
    echoes = [Echo("a"), Echo("b")]
    episode = run_episode([[1], [0]], echoes)
    node = episode.root
    late, early = echoes
    assert [spec.num_generations for spec in early.specs] == [3]
    assert [spec.num_generations for spec in late.specs] == [3, 1, 1]
    assert len({spec.seed for spec in late.specs + early.specs}) == 4
    assert node.prompts == [late.prompts[0], early.prompts[0]]
    assert node.calls[0][0].prompt_ids == tuple(late.prompts[0].encode())
    assert [call.prompt for call in node.calls[0]] == [late.prompts[0]] * 3 + late.prompts[1:]
    assert [(call.branch, call.sibling) for call in node.calls[0]] == [(0, 0), (0, 1), (0, 2), (1, None), (2, None)]
    for agent in (0, 1):
        (group,) = (
            build_agent_batch([episode], agent, 0, make_config(num_agents=2, num_turns=1, num_generations=3))
            .mini_batches[0]
            .groups
        )
        assert [c.text for c in group.completions] == [call.completion.text for call in node.calls[agent][:3]]
        assert group.prompt_ids == node.calls[agent][0].prompt_ids
    record = episode_record(episode)["nodes"][0]
    assert record["other_prompts"] == [late.prompts[1:], []]
    assert late.prompts[0] in episode_text(episode)


def test_agents_that_answer_at_the_same_time_have_no_other_prompts() -> None:
    episode = run_episode([[0, 1]])
    assert [action.indices for action in episode.root.joint_actions] == [(0, 0), (1, 1), (2, 2)]
    assert "other_prompts" not in episode_record(episode)["nodes"][0]


@pytest.mark.parametrize(
    ("rounds", "mode", "joint_actions"),
    [
        ([[0], [1], [2]], "aligned", 3 * 2 + 1),
        ([[2], [0, 1]], "aligned", 2 * 2 + 1),
        ([[2], [0, 1]], "cross", 9 + 2),
        ([[0, 1], [2]], "cross", 3 + 8),
    ],
)
def test_every_joint_action_was_sampled_as_a_whole(rounds: list[list[int]], mode: str, joint_actions: int) -> None:
    node = run_episode(rounds, joint_mode=mode).root
    assert len(node.joint_actions) == len(set(map(tuple, texts(node)))) == joint_actions
    for said in texts(node):
        for number, stage in enumerate(rounds[1:], 1):
            heard = " and ".join(said[agent] for agent in sorted(a for earlier in rounds[:number] for a in earlier))
            assert all(said[agent].endswith(f"<{heard}?>") for agent in stage)
    for agent in range(3):
        assert len(node.group(agent)) == 3
        assert {a.indices[agent] for a in node.joint_actions} == set(range(len(node.calls[agent])))


def test_a_completion_is_credited_with_all_its_continuations() -> None:
    node = run_episode([[0], [1]]).root
    rewards = [1.0, 2.0, 6.0, 4.0, 5.0]
    for action, reward in zip(list(node.joint_actions), rewards, strict=True):
        object.__setattr__(action, "rewards", (reward, -reward))
    first, second = (completion_returns(node, agent, action_returns(node, agent, 1.0, False)) for agent in (0, 1))
    assert first == [3.0, 4.0, 5.0]
    assert second == [-1.0, -2.0, -6.0], "continuations of another branch have another prompt"


def test_advantages_follow_the_gradient_of_the_ordered_game() -> None:
    # Two words per agent; the second agent knows the first agent's word. The mean of advantage * d log pi over many
    # nodes is the known gradient of the expected reward. Joining completions that were not read would change it.
    reward = {("x", "x"): 0.0, ("x", "y"): 1.0, ("y", "x"): 3.0, ("y", "y"): 0.5}
    first, second = {"x": 0.7, "y": 0.3}, {"x": {"x": 0.4, "y": 0.6}, "y": {"x": 0.2, "y": 0.8}}
    rng = random.Random(5)

    async def generate(agent: int, prompt: str, branch: int) -> Generation:
        policy = second[prompt] if agent else first
        said = rng.choices(list(policy), list(policy.values()), k=1 if branch else 3)
        return Generation((1,), tuple(make_completion(word) for word in said))

    def slope(policy: Mapping[str, float], word: str) -> float:
        """Return the derivative of log pi(word) with respect to the logit of x."""
        return (word == "x") - policy["x"]

    async def gradients() -> list[tuple[float, float, float]]:
        found = []
        for _ in range(3000):
            said = await sample_turn(
                [[0], [1]], ["", ""], generate, lambda a, p, earlier: earlier[0], JOINT_MODES.get("aligned")
            )
            assert said is not None
            node = Node(0, said.calls, [])
            words = [[call.completion.text for call in calls] for calls in node.calls]
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
    return Marloo().advantages(SiblingValues(torch.tensor(returns, dtype=torch.float64))).tolist()


def action(indices: tuple[int, ...], reward: float) -> Any:
    return JointAction(indices, Outcome(reward), reward, (reward, reward))


def test_a_continuation_with_a_too_long_prompt_ends_the_episode() -> None:
    assert run_episode([[0], [1]], [Echo("a"), Echo("b", too_long_after=2)]).stopped_by("prompt_too_long")


@pytest.mark.parametrize("order", [[[0]], [[0, 1], [1]], [[0], [], [1]], [[0], [2]], "01", [0, 1], [["0"], [1]]])
def test_an_invalid_order_is_an_error(order: Any) -> None:
    with pytest.raises(ValueError, match=r"Relay\.order must return lists that contain each agent from 0 to 1 once"):
        run_episode(order, of=2)


def test_both_turns_keep_the_order() -> None:
    first, second = (node for _, node in run_episode([[0], [1]], num_turns=2).nodes())
    for node in (first, second):
        assert all(late.endswith(f"<{early}?>") for early, late in texts(node))
