"""docs/reference/metrics.md documents every metric, and no metric that does not exist."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from marl_ray.cooperation.credit_replay import CreditDiagnostics
from marl_ray.cooperation.recombined_answers import Answers, cooperation
from marl_ray.cooperation.token_counts import token_counts
from marl_ray.core.batch import Batch, ClippingStats, CriticStats, Group, ImportanceRatioStats, MiniBatch, UpdateStats
from marl_ray.core.concurrency import now
from marl_ray.core.episode import GreedySample, JointAction, Outcome, Task, Texts, sibling_calls
from marl_ray.core.state import TrainerState
from marl_ray.environments.code_generation import CodeGeneration
from marl_ray.sandbox import ExecutionReport, TestResult
from marl_ray.telemetry.metrics import evaluation_row, rollout_row, step_row
from marl_ray.telemetry.timing import Timeline
from marl_ray.weights.receiver import WeightSyncResult
from tests.factories import ROOT, make_completion, make_episode, make_node, quickstart_config
from tests.telemetry.metrics_page import documented_metrics, undocumented

CONFIG = quickstart_config()
SETTINGS = (CONFIG.training, CONFIG.external)
STATE = TrainerState(1, 4, 1)
TEXTS, REWARDS = (("a", "b"), ("c", "d")), (1.0, 2.0)


async def zeros(joint: Sequence[Texts]) -> list[float]:
    return [0.0] * len(joint)


def quickstart_outcome() -> Outcome:
    """Return the outcome of a joint action of the quickstart's environment, with every metric and level."""
    environment = CodeGeneration(2)
    task = Task("toy/1", "Write double.", {"entry_point": "double", "tests": ("assert double(1) == 2",)})
    attempt = environment.attempt(
        task, ["def aux(x):\n    return x", "def double(x):\n    return aux(x) + x"], last=True
    )
    report = ExecutionReport((TestResult("pass", None, None, None, ""),), None, "", 0.0, 0.0, "none", True)
    return environment.outcome(attempt, report)


def test_every_metric_of_a_row_is_documented() -> None:
    second, first = make_node(1, [2.0, 2.0]), make_node(0, [1.0, 1.0])
    for node in (first, second):
        node.joint_actions = [
            replace(action, outcome=replace(quickstart_outcome(), rewards=(1.0, 2.0)), rewards=(1.0, 2.0))
            for action in node.joint_actions
        ]
        node.greedy = GreedySample((make_completion("a"), make_completion("b")), 1.0, (1.0, 1.0))
        node.counterfactuals = {0: [0.0, 0.0]}
    first.children, first.transitions = {0: second}, {0: {"expert/failures": 0.0}}
    episode = make_episode(first)
    stats = UpdateStats(
        loss=0.5,
        grad_norm=1.0,
        learning_rate=1e-5,
        logprob_gap=0.0,
        importance_ratios=ImportanceRatioStats(1.0, 1.0, 0.0, 1.0),
        optimizer_steps=1,
        skipped_steps=0,
        entropy=1.0,
        clipping=ClippingStats(0.0, 1.0, 1.0, 0.0),
        reference_kl=0.0,
        critic=CriticStats(0.0, 0.0, 1.0),
    )
    group = Group(0, sibling_calls((1,), [make_completion("a")]), (0.0,), (1.0,))
    batch = Batch(0, (MiniBatch((group,), 1),))

    async def times() -> dict[str, float | int | str]:
        timeline = Timeline(CONFIG.policies)
        for step in (0, 1):
            timeline.start_rollout(step)
            timeline.finish_rollout(step)
            await asyncio.sleep(0.001)
            for policy in CONFIG.policies:
                timeline.start_learner_step(policy)
                timeline.finish_learner_step(step, policy, now(), [])
            row = timeline.row(step)
        return row

    measures = token_counts([episode], [[0, 1]], 1.0) | asyncio.run(
        cooperation(Answers(2, TEXTS, REWARDS, True), zeros)
    )
    credit = CreditDiagnostics()
    credit.add_advantages([1.0, 2.0, 3.0])
    replayed = [[JointAction((), Outcome(0.0), 0.0, (float(s * g),)) for g in range(3)] for s in range(3)]
    credit.add_credit(0, [1.0, 2.0, 3.0], replayed)
    replayed[1][1] = replace(replayed[1][1], reward=1.0)
    credit.add_replays(replayed)
    diagnostics = {f"agent_0/turn_1/{name}": value for name, value in credit.metrics().items()}
    row = step_row(
        STATE,
        rollout_row(*SETTINGS, [episode], [batch, batch], seconds=1.0, executions=2) | measures | diagnostics,
        dict.fromkeys(CONFIG.policies, stats),
        dict.fromkeys(CONFIG.policies, WeightSyncResult(1, 0, {}, 8, 0.5)),
        asyncio.run(times()),
    )
    assert undocumented(row) == []
    assert undocumented(evaluation_row(*SETTINGS, STATE, [episode], {"eval": 1.0}, measures)) == []
    assert {"agent_0/turn_1/credit_fidelity", "cooperation/over_one_agent_twice", "tokens/all"} <= set(row)
    assert {"turn_2/all_passed", "agent_1/explained_variance", "time/held_up_by", "agent_0/staleness_max"} <= set(row)


def test_every_documented_metric_is_in_the_code() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "marl_ray").rglob("*.py"))
    names = [name.rpartition("/")[2] for name in documented_metrics()]
    assert len(names) > 70
    assert [name for name in names if name != "..." and name not in code] == []


def test_a_metric_that_is_not_on_the_page_is_found() -> None:
    assert undocumented(["turn_1/reward_mean", "turn_1/reward_meen", "eval/turn_2/level/x"]) == ["turn_1/reward_meen"]
