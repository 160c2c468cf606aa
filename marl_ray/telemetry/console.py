"""What a person sees while a run goes on: one aligned line a step, and a progress bar on a terminal."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm

from marl_ray.telemetry.metrics import Row


class Console:
    """Writes to standard error, so that standard output stays free."""

    def __init__(self, total_steps: int, done: int, num_agents: int, num_turns: int) -> None:
        self.total = total_steps
        self.num_agents = num_agents
        self.num_turns = num_turns
        self.started = time.monotonic()
        self.first = done
        self.bar = tqdm(
            total=total_steps,
            initial=done,
            unit="step",
            file=sys.stderr,
            disable=None,
            dynamic_ncols=True,
            leave=False,
        )

    def step(self, row: Row, show: bool) -> None:
        """Advance the bar, and print the step's line."""
        self.bar.update(1)
        if show:
            say(self._line(row))

    def evaluation(self, row: Row, name: str) -> None:
        """The line of an evaluation."""
        rewards = " ".join(_number(row, f"eval/turn_{t + 1}/reward_mean") for t in range(self.num_turns))
        passed = _share(row, f"eval/turn_{self.num_turns}/all_passed")
        say(f"eval {name:>12} | reward {rewards} | all tests passed {passed} | {row['time/eval']:.1f} s")

    def close(self) -> None:
        """Remove the bar."""
        self.bar.close()

    def _line(self, row: Row) -> str:
        rewards = " ".join(_number(row, f"turn_{t + 1}/reward_mean") for t in range(self.num_turns))
        losses = " ".join(f"{row.get(f'agent_{i}/loss', 0.0):+8.4f}" for i in range(self.num_agents))
        step = int(row["step"])
        left = (time.monotonic() - self.started) / max(1, step - self.first) * (self.total - step)
        return (
            f"step {step:>{len(str(self.total))}}/{self.total} | reward {rewards} "
            f"| pass {_share(row, f'turn_{self.num_turns}/all_passed')} | loss {losses} "
            f"| {row['rollout/tokens_per_s']:>6.0f} tok/s | {row['time/step']:5.1f} s "
            f"(roll {row['time/rollout']:.1f} learn {row['time/learn']:.1f} sync {row['time/sync']:.2f}) "
            f"| left {_duration(left)}"
        )


def say(text: str) -> None:
    """Print a line on standard error without breaking a progress bar."""
    tqdm.write(text, file=sys.stderr)
    sys.stderr.flush()


def _number(row: Row, key: str) -> str:
    return f"{row[key]:5.2f}" if key in row else "    -"


def _share(row: Row, key: str) -> str:
    return f"{row[key]:4.0%}" if key in row else "   -"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
