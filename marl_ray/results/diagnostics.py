"""Problems, wait times and memory of a run, read from its metric rows."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_ray.config.schema import Config
from marl_ray.cooperation.run_sentences import RECENT_STEPS
from marl_ray.core.text import pluralize

Rows = Sequence[Mapping[str, Any]]

MAX_TRUNCATED_RATE = 0.5
MAX_LOGPROB_GAP = 0.1
"""Nats per token, the unit of `max_logprob_gap`."""
MIN_EFFECTIVE_SAMPLE_SIZE = 0.9
MAX_SHARE_WITHOUT_SIGNAL = 0.5
"""Share of steps in which all rewards of every group are equal."""
MIN_SHARE_REPORTED = 0.1
"""Idle time below this share of the run is not reported."""
LEARNER_TIMES = ("learn", "wait", "sync")
VERDICTS = {
    "sandbox/timeouts": ("had a test that timed out", "Raise sandbox.test_timeout_s if right programs are that slow."),
    "sandbox/untrusted": (
        "have a verdict that the program could have forged (docs/explanation/sandbox.md)",
        "Read such episodes before you trust the reward.",
    ),
}
"""Words and remedy by the count of joint actions."""
MEMORY_PHASES = {"play": "during rollouts", "asleep": "while engines sleep", "learn": "during learner steps"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a run in one line, and a setting or a step that may remedy the problem."""

    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text}. {self.remedy}"


def find_problems(rows: Rows) -> list[Problem]:
    """Return the problems of a run, the most severe first."""
    steps = [row for row in rows if "rollout/episodes" in row]
    problems = _missing_data(rows)
    if steps:
        problems += _learning_problems(steps)
        problems += _completion_problems(steps)
    return problems


def describe_wait_times(config: Config, rows: Rows) -> list[str]:
    """Return the idle times of engines and learners, then settings that reduce them, that of the longer waits first.

    A run without training steps has no line.
    """
    # A run of version 0.2 has no `time/idle` in steps whose batch it read from its log, but counts their time later.
    steps = [row for row in rows if row.get("time/step")]
    seconds = _sum(steps, "time/step")
    if not seconds or not any("time/idle" in row for row in steps):
        return []
    idle = _sum(steps, "time/idle") / seconds
    waits = []
    shares = []
    for policy in config.policies:
        wait = _wait_share(steps, policy.key)
        waits.append(wait)
        shares.append(f"{policy} {wait:.0%}")
    learners = ", ".join(shares)
    lines = [f"Idle time: engines {idle:.0%} (waiting for learners); learners (waiting for rollouts): {learners}."]
    idle_by_agent: Counter[int] = Counter()
    for row in steps:
        if "time/held_up_by" in row:
            idle_by_agent[int(row["time/held_up_by"])] += row["time/idle"]
    rollouts_are_slower = min(waits) > max(MIN_SHARE_REPORTED, idle)
    if rollouts_are_slower:
        lines.append("Rollouts are the bottleneck: raise resources.generator.replicas if the cluster has room.")
    if idle > MIN_SHARE_REPORTED and idle_by_agent:
        agent, longest = idle_by_agent.most_common(1)[0]
        slowest = str(config.policy_of(agent))
        slowest = f"Second, {slowest}" if rollouts_are_slower else slowest.capitalize()
        share = longest / (idle * seconds)
        lines.append(
            f"{slowest} was the last to update its weights in {share:.0%} of the engines' idle time: "
            f"give its learner more resources (agents.{agent}.resources.learner), or let rollouts run ahead "
            f"({config.algorithm}.max_staleness {config.training.max_staleness + 1})."
        )
    return lines


def describe_device_memory(rows: Rows) -> list[str]:
    """Return one line per device that engines and learners share: its peak memory in each phase."""
    peaks: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        for key, value in row.items():
            section, _, rest = key.partition("/")
            device, _, phase = rest.partition("/")
            if section == "memory" and phase in MEMORY_PHASES:
                peaks[device][phase] = max(value, peaks[device].get(phase, 0.0))
    lines = []
    for device, peak in sorted(peaks.items()):
        parts = []
        for phase, words in MEMORY_PHASES.items():
            if phase in peak:
                parts.append(f"{peak[phase]:,.0f} MB {words}")
        lines.append(f"Peak memory of {device.replace('_', ' ')}: {', '.join(parts)}.")
    return lines


def _missing_data(rows: Rows) -> list[Problem]:
    problems = []
    errors = _total(rows, "sandbox/infra_errors") + _total(rows, "eval/infra_errors")
    if errors:
        text = f"{pluralize(errors, 'sandbox error')} (not caused by a program) ended episodes early"
        problems.append(Problem(text, "Look for the cause in run.log: memory and processes are the usual ones."))
    too_long = _total(rows, "rollout/too_long_prompts") + _total(rows, "eval/too_long_prompts")
    if too_long:
        text = f"{pluralize(too_long, 'prompt')} exceeded model.max_length: the turns after them are missing"
        problems.append(Problem(text, "Raise model.max_length, or lower max_new_tokens."))
    return problems


def _learning_problems(steps: Rows) -> list[Problem]:
    problems = []
    policies = set()
    for row in steps:
        for key in row:
            policy, _, metric = key.partition("/")
            if metric == "optimizer_steps":
                policies.add(policy)
    for policy in sorted(policies):
        name = policy.replace("_", " ")
        if not _total(steps, f"{policy}/optimizer_steps"):
            text = f"{name} has not learned: no step had a group with different rewards"
            problems.append(Problem(text, "Raise num_generations or model.temperature, or choose easier tasks."))
        skipped = _total(steps, f"{policy}/skipped_steps")
        if skipped:
            updates = pluralize(skipped, "update")
            text = f"{name}: {updates} skipped because the loss or gradient was not finite"
            problems.append(Problem(text, "Lower learning_rate."))
        gap = _recent_mean(steps, f"{policy}/logprob_gap")
        if gap is not None and gap > MAX_LOGPROB_GAP:
            text = f"{name}: learner and sampler recently differed by {gap:.2g} nats per token"
            problems.append(Problem(text, "Set importance: truncate, or lower max_staleness."))
        size = _recent_mean(steps, f"{policy}/effective_sample_size")
        if size is not None and size < MIN_EFFECTIVE_SAMPLE_SIZE:
            text = f"the recent effective sample size is {size:.2f}: the policy changes faster than its samples"
            problems.append(Problem(f"{name}: {text}", "Lower learning_rate or max_staleness."))
    without_signal = sum(map(_all_rewards_equal, steps)) / len(steps)
    if without_signal > MAX_SHARE_WITHOUT_SIGNAL:
        text = f"in {without_signal:.0%} of the steps all rewards of every group were equal: no gradient"
        problems.append(Problem(text, "Choose tasks of another difficulty, or raise num_generations."))
    return problems


def _completion_problems(steps: Rows) -> list[Problem]:
    problems = []
    truncated = _recent_mean(steps, "rollout/truncated_rate")
    if truncated is not None and truncated > MAX_TRUNCATED_RATE:
        text = f"{truncated:.0%} of recent completions were cut off at max_new_tokens"
        problems.append(Problem(text, "Raise max_new_tokens, or set overlong."))
    failed = _recent_mean(steps, "expert/failures")
    if failed:
        text = f"{failed:.0%} of recent requests to the expert returned no edit"
        problems.append(Problem(text, "Set another external.expert_model, or raise external.expert_retries."))
    actions = _total(steps, "rollout/joint_samples")
    for key, (verdict, remedy) in VERDICTS.items():
        count = _total(steps, key)
        if count:
            problems.append(Problem(f"{count} of {pluralize(actions, 'joint action')} {verdict}", remedy))
    return problems


def _all_rewards_equal(row: Mapping[str, Any]) -> bool:
    deviations = [value for key, value in row.items() if key.endswith("/group_std_mean")]
    return bool(deviations) and not any(deviations)


def _wait_share(steps: Rows, policy: str) -> float:
    """Return the share of waits in a learner's own time, which may begin before the previous step is recorded."""
    parts = {}
    for part in LEARNER_TIMES:
        parts[part] = _sum(steps, f"time/{policy}/{part}")
    seconds = sum(parts.values())
    return parts["wait"] / seconds if seconds else 0.0


def _sum(rows: Rows, key: str) -> float:
    return sum(row.get(key, 0.0) for row in rows)


def _total(rows: Rows, key: str) -> int:
    return sum(int(row.get(key) or 0) for row in rows)


def _recent_mean(rows: Rows, key: str) -> float | None:
    """Return the mean over the last rows that have the metric."""
    values = [row[key] for row in rows if row.get(key) is not None]
    if not values:
        return None
    return statistics.fmean(values[-RECENT_STEPS:])
