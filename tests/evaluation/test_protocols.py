"""The prompts that agents read under each protocol, with scripted generators and the real episode runner."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from marl_ray.config import from_tree
from marl_ray.core.episode import Episode, Generation, SamplingSpec, Task
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.evaluation.protocols import PROTOCOLS
from marl_ray.rollout.turn_player import TurnPlayer
from marl_ray.sandbox import ExecutionReport, Program, failed_report
from tests.factories import make_completion

TASK = Task("t/1", "Double it.", {"entry_point": "f", "tests": ("assert f(1) == 2",)})
INTRODUCTION = "Another agent has answered:\n"


class FakeGenerators:
    """Generators that respond with their name and the number of the request, and record their prompts."""

    def __init__(self, name: str, too_long: bool = False) -> None:
        self.name, self.too_long = name, too_long
        self.asked: list[tuple[str, SamplingSpec]] = []

    async def generate(
        self, prompt: str, sampling: SamplingSpec, priority: int = 0, history: tuple[int, ...] = ()
    ) -> Generation:
        self.asked.append((prompt, sampling))
        await asyncio.sleep(0)  # lets other agents run
        completion = make_completion(f"{self.name} {len(self.asked)}")
        return Generation((1,), () if self.too_long else (completion,))

    @property
    def prompts(self) -> list[str]:
        return [prompt for prompt, _ in self.asked]


class FailingSandbox:
    """A sandbox in which every test fails."""

    async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        return [failed_report(program, "") for program in programs]


def run_episode(protocol: str, agents: Sequence[FakeGenerators], turns: int = 1) -> Episode:
    sections = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}}
    own = {"num_agents": len(agents), "num_turns": turns, "num_generations": 2}
    config = from_tree(sections | {"magrpo": own}, "magrpo")
    environment = CodeGeneration(len(agents))

    async def episode() -> Episode:
        runner = TurnPlayer(config, environment, PROTOCOLS[protocol](agents), FailingSandbox())
        return await asyncio.wait_for(runner.run_episode(TASK, 1, "eval", evaluation=True), timeout=10)

    return asyncio.run(episode())


def test_parallel_agents_read_no_other_responses() -> None:
    aux, main = FakeGenerators("aux"), FakeGenerators("main")
    run_episode("parallel", [aux, main], turns=2)
    assert len(aux.asked) == len(main.asked) == 2
    assert not any(INTRODUCTION in prompt for prompt in aux.prompts + main.prompts)


def test_sequential_agents_read_the_earlier_responses_of_the_same_turn() -> None:
    agents = [FakeGenerators("one"), FakeGenerators("two"), FakeGenerators("three")]
    result = run_episode("sequential", agents, turns=2)
    one, two, three = (agent.prompts for agent in agents)
    for turn in (0, 1):
        assert INTRODUCTION not in one[turn]
        assert two[turn].startswith(f"{INTRODUCTION}one {turn + 1}\n\n")
        assert three[turn].startswith(f"{INTRODUCTION}one {turn + 1}\n\n{INTRODUCTION}two {turn + 1}\n\n")
    nodes = [node for _, node in result.nodes()]
    assert [prompt.rpartition(node.prompts[1])[1:] for prompt, node in zip(two, nodes, strict=True)] == [
        (node.prompts[1], "") for node in nodes
    ]
    assert [calls[0].completion.text for calls in nodes[1].calls] == ["one 2", "two 2", "three 2"]


def test_discussing_agents_exchange_drafts_and_their_second_responses_count() -> None:
    aux, main = FakeGenerators("aux"), FakeGenerators("main")
    result = run_episode("discussion", [aux, main], turns=2)
    assert [INTRODUCTION in prompt for prompt in aux.prompts] == [False, True, False, True]
    assert aux.prompts[1] == f"{INTRODUCTION}main 1\n\n{aux.prompts[0]}"
    assert main.prompts[3] == f"{INTRODUCTION}aux 3\n\n{main.prompts[2]}"
    assert [[calls[0].completion.text for calls in node.calls] for _, node in result.nodes()] == [
        ["aux 2", "main 2"],
        ["aux 4", "main 4"],
    ]
    draft, answer = aux.asked[0][1], aux.asked[1][1]
    assert draft.seed != answer.seed


def test_a_prompt_that_is_too_long_ends_the_resultwithout_a_deadlock() -> None:
    for protocol in ("sequential", "discussion"):
        assert run_episode(protocol, [FakeGenerators("aux", too_long=True), FakeGenerators("main")]).stopped_by(
            "prompt_too_long"
        )
