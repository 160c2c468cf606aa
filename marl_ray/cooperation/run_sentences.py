"""Sentences about cooperation in a run: least contribution, division of work, revisions and tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from marl_ray.cooperation.recombined_answers import PREFIX, contribution_name, least_contribution
from marl_ray.core.statistics import half_width
from marl_ray.core.text import pluralize

RECENT_STEPS = 10
"""Number of last training steps over which values are averaged."""
REVISIONS = ("keep_rate", "fix_rate")
"""Metrics of a turn that speak of revisions."""
Row = Mapping[str, Any]


def cooperation_summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield sentences about the last training steps, and about the last evaluation of several turns. Nothing for a run
    without such measures."""
    steps = [row for row in rows if "rollout/episodes" in row]
    window = f"last {pluralize(len(steps[-RECENT_STEPS:]), 'step')}"
    values: dict[str, list[float]] = {}
    for row in steps[-RECENT_STEPS:]:
        for name, value in row.items():
            if name.startswith((PREFIX, "tokens/", "reward_per_token/")) and value is not None:
                values.setdefault(name, []).append(value)
    means = {name: fmean(numbers) for name, numbers in values.items()}
    agent = least_contribution(means)
    if agent is not None:
        yield _least_contribution(agent, values[contribution_name(agent)])
    gain = means.get(f"{PREFIX}over_one_agent_twice")
    if gain is not None:
        yield f"Partners earn {gain:+.3f} over one agent asked twice ({window})."
    agreement = means.get(f"{PREFIX}agreement")
    if agreement is not None:
        yield f"{agreement:.0%} of joint answers keep their reward with other answers of the partners ({window})."
    if "reward_per_token/all" in means:
        tokens = f"{means['tokens/all']:.1f}"
        earned = f"{means['reward_per_token/all']:.3g}"
        if "reward_per_token/critical_path" in means:  # not of programs
            tokens += f", on the critical path {means['tokens/critical_path']:.1f}"
            earned += f", per token on the critical path {means['reward_per_token/critical_path']:.3g}"
        yield f"Tokens per episode: {tokens} ({window})."
        yield f"Reward per token: {earned} ({window})."
    yield from _revisions(rows)


def _least_contribution(agent: int, numbers: Sequence[float]) -> str:
    """Return the sentence about the agent's contributions [steps], with the interval of their mean."""
    mean = fmean(numbers)
    interval = ""
    may_be_nothing = True
    if len(numbers) > 1:
        half = half_width(stdev(numbers), len(numbers))
        interval = f" ± {half:.3f}"
        may_be_nothing = mean <= half
    free_rider = ", which may be nothing: a free rider" if may_be_nothing else ""
    steps = pluralize(len(numbers), "step")
    return f"Agent {agent} contributes least: {mean:.3f}{interval} of the reward of turn 1{free_rider} (last {steps})."


def _revisions(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence per turn from 2 about the last evaluation, without evaluations about the last step."""
    for prefix, held_out in (("eval/", ", held-out"), ("", "")):
        with_rates = [row for row in rows if _revised_turns(row, prefix)]
        if not with_rates:
            continue
        row = with_rates[-1]
        for turn in _revised_turns(row, prefix):
            name = f"{prefix}turn_{turn}"
            kept = row.get(f"{name}/keep_rate")
            fixed = row.get(f"{name}/fix_rate")
            parts = []
            if kept is not None:
                parts.append(f"of answers right in turn {turn - 1}, {kept:.0%} stay right in turn {turn}")
            if fixed is not None:
                wrong = "the wrong ones" if kept is not None else f"answers wrong in turn {turn - 1},"
                parts.append(f"of {wrong} {fixed:.0%} are mended")
            sentence = "; ".join(parts)
            yield f"{sentence[0].upper()}{sentence[1:]} (step {row['step']}{held_out})."
            pairs = row.get(f"{name}/first_pass@2")
            if pairs is not None:
                yield (
                    f"With two first answers instead, at least one passes in {pairs:.0%} of tasks "
                    f"(step {row['step']}{held_out})."
                )
        return


def _revised_turns(row: Row, prefix: str) -> list[int]:
    """Return the turns of a row that have a rate of revisions."""
    turns = set()
    for name, value in row.items():
        turn, _, metric = name.removeprefix(f"{prefix}turn_").partition("/")
        if name.startswith(f"{prefix}turn_") and metric in REVISIONS and value is not None:
            turns.add(int(turn))
    return sorted(turns)
