"""The sentences about cooperation that the report and the end of a run show."""

from __future__ import annotations

from typing import Any

from marl_ray.cooperation.run_sentences import cooperation_summary


def step(number: int, **values: Any) -> dict[str, Any]:
    names = {name.replace("__", "/"): value for name, value in values.items()}
    return {"step": number, "rollout/episodes": 4, **names}


def test_a_run_without_measures_has_no_sentence() -> None:
    assert list(cooperation_summary([])) == []
    assert list(cooperation_summary([step(1, turn_1__reward_mean=1.0)])) == []


def test_the_agent_that_contributes_least_is_named_with_an_interval_over_steps() -> None:
    names = ("cooperation__agent_0_contribution", "cooperation__agent_1_contribution")
    rows = [step(n, **dict(zip(names, (1.0, 0.3 + 0.1 * (n % 2)), strict=True))) for n in range(2)]
    (line,) = cooperation_summary(rows)
    assert line == "Agent 1 contributes least: 0.350 ± 0.098 of the reward of turn 1 (last 2 steps)."
    rows = [step(n, **dict(zip(names, (1.0, 0.1 - 0.2 * (n % 2)), strict=True))) for n in range(4)]
    (line,) = cooperation_summary(rows)
    assert "0.000 ± 0.113 of the reward of turn 1, which may be nothing: a free rider (last 4 steps)." in line
    (line,) = cooperation_summary(rows[:1])
    assert line.startswith("Agent 1 contributes least: 0.100 of the reward"), "no interval from one step"


def test_only_the_last_steps_count() -> None:
    rows = [step(n, cooperation__over_one_agent_twice=float(n >= 10), cooperation__agreement=0.5) for n in range(20)]
    assert list(cooperation_summary(rows)) == [
        "Partners earn +1.000 over one agent asked twice (last 10 steps).",
        "50% of joint answers keep their reward with other answers of the partners (last 10 steps).",
    ]


def test_tokens_and_reward_per_token() -> None:
    measured = {"tokens__all": 28.0, "tokens__critical_path": 14.0}
    measured |= {"reward_per_token__all": 0.025, "reward_per_token__critical_path": 0.05}
    assert list(cooperation_summary([step(1, **measured)])) == [
        "Tokens per episode: 28.0, on the critical path 14.0 (last 1 step).",
        "Reward per token: 0.025, per token on the critical path 0.05 (last 1 step).",
    ]


def test_a_program_has_no_critical_path() -> None:
    measured = {"tokens__all": 28.0, "reward_per_token__all": 0.025}
    assert list(cooperation_summary([step(1, **measured)])) == [
        "Tokens per episode: 28.0 (last 1 step).",
        "Reward per token: 0.025 (last 1 step).",
    ]


def test_revisions_of_the_last_evaluation() -> None:
    training = step(5, turn_2__keep_rate=0.9, turn_2__fix_rate=0.1)
    assert list(cooperation_summary([training])) == [
        "Of answers right in turn 1, 90% stay right in turn 2; of the wrong ones 10% are mended (step 5)."
    ]
    held_out = {"step": 4, "eval/turn_2/fix_rate": 0.25, "eval/turn_2/first_pass@2": 0.3}
    assert list(cooperation_summary([held_out, training])) == [
        "Of answers wrong in turn 1, 25% are mended (step 4, held-out).",
        "With two first answers instead, at least one passes in 30% of tasks (step 4, held-out).",
    ]
