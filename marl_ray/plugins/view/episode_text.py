"""An episode as coloured text: its turns, prompts, answers, verdicts and feedback."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from marl_ray.telemetry.episode_records import is_test_report, other_evidence
from marl_ray.telemetry.recorded_episode import Record, RecordedTurn, followed_turns
from marl_ray.telemetry.terminal import printable

MAX_TESTS = 8
"""Failed tests of a turn that are shown."""
MAX_EVIDENCE = 500
"""Characters of a piece of evidence that are shown."""
AGENTS = ("cyan", "magenta", "blue", "yellow")


@dataclass(frozen=True, slots=True)
class Shown:
    """The parts of an episode that are shown. with_difference: answers are compared with the turn before."""

    with_prompts: bool = False
    with_difference: bool = True


def episode_text(record: Record, shown: Shown) -> Text:
    """Return the text of an episode. Texts of models have pictures of control characters, and no markup."""
    kind = "held-out" if record.get("kind") == "eval" else "training"
    text = Text()
    _line(text, f"{record['task']}  {kind}, step {record['step']}", "bold reverse")
    for stop in record["stops"]:
        _line(text, f"ended: {stop['reason'].replace('_', ' ')} {stop.get('detail') or ''}", "yellow")
    before: RecordedTurn | None = None
    for turn in followed_turns(record):
        text.append("\n")
        _turn(text, turn, before, shown)
        before = turn
    return text


def _turn(text: Text, turn: RecordedTurn, before: RecordedTurn | None, shown: Shown) -> None:
    advantage = turn.reward - turn.group_mean
    _line(text, f"Turn {turn.number}: reward {turn.reward:z.2f}, advantage {advantage:+z.2f}", "bold")
    told = turn.told
    if told is not None and told.shared:
        _line(text, told.shared, "yellow")
    for agent, answer in enumerate(turn.answers):
        name = turn.names[agent]
        colour = AGENTS[agent % len(AGENTS)]
        lines = turn.prompts[agent].splitlines()
        if shown.with_prompts:
            _line(text, f"▾ prompt of {name}", "dim")
            _line(text, turn.prompts[agent], "dim")
        else:
            _line(text, f"▸ prompt of {name}, {len(lines)} lines (f)", "dim")
        _line(text, name, f"bold {colour}")
        if before is not None and shown.with_difference:
            _difference(text, before.answers[agent], answer)
        else:
            _line(text, answer, "")
    _verdict(text, turn)


def _difference(text: Text, before: str, after: str) -> None:
    """Append the answer's lines, with the lines that were dropped (-) and added (+) since the turn before."""
    if before == after:
        _line(text, after, "")
        _line(text, "(unchanged)", "dim")
        return
    styles = {"+": "green", "-": "red", " ": ""}
    for line in difflib.ndiff(before.splitlines(), after.splitlines()):
        if line[0] in styles:  # `?` marks places within a line
            _line(text, line, styles[line[0]])


def _verdict(text: Text, turn: RecordedTurn) -> None:
    levels = [f"{name} {value:+z.2f}" for name, value in turn.action["levels"].items() if value]
    if levels:
        _line(text, f"levels: {'  '.join(levels)}", "dim")
    tests = turn.tests
    if tests is not None:
        passed, total = tests
        _line(text, f"{passed} of {total} tests passed", "green" if passed == total else "red")
    elif "solved" in turn.action:
        solved = turn.action["solved"]
        _line(text, "solved" if solved else "not solved", "green" if solved else "red")
    for line, style in _test_lines(turn.action.get("report")):
        _line(text, line, style)
    for key, value in other_evidence(turn.action).items():
        line = f"{key}: {json.dumps(value, ensure_ascii=False)}"
        if len(line) > MAX_EVIDENCE:
            line = f"{line[:MAX_EVIDENCE]} …"
        _line(text, line, "dim")


def _test_lines(report: Any) -> Iterator[tuple[str, str]]:
    if not is_test_report(report):
        return
    if report.get("syntax_error"):
        yield f"syntax error: {report['syntax_error']}", "red"
    failed = [test for test in report["tests"] if test.get("status") != "pass"]
    for test in failed[:MAX_TESTS]:
        why = " ".join(str(test[key]) for key in ("status", "error_type", "message") if test.get(key))
        yield f"✗ {test.get('source')} → {why}", "red"
    if len(failed) > MAX_TESTS:
        yield f"✗ {len(failed) - MAX_TESTS} more", "red"


def _line(text: Text, line: str, style: str) -> None:
    text.append(printable(line) + "\n", style or None)
