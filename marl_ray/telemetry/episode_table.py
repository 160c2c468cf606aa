"""One sampled episode on the console: the prompt, and each turn with the agents' answers beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from marl_ray.telemetry.recorded_episode import Record, followed_turns
from marl_ray.telemetry.terminal import BOLD, CYAN, DIM, cell_width, fit, paint, printable

MIN_COLUMN = 30
"""Columns below which the agents' answers follow one another."""
MAX_LINES = 12
"""Lines of an answer that are shown."""
PROMPT_LINES = 3
GAP = " │ "


def episode_table(record: Record, place: str, width: int) -> str:
    """Return the table of an episode record in `width` columns. `place` says where in the run it was sampled."""
    title = fit(printable(f"── {record['task']}, {place}").replace("\n", " "), width - 1).rstrip() + " "
    lines = [paint(title + "─" * (width - cell_width(title)), CYAN)]
    for turn in followed_turns(record):
        if turn.number == 1:
            lines += [paint(line, DIM) for line in _shown(turn.prompts[0], width, PROMPT_LINES)]
        advantage = turn.reward - turn.group_mean
        facts = f"turn {turn.number}: reward {turn.reward:z.2f}, advantage over its group {advantage:+z.2f}"
        if turn.tests is not None:
            passed, total = turn.tests
            facts += f", {passed} of {total} tests passed"
        lines.append(paint(fit(facts, width).rstrip(), BOLD))
        lines += _answers(turn.names, turn.answers, width)
    lines.append(paint("─" * width, CYAN))
    return "\n".join(lines)


def _answers(names: Sequence[str], answers: Sequence[str], width: int) -> list[str]:
    column = (width - len(GAP) * (len(answers) - 1)) // len(answers)
    if column < MIN_COLUMN:
        lines = []
        for name, answer in zip(names, answers, strict=True):
            lines.append(paint(fit(printable(name), width).rstrip(), DIM))
            lines += _shown(answer, width, MAX_LINES)
        return lines
    cells = [_shown(answer, column, MAX_LINES) for answer in answers]
    heads = [fit(printable(name), column) for name in names]
    lines = [paint(GAP.join(heads).rstrip(), DIM)]
    for row in zip_longest(*cells, fillvalue=""):
        lines.append(GAP.join(fit(cell, column) for cell in row).rstrip())
    return lines


def _shown(text: str, width: int, limit: int) -> list[str]:
    """Return the first lines of a text of a model, each cut to `width`."""
    lines = []
    for line in printable(text).split("\n"):
        if line.strip():
            lines.append(fit(line, width).rstrip())
    if len(lines) > limit:
        hidden = len(lines) - limit + 1
        return [*lines[: limit - 1], f"… {hidden} more lines"]
    return lines or ["(no answer)"]
