"""The files of a run folder: metrics.jsonl and episodes.jsonl, one object a line, and readable episodes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from marl_ray.core.messages import Episode
from marl_ray.telemetry.metrics import Row

CONFIG_FILE = "config.yaml"
METRICS = "metrics.jsonl"
EPISODES = "episodes.jsonl"
SAMPLES = "sample_episodes.txt"


class Record:
    """Appends to the files of one run folder, each row at once."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def metrics(self, row: Row) -> None:
        """A number that is not finite is written as null."""
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        self._append(METRICS, finite)

    def episodes(self, step: int, kind: str, episodes: Sequence[Episode]) -> None:
        """`kind` is train or eval."""
        for episode in episodes:
            self._append(EPISODES, {"step": step, "kind": kind} | trace(episode))

    def samples(self, title: str, episodes: Sequence[Episode]) -> Path:
        """Write a few episodes as text for people."""
        path = self.run_dir / SAMPLES
        path.write_text(f"{title}\n\n" + "\n".join(readable(episode) for episode in episodes))
        return path

    def forget_after(self, step: int) -> None:
        """Drop rows of steps that a resumed run will take again, and a last row that was cut off."""
        for name in (METRICS, EPISODES):
            path = self.run_dir / name
            if path.exists():
                rows = [row for row in _parsed(path) if row["step"] <= step]
                fresh = path.with_suffix(".tmp")
                fresh.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
                os.replace(fresh, path)

    def _append(self, name: str, row: dict[str, Any]) -> None:
        with (self.run_dir / name).open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """All rows of metrics.jsonl. Raises ValueError when the folder has none."""
    path = run_dir / METRICS
    if not path.exists():
        raise ValueError(f"{run_dir} is no run folder: it has no {METRICS}")
    return list(_parsed(path))


def _parsed(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file; a last line that a crash cut off is left out."""
    *lines, last = path.read_text().split("\n")
    yield from map(json.loads, lines)
    if last:
        try:
            yield json.loads(last)
        except ValueError:
            return


def trace(episode: Episode) -> dict[str, Any]:
    """An episode as plain data: every prompt and response, every joint action's verdicts and reward."""
    return {
        "task": episode.task.id,
        "stopped": episode.stopped,
        "turns": [
            {
                "turn": node.turn + 1,
                "prompts": node.prompts,
                "responses": [[c.text for c in group] for group in node.completions],
                "weight_versions": [sorted({c.weight_version for c in group}) for group in node.completions],
                "joint_actions": [
                    {
                        "indices": list(action.indices),
                        "reward": action.reward,
                        "levels": action.assessment.levels,
                        "report": action.report.to_dict(),
                    }
                    for action in node.joint_actions
                ],
                "expanded": node.expanded,
            }
            for node in episode.nodes
        ],
    }


def readable(episode: Episode) -> str:
    """One episode for people: at each turn the joint action that went on (at the end, the first)."""
    lines = ["=" * 100, f"{episode.task.id}   {episode.stopped}".rstrip(), "=" * 100]
    for node in episode.nodes:
        action = node.joint_actions[node.expanded or 0]
        levels = "  ".join(f"{name} {value:+.2f}" for name, value in action.assessment.levels.items())
        lines.append(f"--- turn {node.turn + 1}: reward {action.reward:.2f}   ({levels})")
        for agent, prompt in enumerate(node.prompts):
            lines += [f"[agent {agent} hears]", _indent(prompt)]
            lines += [
                f"[agent {agent} answers]",
                _indent(node.completions[agent][action.indices[agent]].text),
            ]
        report = action.report
        if report.syntax_error is not None:
            lines.append(f"[sandbox] syntax error: {report.syntax_error.message}")
        else:
            lines.append(f"[sandbox] {report.passed} of {report.total} tests passed")
        lines += [
            f"    {t.status}: {t.source}   {t.error_type or ''} {t.message or ''}".rstrip()
            for t in report.tests
            if t.status != "pass"
        ]
    return "\n".join(lines) + "\n"


def _indent(text: str) -> str:
    return "\n".join(f"    | {line}" for line in text.strip("\n").split("\n"))
