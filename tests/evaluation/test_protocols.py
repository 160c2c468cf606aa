"""Who hears whom within a turn. Generators are scripted, and the player is the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from marl_ray.config import from_tree
from marl_ray.core.episode import Episode, Generation, SamplingSpec, Task
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.evaluation.protocols import PROTOCOLS
from marl_ray.external.transition import Transition
from marl_ray.rollout.episode_runner import EpisodeRunner
from marl_ray.sandbox import ExecutionReport, Program, failed_report
from tests.factories import make_completion

TASK = Task("t/1", "Double it.", {"entry_point": "f", "tests": ("assert f(1) == 2",)})
HEARD = "Another agent has answered:\n"


class Counting:
    """Stands in for an agent's generators: says its name and how often it was asked, and remembers what it read."""

    def __init__(self, name: str, too_long: bool = False) -> None:
        self.name, self.too_long = name, too_long
        self.asked: list[tuple[str, SamplingSpec]] = []

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        self.asked.append((prompt, sampling))
        await asyncio.sleep(0)  # whoever may run, does
        said = make_completion(f"{self.name} {len(self.asked)}")
        return Generation((1,), () if self.too_long else (said,))

    @property
    def prompts(self) -> list[str]:
        return [prompt for prompt, _ in self.asked]


class Unrun:
    """Stands in for the sandbox: every test has failed, as of answers that are no code."""

    async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        return [failed_report(program, "") for program in programs]


def play(protocol: str, agents: Sequence[Counting], turns: int = 1) -> Episode:
    sections = {"model": {"name": "m"}, "dataset": {"name": "bundled:toy"}}
    own = {"num_agents": len(agents), "num_turns": turns, "num_generations": 2}
    config = from_tree(sections | {"magrpo": own}, "magrpo")
    environment = CodeGeneration(len(agents))
    transition = Transition(config.external, environment)

    async def episode() -> Episode:
        runner = EpisodeRunner(config, environment, transition, PROTOCOLS[protocol](agents), Unrun())
        return await asyncio.wait_for(runner.run_episode(TASK, 1, "eval", evaluation=True), timeout=10)

    return asyncio.run(episode())


def test_in_parallel_nobody_hears_anybody() -> None:
    aux, main = Counting("aux"), Counting("main")
    play("parallel", [aux, main], turns=2)
    assert len(aux.asked) == len(main.asked) == 2
    assert not any(HEARD in prompt for prompt in aux.prompts + main.prompts)


def test_in_sequence_later_agents_hear_earlier_ones_of_the_same_turn() -> None:
    agents = [Counting("one"), Counting("two"), Counting("three")]
    played = play("sequential", agents, turns=2)
    one, two, three = (agent.prompts for agent in agents)
    for turn in (0, 1):
        assert HEARD not in one[turn]
        assert two[turn].startswith(f"{HEARD}one {turn + 1}\n\n")
        assert three[turn].startswith(f"{HEARD}one {turn + 1}\n\n{HEARD}two {turn + 1}\n\n")
    nodes = [node for _, node in played.nodes()]
    assert [prompt.rpartition(node.prompts[1])[1:] for prompt, node in zip(two, nodes, strict=True)] == [
        (node.prompts[1], "") for node in nodes
    ]
    assert [group[0].text for group in nodes[1].completions] == ["one 2", "two 2", "three 2"]


def test_in_a_discussion_drafts_are_exchanged_and_the_second_answers_count() -> None:
    aux, main = Counting("aux"), Counting("main")
    played = play("discussion", [aux, main], turns=2)
    assert [HEARD in prompt for prompt in aux.prompts] == [False, True, False, True]
    assert aux.prompts[1] == f"{HEARD}main 1\n\n{aux.prompts[0]}"
    assert main.prompts[3] == f"{HEARD}aux 3\n\n{main.prompts[2]}"
    assert [[group[0].text for group in node.completions] for _, node in played.nodes()] == [
        ["aux 2", "main 2"],
        ["aux 4", "main 4"],
    ]
    draft, answer = aux.asked[0][1], aux.asked[1][1]
    assert draft.seed != answer.seed


def test_a_prompt_that_is_too_long_ends_the_episode_and_nobody_waits() -> None:
    for protocol in ("sequential", "discussion"):
        assert play(protocol, [Counting("aux", too_long=True), Counting("main")]).stopped_by("prompt_too_long")
