"""Agents that call tools before they answer: the sandbox, the conversations, and the trained ids are real, the answers
are scripted."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marl_ray.config import Config
from marl_ray.core.episode import Episode, Generation, Node
from marl_ray.core.errors import UserError
from marl_ray.environments import ENVIRONMENTS
from marl_ray.environments.reward import RewardEnvironment, prompt_task
from marl_ray.learning.micro_batches import MicroBatcher, trainable_rows
from marl_ray.plugins.gateway.options import GatewayConfig
from marl_ray.plugins.gateway.prompt_renderer import PromptRenderer
from marl_ray.plugins.gateway.tool_use.environment import ToolUse
from marl_ray.plugins.gateway.tool_use.tools import FunctionTool, ToolContext
from marl_ray.sandbox import Sandbox
from marl_ray.toy import BASE_PATH
from tests.credit.whole_batches import build_agent_batch
from tests.factories import make_config
from tests.plugins.gateway.scripted_agents import ScriptedAgent, chat_model
from tests.rollout.helpers import AUX, GOOD, TASK, DirectExecutor

Answer = Callable[[str, int], str]


def tool_config(
    model: str = str(BASE_PATH), agents: int = 2, numbers: Sequence[int] = (), algorithm: Any = None, **settings: Any
) -> Config:
    """Return the config of a code team with tools, in groups of two."""
    sections = {
        "environment": "tool_use",
        "model": {"name": model, "max_length": 4096},
        "dataset": {"name": "humaneval"},
        "code_generation": {"helper_reward": "static"},
        "external": {"mode": "level_feedback"},
        "tool_use": {"tools": ["python", "run_tests"], "agents": list(numbers), "timeout_s": 2.0} | settings,
    }
    own = {"num_agents": agents, "num_generations": 2, "max_new_tokens": 400} | (algorithm or {})
    return make_config(sections=sections, **own)


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def played(config: Config, sandbox: Sandbox, *answers: Answer) -> tuple[Episode, list[ScriptedAgent]]:
    agents = [ScriptedAgent(agent.name, answer) for agent, answer in zip(config.agents, answers, strict=True)]
    environment = ENVIRONMENTS.get("tool_use").from_config(config)
    runner = environment.player(config, agents, DirectExecutor(sandbox))
    return asyncio.run(runner.run_episode(TASK, config.training.group_sizes, "train", 0)), agents


def node_of(episode: Episode) -> Node:
    assert episode.root is not None, episode.stops
    return episode.root


def after_tools(*steps: str) -> Answer:
    """Return an agent that gives these messages in turn, by the number of results that it has read."""

    def answer(text: str, _: int) -> str:
        return steps[min(max(text.count("<tool_response>"), text.count("<|im_start|>tool\n")), len(steps) - 1)]

    return answer


@pytest.fixture(autouse=True, scope="module")
def long_contexts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.plugins.gateway.scripted_agents.CONTEXT", 4096)
        yield


@pytest.mark.parametrize("native", [False, True])
def test_a_conversation_with_tools_is_one_row_of_sampled_ids(native: bool, tmp_path: Path, sandbox: Sandbox) -> None:
    config = tool_config(chat_model(tmp_path) if native else str(BASE_PATH))
    main = after_tools(call("python", code="print(6 * 7)"), call("run_tests", code=GOOD), GOOD)
    episode, agents = played(config, sandbox, lambda *_: AUX, main)
    node = node_of(episode)
    assert [action.outcome.metrics["all_passed"] for action in node.joint_actions] == [1.0, 1.0]
    outcome = node.joint_actions[0].outcome
    assert outcome.metrics["tool_calls"] == 1.0  # two calls of one of two agents
    assert outcome.metrics["tool_failures"] == 0.0
    assert outcome.metrics["observation_tokens"] > 0
    prompts = [agents[1].tokenizer.decode(prompt.token_ids) for prompt, _ in agents[1].requests]
    assert "\n42\n" in prompts[-1]
    assert ("<|im_start|>tool\n42" in prompts[-1]) == native
    (mini_batch,) = build_agent_batch([episode], 1, 0, config).mini_batches
    (group,) = mini_batch.groups
    assert sorted(completion.token_ids for completion in group.completions) == sorted(agents[1].sampled)
    # The rewards of both siblings are equal: with weights all tokens are trained.
    batcher = MicroBatcher(4096, "packed")
    assert batcher.add(trainable_rows([replace(group, weights=(1.0,) * len(group.completions))])) == []
    # The conversations of both siblings are equal, so that their last answers are in one row.
    assert [len(row.completions) for row in batcher._pending] == [4, 2]
    first, second = batcher._pending
    assert [first.contains(0), first.contains(1), second.contains(0)] == [True] * 3


def test_a_failed_agent_ends_the_answers_of_its_partners(sandbox: Sandbox) -> None:
    cancelled = []

    class WithoutRoom(ScriptedAgent):
        async def generate(self, prompt: Any, sampling: Any, priority: int = 0) -> Generation:
            await asyncio.sleep(0.05)
            return Generation(prompt.token_ids, ())

    class Endless(ScriptedAgent):
        async def generate(self, prompt: Any, sampling: Any, priority: int = 0) -> Generation:
            try:
                return await asyncio.get_running_loop().create_future()
            finally:
                cancelled.append(prompt)

    config = tool_config()
    environment = ENVIRONMENTS.get("tool_use").from_config(config)
    agents = [kind(str(BASE_PATH), lambda *_: "") for kind in (WithoutRoom, Endless)]
    runner = environment.player(config, agents, DirectExecutor(sandbox))

    async def play() -> int:
        episode = await runner.run_episode(TASK, 2, "train", 0)
        assert "exceed the context" in episode.stops[0].detail
        return len(cancelled)

    assert asyncio.run(play()) == 2


def test_failures_are_results(sandbox: Sandbox) -> None:
    steps = (
        call("python", code="1 / 0"),
        call("python", code="while True: pass"),
        call("python", source="x"),
        call("delete", path="/"),
        call("python", code="import os; print(sorted(os.environ), open('/etc/shadow').read())"),
        "done",
    )
    config = tool_config(max_tool_calls=5, timeout_s=1.0, agents=1)
    episode, agents = played(config, sandbox, after_tools(*steps))
    node = node_of(episode)
    assert node.joint_actions[0].outcome.metrics["tool_failures"] == 5.0
    text = agents[0].tokenizer.decode(agents[0].requests[-1][0].token_ids)
    for part in ("line 1: ZeroDivisionError: division by zero", "Timeout", "the argument 'code' should be a text"):
        assert part in text
    assert "there is no tool 'delete': there are python, run_tests" in text
    assert node.answers(node.joint_actions[0])[0].completion.text == "done"


def test_the_number_of_calls_and_the_length_of_results_are_limited(sandbox: Sandbox) -> None:
    endless = call("python", code="print('x' * 5000)")
    config = tool_config(max_tool_calls=3, max_result_chars=100, agents=1)
    episode, agents = played(config, sandbox, lambda *_: endless)
    assert len(agents[0].requests) == 2 * 4
    assert "4901 characters left out" in agents[0].tokenizer.decode(agents[0].requests[-1][0].token_ids)
    assert node_of(episode).joint_actions[0].outcome.metrics["tool_calls"] == 3.0


def test_run_tests_says_what_the_environment_says_between_turns(sandbox: Sandbox) -> None:
    wrong = "def add_twice(a, b):\n    return a - b\n"
    config = tool_config(tools=["run_tests"], agents=1)
    episode, agents = played(
        config, sandbox, after_tools(call("run_tests", code=wrong), wrong.replace("- b", "+ 2 * b"))
    )
    assert node_of(episode).joint_actions[0].outcome.metrics["all_passed"] == 1.0
    environment: Any = ENVIRONMENTS.get("code_generation")(1)
    attempt = environment.attempt(TASK, [wrong], last=False)
    (report,) = sandbox.run_batch([attempt.program])
    lines = environment.feedback(attempt, environment.outcome(attempt, report), "level_feedback", 0)
    assert "\n".join(lines) in agents[0].tokenizer.decode(agents[0].requests[-1][0].token_ids)


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def test_a_function_of_the_user_is_a_tool(sandbox: Sandbox) -> None:
    config = tool_config(tools=["tests.plugins.gateway.tool_use.test_tool_use:add"], agents=1)
    steps = (call("add", a=40, b=2), call("add", b="x", c=1), call("add", a="x"), "done")
    episode, agents = played(config, sandbox, after_tools(*steps))
    text = agents[0].tokenizer.decode(agents[0].requests[-1][0].token_ids)
    assert '"description": "Add two numbers."' in text
    assert "<tool_response>\n42\n</tool_response>" in text
    assert "error: unknown argument 'c': there are a, b" in text
    assert "error: TypeError" in text
    assert node_of(episode).joint_actions[0].outcome.metrics["tool_failures"] == 2.0


ENDED = threading.Event()


def endless(seconds: int) -> str:
    """Wait."""
    return str(ENDED.wait(60))


async def calculated(expression: str) -> float:
    """Calculate in a thread that may use signals."""
    await asyncio.sleep(0)
    return float(expression)


def test_a_function_that_overruns_its_time_keeps_nothing_else_waiting(sandbox: Sandbox) -> None:
    """More late calls than the event loop's own pool of threads has, in which a run writes its log."""
    function = FunctionTool(endless, 0.05)
    context = ToolContext(TASK, 0)

    async def play() -> str:
        calls = (function.call({"seconds": 1}, context) for _ in range(2 * (os.cpu_count() or 1) + 40))
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert {str(failure) for failure in failures} == {"no result within 0.05 s"}
        return await asyncio.wait_for(asyncio.to_thread(lambda: "written"), 10)

    try:
        assert asyncio.run(play()) == "written"
    finally:
        ENDED.set()
    assert asyncio.run(FunctionTool(calculated, 1.0).call({"expression": "4.5"}, context)) == "4.5"


def test_a_model_that_never_calls_is_warned_of(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    config = tool_config(chat_model(tmp_path), agents=1)
    for calls, warnings in (((0,) * 100, 1), ((0, 1) + (0,) * 200, 0)):
        caplog.clear()
        renderer = PromptRenderer(config.agents[0], config.model)
        for number in calls:
            renderer.count_calls(number)
        assert len(caplog.records) == warnings
    assert renderer.call_format == "tagged"


@pytest.mark.parametrize(("kept", "reason"), [(1, ""), (0, "unscored")])
def test_an_answer_without_a_reward_is_left_out(kept: int, reason: str, sandbox: Sandbox) -> None:
    values = iter([None, 1.0 if kept else None])
    judge = RewardEnvironment(prompts=["Add."], reward=lambda prompt, answers: next(values), agents=["x"])
    config = tool_config(tools=["python"], agents=1)
    environment = ToolUse(1, config.section(GatewayConfig), judge)
    agents = [ScriptedAgent(config.agents[0].name, lambda *_: "done")]
    runner = environment.player(config, agents, DirectExecutor(sandbox))
    task = prompt_task(judge.splits["train"][0], 0)
    episode = asyncio.run(runner.run_episode(task, 2, "train", 0))
    assert len(episode.unscored) == 2 - kept
    assert [stop.reason for stop in episode.stops] == ([reason] if reason else [])
    assert episode.root is None or len(episode.root.joint_actions) == kept


def test_only_named_agents_have_tools(sandbox: Sandbox) -> None:
    asked = after_tools(call("python", code="print(1)"), GOOD)
    episode, agents = played(tool_config(numbers=[1]), sandbox, asked, asked)
    assert len(agents[0].requests) == 2
    assert len(agents[1].requests) == 4
    assert node_of(episode).joint_actions[0].outcome.metrics["tool_calls"] == 1.0


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"tools": ["pyton"]}, "unknown tool 'pyton'"),
        ({"tools": []}, "tool_use.tools is empty"),
        ({"environment": "gateway"}, "tool_use.environment"),
        ({"tools": ["python", "python"]}, "two tools of the name python"),
        ({"numbers": [1]}, "tool_use.agents names agent 1"),
        ({"algorithm": {"num_turns": 2}}, "num_turns is 2"),
        ({"algorithm": {"joint_mode": "cross"}}, "set it to aligned"),
        ({"algorithm": {"critic": "iac"}}, "critic iac"),
        ({"algorithm": {"latency_coef": 0.01}}, "latency_coef needs one answer per agent"),
        ({"algorithm": {"estimator": "opo"}}, "estimator opo needs more"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], key: str, sandbox: Sandbox) -> None:
    with pytest.raises(UserError, match=key):
        played(tool_config(agents=1, **settings), sandbox, lambda *_: "x")
