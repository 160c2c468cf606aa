"""What of a run deserves a second look, read from its rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from marl_ray.core.text import pluralize

LATELY = 10
"""The last steps, which say how things stand."""
MANY_CUT = 0.5
LARGE_GAP = 0.1
"""Nats a token, as max_logprob_gap has it."""
SMALL_SAMPLE = 0.9
"""Of effective_sample_size."""
MANY_ALIKE = 0.5


def alerts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line each, the worst first; nothing where all is well."""
    steps = [row for row in rows if "rollout/episodes" in row]
    return [*_lost(rows), *(_learning(steps) if steps else ()), *(_answers(steps) if steps else ())]


def _lost(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is missing from the numbers."""
    found = []
    broken = _sum(rows, "sandbox/infra_errors") + _sum(rows, "eval/infra_errors")
    if broken:
        found.append(f"{pluralize(broken, 'fault')} of the sandbox, not of a program, ended episodes early")
    long = _sum(rows, "rollout/too_long_prompts") + _sum(rows, "eval/too_long_prompts")
    if long:
        found.append(f"{pluralize(long, 'prompt')} did not fit into model.max_length: what would follow is missing")
    return found


def _learning(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """What keeps policies from learning, each under the name that its metrics have."""
    found = []
    policies = sorted({key.partition("/")[0] for row in steps for key in row if key.endswith("/optimizer_steps")})
    for policy in policies:
        name = policy.replace("_", " ")
        if not _sum(steps, f"{policy}/optimizer_steps"):
            found.append(f"{name} has not learned: no step had a group whose rewards differed")
        skipped = _sum(steps, f"{policy}/skipped_steps")
        if skipped:
            found.append(f"{name}: {pluralize(skipped, 'update')} skipped for a loss or gradient that is not finite")
        if (gap := _lately(steps, f"{policy}/logprob_gap")) is not None and gap > LARGE_GAP:
            found.append(f"{name}: learner and sampler differ by {gap:.2g} nats a token lately")
        if (size := _lately(steps, f"{policy}/effective_sample_size")) is not None and size < SMALL_SAMPLE:
            found.append(f"{name}: effective sample size {size:.2f} lately: the policy moves faster than its data")
    still = sum(_all_alike(row) for row in steps) / len(steps)
    if still > MANY_ALIKE:
        found.append(f"in {still:.0%} of the steps all rewards of every group were alike: nothing to learn from")
    return found


def _answers(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is odd about the answers and their verdicts."""
    found = []
    if (cut := _lately(steps, "rollout/truncated_rate")) is not None and cut > MANY_CUT:
        found.append(f"{cut:.0%} of the answers are cut off at max_new_tokens lately")
    if failed := _lately(steps, "expert/failures"):
        found.append(f"{failed:.0%} of the requests to the expert brought no edit lately")
    actions = _sum(steps, "rollout/joint_samples")
    for key, what in (
        ("sandbox/timeouts", "had a test that ran out of time"),
        ("sandbox/untrusted", "have a verdict that the program could have forged (docs/explanation/sandbox.md)"),
    ):
        if count := _sum(steps, key):
            found.append(f"{count} of {pluralize(actions, 'joint action')} {what}")
    return found


def _all_alike(row: Mapping[str, Any]) -> bool:
    deviations = [value for key, value in row.items() if key.endswith("/group_std_mean")]
    return bool(deviations) and not any(deviations)


def _sum(rows: Sequence[Mapping[str, Any]], key: str) -> int:
    return sum(int(row.get(key) or 0) for row in rows)


def _lately(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The mean over the last steps that have it."""
    values = [row[key] for row in rows if row.get(key) is not None][-LATELY:]
    return statistics.fmean(values) if values else None
