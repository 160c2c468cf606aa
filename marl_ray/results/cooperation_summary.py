"""Sentences about cooperation in a run: least contribution, division of work, revisions and tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import fmean, stdev
from typing import Any

from marl_ray.core.text import pluralize
from marl_ray.results.diagnostics import RECENT_STEPS, Rows
from marl_ray.telemetry.cooperation import PREFIX, contribution_name, least_contribution

Z_95 = 1.96
"""Standard errors in half of a 95 % interval."""


def cooperation_summary(rows: Rows) -> Iterator[str]:
    """Yield sentences about the last training steps, and about the last evaluation of several turns. Nothing for a run
    without such measures."""
    recent = [row for row in rows if "rollout/episodes" in row][-RECENT_STEPS:]
    names = {name for row in recent for name in row if name.startswith((PREFIX, "tokens/", "reward_per_token/"))}
    values = {name: [row[name] for row in recent if row.get(name) is not None] for name in names}
    means = {name: fmean(numbers) for name, numbers in values.items() if numbers}
    if (agent := least_contribution(means)) is not None:
        numbers = values[contribution_name(agent)]
        half = Z_95 * stdev(numbers) / math.sqrt(len(numbers)) if len(numbers) > 1 else math.inf
        mean, interval = means[contribution_name(agent)], f" ± {half:.3f}" if math.isfinite(half) else ""
        free = ", which may be nothing: a free rider" if mean <= half else ""
        yield (
            f"Agent {agent} contributes least: {mean:.3f}{interval} of the reward of turn 1{free} "
            f"(last {pluralize(len(numbers), 'step')})."
        )
    if (gain := means.get(f"{PREFIX}over_one_agent_twice")) is not None:
        yield f"Partners earn {gain:+.3f} over one agent asked twice."
    if (agreement := means.get(f"{PREFIX}agreement")) is not None:
        yield f"{agreement:.0%} of joint answers keep their reward with other answers of the partners."
    if "reward_per_token/all" in means:
        tokens, path = means["tokens/all"], means["tokens/critical_path"]
        earned, on_path = means["reward_per_token/all"], means["reward_per_token/critical_path"]
        yield f"Tokens per episode: {tokens:.1f}, on the critical path {path:.1f}."
        yield f"Reward per token: {earned:.3g}, per token on the critical path {on_path:.3g}."
    yield from _revisions(rows)


def _revisions(rows: Rows) -> Iterator[str]:
    """Yield a sentence per turn from 2 about the last evaluation, without evaluations about the last step."""
    with_rates = [(row, prefix) for row in rows for prefix in ("eval/", "") if _turns(row, prefix)]
    held_out = [pair for pair in with_rates if pair[1]] or with_rates
    for row, prefix in held_out[-1:]:
        for turn in _turns(row, prefix):
            name = f"{prefix}turn_{turn}"
            parts = (
                (f"{name}/keep_rate", "keeps {:.0%} of passing answers"),
                (f"{name}/fix_rate", "mends {:.0%} of failing answers"),
            )
            done = " and ".join(text.format(row[key]) for key, text in parts if row.get(key) is not None)
            pairs = row.get(f"{name}/first_pass@2")
            beside = "" if pairs is None else f"; one of two first answers passes in {pairs:.0%} of tasks"
            yield f"Turn {turn} {done}{beside} (step {row['step']}{', held-out' if prefix else ''})."


def _turns(row: Mapping[str, Any], prefix: str) -> list[int]:
    """Return the turns of a row that have a rate of revisions."""
    found = {
        int(name.removeprefix(f"{prefix}turn_").partition("/")[0])
        for name in row
        if name.startswith(f"{prefix}turn_") and name.endswith(("/keep_rate", "/fix_rate")) and row[name] is not None
    }
    return sorted(found)
