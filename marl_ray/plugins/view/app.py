"""The browser: a table of episodes on the left, one episode on the right."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import DataTable, Footer, Input, Static

from marl_ray.core.errors import UserError
from marl_ray.plugins.view.episode_filter import EpisodeFilter
from marl_ray.plugins.view.episode_index import EpisodeFacts, EpisodeIndex
from marl_ray.plugins.view.episode_text import Shown, episode_text
from marl_ray.telemetry.terminal import printable

POLL_INTERVAL_S = 1.0
"""Time between two looks for new episodes."""
COLUMNS = {" step": 6, "  task": 14, "turns": 6, " reward": 7}
"""Titles and widths of the table."""
DOTS = {True: ("●", "green"), False: ("○", "red"), None: ("·", "dim")}
"""Sign and colour of a turn that is solved, not solved, or has no tests."""
ORDERS: dict[str, Callable[[EpisodeFacts], tuple[object, ...]]] = {
    "step": lambda facts: (facts.offset,),
    "reward, lowest first": lambda facts: (facts.reward, facts.offset),
    "reward, highest first": lambda facts: (-facts.reward, facts.offset),
    "task": lambda facts: (facts.task, facts.offset),
}


class EpisodeBrowser(App[None]):
    """The program. `name` is the name of the run."""

    CSS = """
    #title { height: 1; background: $panel; }
    #filter { height: 1; border: none; padding: 0 1; }
    #list { width: 36; height: 100%; border-right: solid $panel; scrollbar-size-vertical: 1; }
    #episode { padding: 0 1; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "move(1)", "down"),
        Binding("k", "move(-1)", "up"),
        Binding("n", "same_task(1)", "later"),
        Binding("p", "same_task(-1)", "earlier"),
        Binding("slash", "edit_filter", "filter"),
        Binding("o", "sort", "sort"),
        Binding("f", "prompts", "prompts"),
        Binding("d", "difference", "diff"),
        Binding("space", "scroll_episode(1)", "scroll", show=False),
        Binding("b", "scroll_episode(-1)", "scroll back", show=False),
        Binding("escape", "leave_filter", "table", show=False),
        Binding("q", "quit", "quit"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, name: str, index: EpisodeIndex, filter_line: str = "") -> None:
        super().__init__()
        self.run_name = name
        self.index = index
        self.filter_line = filter_line
        self.episode_filter = EpisodeFilter.parse(filter_line)
        self.order = next(iter(ORDERS))
        self.parts = Shown()
        self.listed: list[EpisodeFacts] = []
        """The episodes of the table, in its order."""
        self.current: EpisodeFacts | None = None
        """The episode on the right."""

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        yield Input(self.filter_line, placeholder="words, train, held-out, solved, step=3..5, text=word", id="filter")
        with Horizontal():
            yield DataTable(id="list", cursor_type="row", show_header=True, cell_padding=0)
            with VerticalScroll(id="episode"):
                yield Static(id="text", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        for title, width in COLUMNS.items():
            # Without a width, the table would measure every cell.
            self.table.add_column(Text(title), width=width)
        self.table.focus()
        self._fill()
        self.set_interval(POLL_INTERVAL_S, self.read_new)

    @property
    def table(self) -> DataTable[Text]:
        """The list of episodes."""
        table: DataTable[Text] = self.query_one("#list", DataTable)
        return table

    def read_new(self) -> None:
        """Add new episodes of a run in progress. The shown episode stays."""
        if self.index.read_new():
            self._fill()

    def action_move(self, rows: int) -> None:
        """Move the cursor."""
        self._select(self.table.cursor_row + rows)

    def action_same_task(self, direction: int) -> None:
        """Show the same task at a later (1) or earlier (-1) step, if the table has it."""
        if self.current is None:
            return
        of_task = [facts for facts in self.listed if facts.task == self.current.task]
        of_task.sort(key=lambda facts: facts.offset)
        place = of_task.index(self.current) + direction
        if 0 <= place < len(of_task):
            self._select(self.listed.index(of_task[place]))

    def action_edit_filter(self) -> None:
        """Open the line of the filter."""
        line = self.query_one("#filter", Input)
        line.display = True
        line.focus()

    def action_leave_filter(self) -> None:
        """Close the line of the filter, and go back to the table."""
        line = self.query_one("#filter", Input)
        line.value = self.filter_line
        line.display = False
        self.table.focus()

    def action_sort(self) -> None:
        """Take the next order."""
        names = list(ORDERS)
        self.order = names[(names.index(self.order) + 1) % len(names)]
        self._fill()

    def action_prompts(self) -> None:
        """Unfold or fold the prompts."""
        self.parts = Shown(not self.parts.with_prompts, self.parts.with_difference)
        self._show()

    def action_difference(self) -> None:
        """Compare answers with the turn before, or show them as they are."""
        self.parts = Shown(self.parts.with_prompts, not self.parts.with_difference)
        self._show()

    def action_scroll_episode(self, pages: int) -> None:
        """Scroll the episode by a page."""
        pane = self.query_one("#episode")
        pane.scroll_relative(y=pages * max(1, pane.size.height - 2), animate=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Filter, and go back to the table unless the line is wrong."""
        try:
            self.episode_filter = EpisodeFilter.parse(event.value)
        except UserError as error:
            self._title(str(error))
            return
        self.filter_line = event.value
        self.action_leave_filter()
        self._fill()

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the episode under the cursor."""
        row = event.cursor_row
        if 0 <= row < len(self.listed) and self.listed[row] is not self.current:
            self.current = self.listed[row]
            self.query_one("#episode").scroll_home(animate=False)
            self._show()

    def _fill(self) -> None:
        """Fill the table with the episodes of the filter, and keep the cursor on the shown episode."""
        visible = [facts for facts in self.index.episodes if self.episode_filter.matches(facts, self.index)]
        self.listed = sorted(visible, key=ORDERS[self.order])
        kept = self.current
        self.table.clear()
        for facts in self.listed:
            self.table.add_row(*_cells(facts))
        self._title()
        if not self.listed:
            self.current = None
            self._show()
            return
        self._select(self.listed.index(kept) if kept in self.listed else 0)

    def _select(self, row: int) -> None:
        row = max(0, min(row, len(self.listed) - 1))
        self.table.move_cursor(row=row, animate=False)
        if self.listed and self.listed[row] is not self.current:
            self.current = self.listed[row]
            self.query_one("#episode").scroll_home(animate=False)
            self._show()

    def _title(self, problem: str = "") -> None:
        episodes = self.index.episodes
        last = max((facts.step for facts in episodes), default=0)
        text = f" {self.run_name}: {len(self.listed)} of {len(episodes)} episodes to step {last}, by {self.order}"
        if self.filter_line:
            text += f", filter: {self.filter_line}"
        self.query_one("#title", Static).update(Text(printable(problem or text)))

    def _show(self) -> None:
        """Show the current episode."""
        text = Text("No episode matches the filter." if self.index.episodes else "No episode yet.")
        if self.current is not None:
            record = self.index.record(self.current)
            text = Text("The file has changed.") if record is None else episode_text(record, self.parts)
        self.query_one("#text", Static).update(text)


def _cells(facts: EpisodeFacts) -> tuple[Text, Text, Text, Text]:
    dots = Text()
    for solved in facts.solved:
        sign, colour = DOTS[solved]
        dots.append(sign, colour)
    kind = "h" if facts.held_out else " "
    task = printable(facts.task).replace("\n", " ")
    reward = f"{facts.reward:z.2f}" if facts.rewards else "lost"
    return Text(f"{facts.step:>5}{kind}"), Text(f"  {task[:11]}"), dots, Text(reward.rjust(7))
