"""The lines of steps and evaluations on a terminal: columns under titles, as many as the terminal is wide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marl_ray.core.ids import PolicyId
from marl_ray.telemetry.metrics import MetricRow
from marl_ray.telemetry.terminal import BOLD, CYAN, DIM, GREEN, columns, paint

GAP = "  "


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the table. The columns with the highest `rank` are left out first."""

    title: str
    width: int
    rank: int
    codes: tuple[str, ...] = ()


class ConsoleTable:
    """The table of a run."""

    def __init__(self, total: int, policies: Sequence[PolicyId], num_turns: int, with_solved: bool) -> None:
        self._turns = num_turns
        self._policies = policies
        digits = len(str(total))
        self._columns = [TableColumn("step", max(2 * digits + 1, len("eval ") + digits), 0, (DIM,))]
        for turn in range(1, num_turns + 1):
            # The agents are trained for the last turn, and the first one shows the gain of the others.
            rank = 0 if turn == num_turns else 3 if turn == 1 else 7
            self._columns.append(TableColumn(f"reward {turn}", 8, rank, (BOLD,)))
        if with_solved:
            self._columns.append(TableColumn("solved", 6, 1, (GREEN,)))
        for policy in policies:
            self._columns.append(TableColumn(f"loss {policy.first_agent}", 7, 5))
        self._columns += [TableColumn("tok/s", 6, 4), TableColumn("s/step", 6, 2)]
        self._columns += [TableColumn("rollout", 7, 6), TableColumn("learn", 6, 6), TableColumn("sync", 6, 6)]
        self._columns.append(TableColumn("left", 7, 1, (DIM,)))

    def header(self) -> str:
        """Return the titles. `reward 2` is the mean reward of turn 2, `loss 0` the loss of agent 0."""
        return self._line({column.title: column.title for column in self._columns}, (DIM,))

    def step(self, row: MetricRow, step: str, left: str) -> str:
        """Return the line of a step."""
        cells = self._rewards(row, "")
        for policy in self._policies:
            loss = float(row.get(f"{policy.key}/loss", 0.0))
            # The option z writes a rounded -0.0 as 0.0.
            cells[f"loss {policy.first_agent}"] = f"{loss:+z.3f}"
        cells["tok/s"] = f"{row['rollout/tokens_per_s']:.0f}"
        cells["s/step"] = f"{row['time/step']:.1f}"
        cells["rollout"] = f"{row['time/rollout']:.1f}"
        cells["learn"] = f"{row['time/learn']:.1f}"
        cells["sync"] = f"{row['time/sync']:.2f}"
        return self._line(cells | {"step": step, "left": left})

    def evaluation(self, row: MetricRow, name: str) -> str:
        """Return the line of an evaluation."""
        cells = self._rewards(row, "eval/")
        cells["step"] = name.replace("step", "eval")
        cells["s/step"] = f"{row['time/eval']:.1f}"
        return self._line(cells, (BOLD, CYAN))

    def _rewards(self, row: MetricRow, prefix: str) -> dict[str, str]:
        cells = {}
        for turn in range(1, self._turns + 1):
            reward = row.get(f"{prefix}turn_{turn}/reward_mean")
            if reward is not None:
                cells[f"reward {turn}"] = f"{reward:z.2f}"
        solved = row.get(f"{prefix}turn_{self._turns}/all_passed")
        if solved is not None:
            cells["solved"] = f"{solved:.0%}"
        return cells

    def _line(self, cells: Mapping[str, str], codes: tuple[str, ...] | None = None) -> str:
        """Return the line; `codes` are in place of the columns' colours."""
        parts = []
        for column in self._shown():
            text = cells.get(column.title, "").rjust(column.width)
            parts.append(paint(text, *(column.codes if codes is None else codes)))
        return GAP.join(parts)

    def _shown(self) -> list[TableColumn]:
        """Return the columns that fit. One column of the terminal stays free, in which some terminals wrap the line."""
        shown = self._columns
        while sum(column.width + len(GAP) for column in shown) - len(GAP) > columns() - 1:
            highest = max(column.rank for column in shown)
            if not highest:
                break
            shown = [column for column in shown if column.rank < highest]
        return shown
