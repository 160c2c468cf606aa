"""Letter grids without secrets, a reference for private ones: `environment: benchmarks.learning.open_grid:OpenGrid`."""

from __future__ import annotations

from marl_ray.core.episode import Task
from marl_ray.plugins.grid import prompts
from marl_ray.plugins.grid.environment import PrivateGrid


class OpenGrid(PrivateGrid):
    """A grid of which every agent knows all rows."""

    def first_prompts(self, task: Task) -> list[str]:
        known = dict(enumerate(task.fields["target"], 1))
        texts = []
        for rows in self._rows(task):
            texts.append(prompts.first_prompt(task.prompt, rows, known))
        return texts
