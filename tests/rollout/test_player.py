"""Playing episodes: turns, handoff, early ends, and what learners and metrics get of them.

The generators are scripted stand-ins (real engines are in tests/actors); environment, transition and sandbox are real.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from marl_ray.actors.engine import SamplingSpec
from marl_ray.actors.generator import Generation
from marl_ray.config import Config, from_tree
from marl_ray.core.messages import Completion, Episode, Task
from marl_ray.credit.returns import groups_of_agent
from marl_ray.environments import CodeGeneration
from marl_ray.external import ExternalTransition
from marl_ray.reports.plots import plot_returns
from marl_ray.rollout.player import EpisodePlayer
from marl_ray.sandbox import ExecutionReport, Program, Sandbox, failed_report
from marl_ray.telemetry.metrics import episode_metrics, joint_samples, rollout_metrics
from marl_ray.telemetry.record import Record, read_metrics, readable

TASK = Task(
    "t/1",
    'def add_twice(a, b):\n    """Return a plus two times b."""\n',
    "add_twice",
    "def check(candidate):\n    assert candidate(1, 2) == 5\n    assert candidate(0, 0) == 0\n",
)
AUX = "def aux(b):\n    return 2 * b\n"
GOOD = "def add_twice(a, b):\n    return a + aux(b)\n"
WRONG = "def add_twice(a, b):\n    return a - aux(b)\n"
BROKEN = "def add_twice(a, b:\n    return"


class Scripted:
    """Stands in for an agent's generators: answers with the scripted texts and remembers what it was asked."""

    def __init__(self, *texts: str, too_long_from_turn: int = 99) -> None:
        self.texts = texts
        self.asked: list[tuple[str, SamplingSpec]] = []
        self.too_long_from_turn = too_long_from_turn

    async def generate(self, prompt: str, sampling: SamplingSpec) -> Generation:
        self.asked.append((prompt, sampling))
        if len(self.asked) > self.too_long_from_turn:
            return Generation((1,), ())
        group = tuple(Completion((7, 8), text, (-0.5, -0.5), "stop", 3) for text in self.texts)
        return Generation((1, 2, 3), group[: sampling.num_generations])


class Direct:
    """The sandbox library without the pool."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        return self.sandbox.run_batch(list(programs))


class Failing:
    """Stands in for a pool whose workers all died."""

    async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
        return [failed_report(p, "", infra_error="gone") for p in programs]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as ready:
        yield ready


def config(**settings: object) -> Config:
    base = {"num_turns": 2, "num_generations": 3, "handoff": "best", "max_new_tokens": 16} | settings
    return from_tree({"model": {"name": "m"}, "dataset": {"name": "humaneval"}, "magrpo": base}, "magrpo")


def play(run: Config, executor: object, aux: Scripted, main: Scripted, *, evaluation: bool = False) -> Episode:
    environment = CodeGeneration(2)
    transition = ExternalTransition(run.external, environment)
    player = EpisodePlayer(run, environment, transition, [aux, main], executor)  # type: ignore[list-item, arg-type]
    group = run.algorithm.num_generations
    (episode,) = asyncio.run(player.play_all([TASK], group, "train", 0, evaluation=evaluation))
    return episode


def test_two_turns_by_the_best_joint_action(sandbox: Sandbox) -> None:
    aux, main = Scripted(AUX, AUX, AUX), Scripted(BROKEN, WRONG, GOOD)
    episode = play(config(), Direct(sandbox), aux, main)
    first, second = episode.nodes
    assert [a.reward for a in first.joint_actions] == pytest.approx([0.4, 3.5, 4.0])
    assert first.expanded == 2
    assert second.expanded is None
    assert GOOD.strip() in main.asked[1][0]
    assert first.prompts != second.prompts
    assert episode.stopped == ""


def test_feedback_holds_nothing_of_hidden_tests(sandbox: Sandbox) -> None:
    """A program that remembers what it was asked can only tell of the tests in the slice."""

    visible: list[int | None] = []

    class Watched(Direct):
        async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
            visible.extend(program.visible for program in programs[:1])
            return await super().execute(programs)

    tell_tale = "def add_twice(a, b, seen=[]):\n    seen.append((a, b))\n    raise ValueError(f'seen {seen}')\n"
    run = config(num_generations=2)
    run.external.sandbox_slice = -1
    main = Scripted(tell_tale, tell_tale)
    play(run, Watched(sandbox), Scripted(AUX, AUX), main)
    prompt = main.asked[1][0]
    assert "seen [(0, 0)]" in prompt
    assert "(1, 2)" not in prompt
    assert visible == [-1, None], "nothing is told after the last turn"


def test_an_expert_that_cannot_be_heard_is_a_metric(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    run = config()
    run.external.mode, run.external.expert_model = "expert_edits", "some-model"
    run.external.expert_base_url, run.external.expert_retries = "http://127.0.0.1:9/v1", 0
    episode = play(run, Direct(sandbox), *pair())
    assert len(episode.nodes) == 2
    assert episode_metrics([episode], discount=1.0, num_turns=2)["expert/failures"] == 1.0


def test_random_handoff_follows_its_stream(sandbox: Sandbox) -> None:
    picks = {play(seeded(seed), Direct(sandbox), *pair()).nodes[0].expanded for seed in range(8)}
    assert len(picks) > 1
    again = [play(seeded(5), Direct(sandbox), *pair()).nodes[0].expanded for _ in range(2)]
    assert again[0] == again[1]


def pair() -> tuple[Scripted, Scripted]:
    return Scripted(AUX, AUX, AUX), Scripted(BROKEN, WRONG, GOOD)


def seeded(seed: int) -> Config:
    run = config(handoff="random")
    run.seed = seed
    return run


def test_every_agent_and_turn_samples_from_its_own_stream(sandbox: Sandbox) -> None:
    aux, main = pair()
    play(config(), Direct(sandbox), aux, main)
    seeds = [sampling.seed for _, sampling in [*aux.asked, *main.asked]]
    assert len(set(seeds)) == 4


def test_rewards_are_scaled_and_shifted(sandbox: Sandbox) -> None:
    run = config(num_turns=1)
    run.reward_processor.scale_factor, run.reward_processor.shift = 2.0, -4.0
    (node,) = play(run, Direct(sandbox), *pair()).nodes
    assert node.joint_actions[2].reward == pytest.approx(4.0)
    assert node.joint_actions[2].assessment.reward == pytest.approx(4.0)
    assert node.joint_actions[0].reward == pytest.approx(2 * 0.4 - 4)


def test_an_episode_ends_early_above_the_threshold(sandbox: Sandbox) -> None:
    episode = play(config(early_termination_threshold=2.0), Direct(sandbox), *pair())
    assert (len(episode.nodes), episode.stopped) == (1, "early_termination")
    assert len(play(config(early_termination_threshold=3.0), Direct(sandbox), *pair()).nodes) == 2


def test_an_evaluation_plays_all_turns(sandbox: Sandbox) -> None:
    episode = play(config(early_termination_threshold=2.0), Direct(sandbox), *pair(), evaluation=True)
    assert (len(episode.nodes), episode.stopped) == (2, "")


@pytest.mark.parametrize(
    ("setting", "evaluation", "probed"),
    [("off", True, False), ("eval", False, False), ("eval", True, True), ("always", False, True)],
)
def test_helpers_are_probed_when_asked(sandbox: Sandbox, setting: str, evaluation: bool, probed: bool) -> None:
    run = config(num_turns=1)
    run.output.probe_helpers = setting  # type: ignore[assignment]
    row = episode_metrics([play(run, Direct(sandbox), *pair(), evaluation=evaluation)], 1.0, 1)
    assert row.get("turn_1/helper_needed") == (pytest.approx(2 / 3) if probed else None)
    assert row.get("turn_1/helper_suffices") == (0.0 if probed else None)


def test_later_turns_count_an_ended_episode_with_its_last_node(sandbox: Sandbox) -> None:
    run = config(early_termination_threshold=2.0)
    ended = play(run, Direct(sandbox), *pair())
    going_on = play(run, Direct(sandbox), Scripted("", "", ""), Scripted(BROKEN, BROKEN, BROKEN))
    stuck = play(run, Direct(sandbox), Scripted("", "", ""), Scripted(*[BROKEN] * 3, too_long_from_turn=1))
    mean = (0.4 + 3.5 + 4.0) / 3
    row = episode_metrics([ended, going_on, stuck], 0.5, num_turns=3)
    assert row["turn_1/reward_mean"] == pytest.approx(mean / 3)
    assert row["turn_2/reward_mean"] == pytest.approx(mean / 2)  # one prompt no longer fitted
    assert row["turn_2/all_passed"] == pytest.approx(1 / 6)
    assert row["turn_3/reward_mean"] == pytest.approx(mean)
    assert [row[f"turn_{turn}/ended_early"] for turn in (2, 3)] == [0.5, 1.0]
    assert row["turn_1/expected_return"] == pytest.approx(mean / 3)  # nothing came after it
    assert joint_samples([ended, going_on, stuck]) == 3 + 6 + 3
    assert "turn_1/ended_early" not in row


def test_a_prompt_that_does_not_fit_ends_its_episode_only(sandbox: Sandbox) -> None:
    main = Scripted(BROKEN, WRONG, GOOD, too_long_from_turn=1)
    episode = play(config(), Direct(sandbox), Scripted(AUX, AUX, AUX), main)
    assert (len(episode.nodes), episode.stopped) == (1, "prompt_too_long")


def test_a_failed_sandbox_is_never_the_programs_fault() -> None:
    episode = play(config(), Failing(), *pair())
    assert (episode.nodes, episode.stopped, episode.detail) == ([], "infra_error", "gone")
    assert groups_of_agent([episode], 0) == []
    assert rollout_metrics([episode], 1.0)["sandbox/infra_errors"] == 1


def test_learners_get_a_group_for_every_node(sandbox: Sandbox) -> None:
    episode = play(config(), Direct(sandbox), *pair())
    groups = groups_of_agent([episode], 1)
    assert [g.turn for g in groups] == [0, 1]
    assert groups[0].returns == tuple(a.reward for a in episode.nodes[0].joint_actions)
    assert [c.text for c in groups[0].completions] == [BROKEN, WRONG, GOOD]


def test_metrics_are_means_over_turns(sandbox: Sandbox) -> None:
    episode = play(config(), Direct(sandbox), *pair())
    row = episode_metrics([episode], discount=0.5, num_turns=2)
    mean = (0.4 + 3.5 + 4.0) / 3
    assert row["turn_1/reward_mean"] == pytest.approx(mean)
    assert row["turn_1/expected_return"] == pytest.approx(1.5 * mean)
    assert row["turn_2/expected_return"] == pytest.approx(mean)
    assert row["turn_1/all_passed"] == pytest.approx(1 / 3)
    assert row["turn_1/syntax_ok"] == pytest.approx(2 / 3)
    assert row["turn_2/ended_early"] == 0.0
    assert joint_samples([episode]) == 6
    assert rollout_metrics([episode], 2.0)["rollout/tokens_per_s"] == 12.0


def test_records_are_plain_readable_and_can_be_taken_back(sandbox: Sandbox, tmp_path: Path) -> None:
    episode = play(config(), Direct(sandbox), *pair())
    record = Record(tmp_path)
    for step in (1, 2, 3):
        record.metrics(
            {"step": step, "env_steps": step * 6, "agent_0/loss": float("nan")} | episode_metrics([episode], 1.0, 2)
        )
        record.episodes(step, "train", [episode])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "env')  # what a crash leaves
    record.forget_after(2)
    rows = read_metrics(tmp_path)
    assert [r["step"] for r in rows] == [1, 2]
    assert rows[0]["agent_0/loss"] is None
    traced = json.loads((tmp_path / "episodes.jsonl").read_text().splitlines()[-1])
    assert traced["turns"][0]["joint_actions"][1]["report"]["tests"][0]["status"] == "fail"
    text = readable(episode)
    assert "reward 4.00" in text
    assert "    | def aux(b):" in text
    plot_returns(rows, tmp_path / "returns.png", "title")
    assert (tmp_path / "returns.png").stat().st_size > 10_000


def test_a_folder_without_metrics_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no run folder"):
        read_metrics(tmp_path)
