"""Episodes with turns, handoff and early ends, and the groups and metrics that result.

Generators are scripted (tests/actors uses real engines); environment, transition and sandbox are real.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from marl_ray.config import Config
from marl_ray.core.episode import Completion, Episode, Generation, Node, SamplingSpec
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.results.run_summary import episode_text
from marl_ray.rollout.turn_player import TurnPlayer
from marl_ray.sandbox import ExecutionReport, Program, Sandbox
from marl_ray.telemetry.episode_records import episode_record
from marl_ray.telemetry.metrics import episode_metrics, joint_samples, rollout_metrics
from tests.credit.whole_batches import build_agent_batch
from tests.rollout.helpers import AUX, BROKEN, GOOD, TASK, WRONG, DirectExecutor, FailingExecutor, rollout_config


class Scripted:
    """A generator of scripted texts that records its requests."""

    def __init__(self, *texts: str, too_long_from_turn: int = 99) -> None:
        self.texts = texts
        self.requests: list[tuple[str, SamplingSpec]] = []
        self.too_long_from_turn = too_long_from_turn

    async def generate(self, prompt: str, sampling: SamplingSpec, priority: int = 0) -> Generation:
        self.requests.append((prompt, sampling))
        if len(self.requests) > self.too_long_from_turn:
            return Generation((1,), ())
        group = tuple(Completion((7, 8), text, (-0.5, -0.5), "stop", ((3, 2),)) for text in self.texts)
        return Generation((1, 2, 3), group[: sampling.num_generations])


def run_episode(run: Config, executor: object, aux: Scripted, main: Scripted, *, evaluation: bool = False) -> Episode:
    environment = CodeGeneration.from_config(run)
    runner = TurnPlayer(run, environment, [aux, main], executor)  # type: ignore[arg-type]
    group = run.training.num_generations
    return asyncio.run(runner.run_episode(TASK, group, "train", 0, evaluation=evaluation))


def chain(episode: Episode) -> list[Node]:
    return [node for _, node in episode.nodes()]


def reasons(episode: Episode) -> list[str]:
    return [stop.reason for stop in episode.stops]


def test_two_turns_by_the_best_joint_action(sandbox: Sandbox) -> None:
    aux, main = Scripted(AUX, AUX, AUX), Scripted(BROKEN, WRONG, GOOD)
    episode = run_episode(rollout_config(), DirectExecutor(sandbox), aux, main)
    first, second = chain(episode)
    assert [a.reward for a in first.joint_actions] == pytest.approx([0.4, 3.5, 4.0])
    assert first.children == {2: second}
    assert second.children == {}
    assert GOOD.strip() in main.requests[1][0]
    assert first.prompts != second.prompts
    assert episode.stops == []


def test_evaluations_use_eval_temperature() -> None:
    def temperatures(evaluation: bool, **settings: object) -> set[float]:
        aux, main = Scripted(AUX), Scripted(GOOD)
        run = rollout_config({"agents": [{"name": "m", "temperature": 0.6}, "m"]}, num_generations=2, **settings)
        run_episode(run, FailingExecutor(), aux, main, evaluation=evaluation)
        return {sampling.temperature for _, sampling in aux.requests + main.requests}

    assert temperatures(evaluation=True) == {0.6, 0.8}
    assert temperatures(evaluation=True, eval_temperature=0) == {0.0}
    assert temperatures(evaluation=False, eval_temperature=0) == {0.6, 0.8}


def test_feedback_contains_nothing_of_hidden_tests(sandbox: Sandbox) -> None:
    # A program that records its arguments can only reveal the tests of the slice.

    visible: list[int | None] = []

    class Watched(DirectExecutor):
        async def execute(self, programs: Sequence[Program]) -> list[ExecutionReport]:
            visible.extend(program.visible for program in programs[:1])
            return await super().execute(programs)

    tell_tale = "def add_twice(a, b, seen=[]):\n    seen.append((a, b))\n    raise ValueError(f'seen {seen}')\n"
    run = rollout_config({"external": {"sandbox_slice": -1}}, num_generations=2)
    main = Scripted(tell_tale, tell_tale)
    run_episode(run, Watched(sandbox), Scripted(AUX, AUX), main)
    prompt = main.requests[1][0]
    assert "seen [(0, 0)]" in prompt
    assert "(1, 2)" not in prompt
    assert visible == [-1, None], "nothing is told after the last turn"


def test_an_unreachable_expert_is_a_metric(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    expert = {"expert_model": "some-model", "expert_base_url": "http://127.0.0.1:9/v1", "expert_retries": 0}
    episode = run_episode(
        rollout_config({"external": {"mode": "expert_edits"} | expert}), DirectExecutor(sandbox), *pair()
    )
    assert len(chain(episode)) == 2
    assert episode_metrics([episode], discount=1.0, num_turns=2)["expert/failures"] == 1.0


def test_random_handoff_uses_its_stream(sandbox: Sandbox) -> None:
    def pick(seed: int) -> list[int]:
        return list(
            chain(run_episode(rollout_config(seed=seed, handoff="random"), DirectExecutor(sandbox), *pair()))[
                0
            ].children
        )

    assert len({tuple(pick(seed)) for seed in range(8)}) > 1
    assert pick(5) == pick(5)


def pair() -> tuple[Scripted, Scripted]:
    return Scripted(AUX, AUX, AUX), Scripted(BROKEN, WRONG, GOOD)


def test_every_agent_and_turn_samples_from_its_own_stream(sandbox: Sandbox) -> None:
    aux, main = pair()
    run_episode(rollout_config(), DirectExecutor(sandbox), aux, main)
    seeds = [sampling.seed for _, sampling in [*aux.requests, *main.requests]]
    assert len(set(seeds)) == 4


def test_rewards_are_scaled_and_shifted(sandbox: Sandbox) -> None:
    run = rollout_config({"reward_processor": {"scale_factor": 2.0, "shift": -4.0}}, num_turns=1)
    (node,) = chain(run_episode(run, DirectExecutor(sandbox), *pair()))
    assert node.joint_actions[2].reward == pytest.approx(4.0)
    assert node.joint_actions[2].rewards == (node.joint_actions[2].reward,) * 2
    assert node.joint_actions[2].outcome.reward == pytest.approx(4.0)
    assert node.joint_actions[0].reward == pytest.approx(2 * 0.4 - 4)


def test_an_episode_ends_early_above_the_threshold(sandbox: Sandbox) -> None:
    episode = run_episode(rollout_config(early_termination_threshold=2.0), DirectExecutor(sandbox), *pair())
    assert (len(chain(episode)), reasons(episode)) == (1, ["early_termination"])
    assert (
        len(chain(run_episode(rollout_config(early_termination_threshold=3.0), DirectExecutor(sandbox), *pair()))) == 2
    )


def test_an_evaluation_runs_all_turns(sandbox: Sandbox) -> None:
    episode = run_episode(
        rollout_config(early_termination_threshold=2.0), DirectExecutor(sandbox), *pair(), evaluation=True
    )
    assert (len(chain(episode)), reasons(episode)) == (2, [])


@pytest.mark.parametrize(
    ("setting", "evaluation", "probed"),
    [("off", True, False), ("eval", False, False), ("eval", True, True), ("always", False, True)],
)
def test_helpers_are_probed_if_configured(sandbox: Sandbox, setting: str, evaluation: bool, probed: bool) -> None:
    run = rollout_config({"output": {"probe_helpers": setting}}, num_turns=1)
    row = episode_metrics([run_episode(run, DirectExecutor(sandbox), *pair(), evaluation=evaluation)], 1.0, 1)
    # WRONG passes only one test, with any helper.
    assert row.get("turn_1/helper_needed") == (pytest.approx(1 / 3) if probed else None)
    assert row.get("turn_1/helper_suffices") == (pytest.approx(1 / 3) if probed else None)


def test_later_turns_count_an_ended_episode_with_its_last_node(sandbox: Sandbox) -> None:
    run = rollout_config(early_termination_threshold=2.0)
    ended = run_episode(run, DirectExecutor(sandbox), *pair())
    going_on = run_episode(run, DirectExecutor(sandbox), Scripted("", "", ""), Scripted(BROKEN, BROKEN, BROKEN))
    stuck = run_episode(
        run, DirectExecutor(sandbox), Scripted("", "", ""), Scripted(*[BROKEN] * 3, too_long_from_turn=1)
    )
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
    episode = run_episode(rollout_config(), DirectExecutor(sandbox), Scripted(AUX, AUX, AUX), main)
    assert (len(chain(episode)), reasons(episode)) == (1, ["prompt_too_long"])


def test_a_failed_sandbox_is_never_the_programs_fault() -> None:
    episode = run_episode(rollout_config(), FailingExecutor(), *pair())
    assert (episode.root, reasons(episode), episode.stops[0].detail) == (None, ["infra_error"], "gone")
    assert build_agent_batch([episode], 0, 0, rollout_config()).mini_batches == ()
    assert rollout_metrics([episode], 1.0)["sandbox/infra_errors"] == 1


def test_learners_get_one_group_per_node(sandbox: Sandbox) -> None:
    episode = run_episode(rollout_config(), DirectExecutor(sandbox), *pair())
    groups = build_agent_batch([episode], 1, 0, rollout_config()).mini_batches[0].groups
    assert [g.turn for g in groups] == [0, 1]
    assert groups[0].returns == tuple(a.reward for a in chain(episode)[0].joint_actions)
    assert [c.text for c in groups[0].completions] == [BROKEN, WRONG, GOOD]


def test_metrics_are_means_over_turns(sandbox: Sandbox) -> None:
    episode = run_episode(rollout_config(), DirectExecutor(sandbox), *pair())
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


def test_records_are_plain_and_readable(sandbox: Sandbox) -> None:
    episode = run_episode(rollout_config(), DirectExecutor(sandbox), *pair())
    traced = json.loads(json.dumps(episode_record(episode)))
    assert traced["nodes"][0]["joint_actions"][1]["report"]["tests"][0]["status"] == "fail"
    assert (traced["nodes"][0]["expanded"], traced["nodes"][1]["path"]) == ([2], [2])
    text = episode_text(episode)
    assert "reward 4.00" in text
    assert "    | def aux(b):" in text
