"""The last lines of a training run on a terminal: one result, one advice and one command.

The log file of the run has the whole summary (`run_summary`).
"""

from __future__ import annotations

from marl_ray.config import Config
from marl_ray.core.state import TrainingResult
from marl_ray.core.text import pluralize
from marl_ray.results.diagnostics import Rows, describe_wait_times, find_problems
from marl_ray.results.run_summary import read_metrics, report_command
from marl_ray.storage.run_folder import RunFolder
from marl_ray.telemetry.terminal import BOLD, CYAN, GREEN, YELLOW, paint, wrap


def closing_lines(config: Config, folder: RunFolder, result: TrainingResult, seconds: float) -> list[str]:
    """Return the lines of a run that has ended after `seconds`."""
    rows = [row for row in read_metrics(folder) if row["step"] > result.first_step or row["step"] == 0]
    end = f"after {pluralize(result.step, 'step')} in {seconds / 60:.1f} min"
    last = f"{paint('results:', CYAN)} {folder}"
    report = report_command(folder)
    if report:
        last = f"{paint('curves and episodes:', CYAN)} {report}"
    return [
        paint(f"{_result(rows, config.training.num_turns)} {end}", BOLD, GREEN),
        paint(wrap(_advice(config, rows)), YELLOW),
        last,
    ]


def _result(rows: Rows, num_turns: int) -> str:
    """Return the mean reward of the last turn before and after training, on held-out tasks if there are any."""
    for prefix, kind in (("eval/", "held-out reward"), ("", "training reward")):
        key = f"{prefix}turn_{num_turns}/reward_mean"
        of_kind = [row for row in rows if row.get(key) is not None]
        if not of_kind:
            continue
        text = f"{kind} {of_kind[-1][key]:z.2f}"
        if len(of_kind) > 1:
            text = f"{kind} {of_kind[0][key]:z.2f} -> {of_kind[-1][key]:z.2f}"
        solved = of_kind[-1].get(f"{prefix}turn_{num_turns}/all_passed")
        if solved is not None:
            text += f", {solved:.0%} solved,"
        return text
    return "no reward"


def _advice(config: Config, rows: Rows) -> str:
    """Return the most severe problem, else a way to make the run faster."""
    steps = [row for row in rows if row["step"]]
    for problem in find_problems(steps):
        return str(problem)
    _, *remedies = describe_wait_times(config, steps) or [""]
    # The first remedy is of the longer waits.
    return remedies[0] if remedies else "no problem was found"
