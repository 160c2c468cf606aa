"""Branch replays and removals: the runs that are played, the calls that are compared, and their weights."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from marl_ray.config import Config
from marl_ray.core.batch import Group
from marl_ray.core.episode import AgentCall, Episode, Node, Task
from marl_ray.core.errors import UserError
from marl_ray.credit.groups import build_group
from marl_ray.plugins.gateway.environment import check_settings
from marl_ray.plugins.gateway.program_episode import ProgramEpisode
from marl_ray.plugins.gateway.program_player import MAX_DIVERGED
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.telemetry.metrics import rollout_metrics
from marl_ray.toy import BASE_PATH
from tests.plugins.gateway.scripted_agents import ScriptedAgent, gateway_config, play, root

HERE = "tests.plugins.gateway.test_branch_replays"
SIBLINGS = 3


async def talks(episode: ProgramEpisode) -> float:
    """Let the tester read the coder's letter, and the coder both. The reward is the number of letters a."""
    first = await episode.ask("coder", "Begin:")
    second = await episode.ask("tester", f"After {first}:")
    third = await episode.ask("coder", f"After {first}{second}:")
    return float((first + second + third).count("a"))


async def answers_apart(episode: ProgramEpisode) -> float:
    """Ask both agents at the same time. They read nothing."""
    texts = await asyncio.gather(episode.ask("coder", "Yours:"), episode.ask("tester", "Yours:"))
    return float("".join(texts).count("a"))


runs_of_dice: Iterator[int] = iter(range(10**9))


async def rolls_dice(episode: ProgramEpisode) -> float:
    """Ask another first question in every run."""
    first = await episode.ask("coder", f"Begin {next(runs_of_dice)}:")
    return float((first + await episode.ask("tester", "Go on:")).count("a"))


async def says_nothing(episode: ProgramEpisode) -> float:
    return 1.0


async def fails_without_an_answer(episode: ProgramEpisode) -> float:
    first = await episode.ask("coder", "Begin:")
    if not first:
        raise ValueError("no answer")
    return float(first == "a")


def letter(prompt: str, seed: int) -> str:
    """Say a with a probability that depends on the prompt."""
    chance = 0.3 + 0.05 * (len(prompt) % 9)
    return "a" if random.Random(seed).random() < chance else "b"


def config_of(function: str, **settings: Any) -> Config:
    gateway = {"function": f"{HERE}:{function}", "credit": "calls"} | settings
    config = gateway_config(**gateway)
    return replace(config, training=replace(config.training, num_generations=SIBLINGS))


def agents() -> list[ScriptedAgent]:
    return [ScriptedAgent(str(BASE_PATH), letter) for _ in range(2)]


def played(config: Config, own: list[ScriptedAgent] | None = None, *tasks: Task) -> list[Episode]:
    return asyncio.run(play(config, own or agents(), *tasks))


def group_of(node: Node, agent: int, config: Config) -> Group:
    return build_group(node, agent, config)


def replayed(node: Node) -> list[list[AgentCall]]:
    return [[node.calls[replay.agent][index] for index in replay.calls] for replay in node.replays]


def test_siblings_answer_one_prompt_and_everything_before_is_repeated() -> None:
    own = agents()
    config = config_of("talks")
    (episode,) = played(config, own)
    node = root(episode)
    assert len(node.joint_actions) == 1 + 2 * (SIBLINGS - 1)
    assert len(node.replays) == 2
    for calls in replayed(node):
        assert len({call.prompt_ids for call in calls}) == 1
        assert [call.repeated for call in calls] == [False] * SIBLINGS
    calls = [call for agent in node.calls for call in agent]
    sampled = [call for call in calls if not call.repeated]
    assert len(calls) == 3 * len(node.joint_actions)
    assert len(sampled) == sum(len(agent.requests) for agent in own) < len(calls)
    assert rollout_metrics([episode], 1.0)["rollout/tokens"] == sum(len(c.completion.token_ids) for c in sampled)


def test_a_run_reads_the_answers_of_the_recorded_run_up_to_its_call() -> None:
    node = root(played(config_of("talks"))[0])
    recorded = {call.prompt_ids: call.completion for agent in node.calls for call in agent if call.sibling == 0}
    for calls in node.calls:
        for call in calls:
            assert not call.repeated or call.completion is recorded[call.prompt_ids]


def test_equal_runs_give_equal_batches() -> None:
    config = config_of("talks")
    first, second = (root(played(config)[0]) for _ in range(2))
    assert first.replays == second.replays
    assert [group_of(first, agent, config) for agent in (0, 1)] == [group_of(second, agent, config) for agent in (0, 1)]


def test_prompts_that_read_nothing_new_get_the_recorded_answer() -> None:
    own = agents()
    node = root(played(config_of("answers_apart"), own)[0])
    assert [len(agent.requests) for agent in own] == [SIBLINGS, SIBLINGS]
    for replay in node.replays:
        others = node.calls[1 - replay.agent]
        siblings = {node.calls[replay.agent][index].sibling for index in replay.calls}
        assert len({id(call.completion) for call in others if call.sibling in siblings}) == 1


def test_only_calls_of_one_replay_are_compared_and_weighted_by_their_chance() -> None:
    config = config_of("talks", replayed_calls=1)
    tasks = [Task(f"task/{number}", "Count.", {}) for number in range(20)]
    agents_chosen: Counter[int] = Counter()
    for episode in played(config, None, *tasks):
        node = root(episode)
        (replay,) = node.replays
        assert replay.weight == 3.0  # one of three calls
        agents_chosen[replay.agent] += 1
        group = group_of(node, replay.agent, config)
        rewards = [node.joint_actions[sibling].reward for sibling in group.siblings]
        mean = sum(rewards) / SIBLINGS
        assert group.returns == tuple(rewards)
        assert group.weights == pytest.approx([3.0 / SIBLINGS * (reward - mean) for reward in rewards])
        other = group_of(node, 1 - replay.agent, config)
        assert [call.completion.token_ids for call in other.calls] == [()]
        assert other.weights == (0.0,)
    assert set(agents_chosen) == {0, 1}


def test_agents_that_do_not_learn_are_not_replayed() -> None:
    config = config_of("talks")
    frozen = replace(config.agents[0], learning_rate=0.0)
    node = root(played(replace(config, agents=(frozen, config.agents[1])))[0])
    assert [(replay.agent, replay.weight) for replay in node.replays] == [(1, 1.0)]


def test_a_program_that_asks_other_prompts_is_refused_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    (episode,) = played(config_of("rolls_dice"))
    node = root(episode)
    assert len(node.joint_actions) == 1
    assert rollout_metrics([episode], 1.0)["gateway/diverged"] == 2 * (SIBLINGS - 1)
    assert rollout_metrics([episode], 1.0)["gateway/failed"] == 0
    assert [record.message for record in caplog.records if "gateway/diverged" in record.message] != []
    config = config_of("rolls_dice")
    assert {weight for agent in (0, 1) for weight in group_of(node, agent, config).weights} == {0.0}


def test_a_program_that_never_repeats_itself_ends_the_run() -> None:
    tasks = [Task(f"t{number}", "p", {}) for number in range(MAX_DIVERGED // (2 * (SIBLINGS - 1)) + 1)]
    with pytest.raises(UserError, match=f"each of {MAX_DIVERGED} runs .* or set gateway.credit to runs"):
        played(config_of("rolls_dice"), None, *tasks)


def test_a_program_without_calls_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    (episode,) = played(config_of("says_nothing"))
    assert len(root(episode).joint_actions) == 1
    (message,) = [record.message for record in caplog.records if "has called no agent" in record.message]
    assert message.endswith("ask the models coder, tester at OPENAI_BASE_URL, or with episode.ask")


def test_logs_say_which_calls_are_replays() -> None:
    (episode,) = played(config_of("talks"))
    (record,) = episode_record(episode)["nodes"]
    assert [sorted(replay) for replay in record["replays"]] == [["agent", "calls", "weight"]] * 2
    assert rollout_metrics([episode], 1.0)["gateway/replays"] == 2 * (SIBLINGS - 1)


def test_an_evaluation_has_no_replays() -> None:
    config = config_of("talks")

    async def evaluate() -> Episode:
        from marl_ray.environments import ENVIRONMENTS
        from tests.rollout.helpers import NoExecutor

        environment = ENVIRONMENTS.get("gateway").from_config(config)
        try:
            return await environment.player(config, agents(), NoExecutor()).evaluate_task(Task("t", "p", {}), 2)
        finally:
            await environment.close()

    node = root(asyncio.run(evaluate()))
    assert (len(node.joint_actions), node.replays) == (2, [])


def removing(function: str, estimator: str = "difference") -> Config:
    config = config_of(function, credit="runs")
    removed = replace(config.agents[0], estimator=estimator)
    return replace(config, agents=(removed, config.agents[1]))


def test_a_removed_agent_says_nothing_and_others_answer_as_before() -> None:
    config = removing("answers_apart")
    node = root(played(config)[0])
    assert len(node.joint_actions) == SIBLINGS
    for number, without in enumerate(node.counterfactuals[0]):
        (tester,) = [call for call in node.calls[1] if call.sibling == number]
        assert without == tester.completion.text.count("a")
    group = group_of(node, 0, config)
    own = [call.completion.text.count("a") for call in group.calls]
    assert group.weights == pytest.approx([count / SIBLINGS for count in own])


def test_only_new_answers_of_runs_without_an_agent_count_as_tokens() -> None:
    (episode,) = played(removing("answers_apart"))
    assert rollout_metrics([episode], 1.0)["gateway/removal_tokens"] == 0  # the other agent answers as before
    (episode,) = played(removing("talks"))
    assert rollout_metrics([episode], 1.0)["gateway/removal_tokens"] > 0


def test_the_number_of_runs_with_removals_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    played(removing("answers_apart"))
    assert "6 runs of the program per task: 3, and each once more without 1 agent" in caplog.text


def test_runs_that_fail_without_an_agent_are_left_out() -> None:
    (episode,) = played(removing("fails_without_an_answer"))
    assert episode.root is None
    assert "with empty answers of coder, as estimator difference requires: " in episode.stops[0].detail


@pytest.mark.parametrize(
    ("estimator", "gateway", "message"),
    [("difference", {"credit": "calls"}, "gateway.credit runs"), ("shapley", {"credit": "runs"}, "magrpo, marloo")],
)
def test_estimators_that_programs_cannot_have_are_refused(
    estimator: str, gateway: dict[str, str], message: str
) -> None:
    config = config_of("talks", **gateway)
    config = replace(config, agents=tuple(replace(agent, estimator=estimator) for agent in config.agents))
    with pytest.raises(UserError, match=message):
        check_settings(config)


@pytest.mark.slow
@pytest.mark.parametrize("calls", [1, 2])
def test_the_expected_gradient_is_exact(calls: int) -> None:
    """Compare the gradient in the logit of letter a, for every prompt, over many tasks."""
    config = config_of("talks", replayed_calls=calls)
    count = 600
    tasks = [Task(f"task/{number}", "Count.", {}) for number in range(count)]
    samples: dict[str, list[float]] = {}
    tokenizer = agents()[0].tokenizer
    for number, episode in enumerate(played(config, None, *tasks)):
        node = root(episode)
        for agent in (0, 1):
            group = group_of(node, agent, config)
            for call, weight in zip(group.calls, group.weights, strict=True):
                if not call.completion.token_ids:
                    continue
                prompt = tokenizer.decode(call.prompt_ids)
                chance = 0.3 + 0.05 * (len(prompt) % 9)
                slope = (call.completion.text == "a") - chance
                samples.setdefault(prompt, [0.0] * count)[number] += weight * slope
    shrunk = 1 - 1 / SIBLINGS  # magrpo's baseline contains the answer itself
    for prompt, exact in exact_gradient(sorted(samples, key=len), tokenizer).items():
        own = samples[prompt]
        mean = sum(own) / count
        deviation = math.sqrt(sum((value - mean) ** 2 for value in own) / count)
        assert mean == pytest.approx(shrunk * exact, abs=4 * deviation / math.sqrt(count))


def exact_gradient(prompts: list[str], tokenizer: Any) -> dict[str, float]:
    """Return the derivative of the expected reward of `talks` in the logit of letter a, by prompt."""

    def chance(prompt: str) -> float:
        return 0.3 + 0.05 * (len(prompt) % 9)

    gradient = dict.fromkeys(prompts, 0.0)
    for letters in (f"{a}{b}{c}" for a in "ab" for b in "ab" for c in "ab"):
        asked = ["Begin:", f"After {letters[0]}:", f"After {letters[:2]}:"]
        shown = [next(prompt for prompt in prompts if text in prompt) for text in asked]
        probability = math.prod(
            chance(prompt) if said == "a" else 1 - chance(prompt) for prompt, said in zip(shown, letters, strict=True)
        )
        for prompt, said in zip(shown, letters, strict=True):
            gradient[prompt] += probability * letters.count("a") * ((said == "a") - chance(prompt))
    return gradient
